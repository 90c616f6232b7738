package kernel

import "golang.org/x/sys/cpu"

type form struct {
	t Type
	f Func
}

// vectorForms lists the assembly that this processor runs, also what For
// would not choose.
func vectorForms() map[string]form {
	forms := make(map[string]form)
	add := func(name string, there bool, of func(Type) Func) {
		for _, t := range []Type{Float32, Float64, BFloat16, Float16} {
			if there {
				forms[name+"/"+t.String()] = form{t, of(t)}
			}
		}
	}
	add("avx2", cpu.X86.HasAVX2 && cpu.X86.HasFMA, avx2Sum)
	add("avx512", cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL, avx512Sum)
	return forms
}
