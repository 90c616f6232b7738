// Command gen writes the vector kernels of package kernel as Go assembly.
//
//	go run . -out ../sum_amd64.s -stubs ../sum_amd64.go -pkg kernel
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// lane is a way to add one vector of elements.
type lane struct {
	name     string
	typ      string
	elements int // per vector
	bytes    int // of one element
	unroll   int
	setup    func() (shared []reg.VecVirtual)
	add      func(dst, a, b operand.Mem, shared []reg.VecVirtual)
}

func main() {
	ConstraintExpr("amd64")
	for _, l := range []lane{
		{name: "sumFloat32AVX2", typ: "float32", elements: 8, bytes: 4, unroll: 4, add: plain(YMM, VMOVUPS, VADDPS)},
		{name: "sumFloat64AVX2", typ: "float64", elements: 4, bytes: 8, unroll: 4, add: plain(YMM, VMOVUPD, VADDPD)},
		{name: "sumFloat32AVX512", typ: "float32", elements: 16, bytes: 4, unroll: 4, add: plain(ZMM, VMOVUPS, VADDPS)},
		{name: "sumFloat64AVX512", typ: "float64", elements: 8, bytes: 8, unroll: 4, add: plain(ZMM, VMOVUPD, VADDPD)},
		{name: "sumFP16AVX2", typ: "uint16", elements: 8, bytes: 2, unroll: 4, add: half(YMM)},
		{name: "sumFP16AVX512", typ: "uint16", elements: 16, bytes: 2, unroll: 4, add: half(ZMM)},
		{name: "sumBF16AVX2", typ: "uint16", elements: 8, bytes: 2, unroll: 2, setup: bfloatConstants(YMM), add: bfloatAVX2},
		{name: "sumBF16AVX512", typ: "uint16", elements: 16, bytes: 2, unroll: 2, setup: bfloatConstants(ZMM), add: bfloatAVX512},
	} {
		l.write()
	}
	Generate()
}

// write makes a function that adds n elements, n a multiple of l.elements.
func (l lane) write() {
	TEXT(l.name, NOSPLIT, fmt.Sprintf("func(dst, a, b *%s, n int)", l.typ))
	Doc(fmt.Sprintf("%s stores a[i]+b[i] in dst[i] for n elements, a multiple of %d.", l.name, l.elements))
	Pragma("noescape")
	dst := Load(Param("dst"), GP64())
	a := Load(Param("a"), GP64())
	b := Load(Param("b"), GP64())
	n := Load(Param("n"), GP64())
	var shared []reg.VecVirtual
	if l.setup != nil {
		shared = l.setup()
	}
	vector := l.elements * l.bytes
	loop := func(name string, vectors int) {
		Label(name)
		CMPQ(n, operand.U32(uint32(l.elements*vectors)))
		JL(operand.LabelRef(name + "_done"))
		for i := range vectors {
			at := func(base reg.Register) operand.Mem { return operand.Mem{Base: base, Disp: i * vector} }
			l.add(at(dst), at(a), at(b), shared)
		}
		for _, p := range []reg.Register{dst, a, b} {
			ADDQ(operand.U32(uint32(vector*vectors)), p)
		}
		SUBQ(operand.U32(uint32(l.elements*vectors)), n)
		JMP(operand.LabelRef(name))
		Label(name + "_done")
	}
	loop("blocks", l.unroll)
	loop("vectors", 1)
	VZEROUPPER()
	RET()
}

func plain(vec func() reg.VecVirtual, mov, add func(ops ...operand.Op)) func(dst, a, b operand.Mem, _ []reg.VecVirtual) {
	return func(dst, a, b operand.Mem, _ []reg.VecVirtual) {
		v := vec()
		mov(a, v)
		add(b, v, v)
		mov(v, dst)
	}
}

// half adds in float32 and rounds to nearest even.
func half(vec func() reg.VecVirtual) func(dst, a, b operand.Mem, _ []reg.VecVirtual) {
	return func(dst, a, b operand.Mem, _ []reg.VecVirtual) {
		x, y := vec(), vec()
		VCVTPH2PS(a, x)
		VCVTPH2PS(b, y)
		VADDPS(y, x, x)
		VCVTPS2PH(operand.Imm(0), x, dst)
	}
}

// bfloatConstants broadcasts 0x7fff, 1 and the quiet bit 0x40.
func bfloatConstants(vec func() reg.VecVirtual) func() []reg.VecVirtual {
	return func() []reg.VecVirtual {
		var shared []reg.VecVirtual
		for _, c := range []uint32{0x7fff, 1, 0x40} {
			r, x, v := GP32(), XMM(), vec()
			MOVL(operand.U32(c), r)
			VMOVD(r, x)
			VPBROADCASTD(x, v)
			shared = append(shared, v)
		}
		return shared
	}
}

func bfloatAVX2(dst, a, b operand.Mem, shared []reg.VecVirtual) {
	x, y := YMM(), YMM()
	VPMOVZXWD(a, x)
	VPMOVZXWD(b, y)
	VPSLLD(operand.U8(16), x, x)
	VPSLLD(operand.U8(16), y, y)
	VADDPS(y, x, x)
	nan, top, quiet, odd := YMM(), YMM(), YMM(), YMM()
	VCMPPS(operand.U8(3), x, x, nan)
	VPSRLD(operand.U8(16), x, top)
	VPOR(shared[2], top, quiet)
	VPAND(shared[1], top, odd)
	VPADDD(shared[0], x, x)
	VPADDD(odd, x, x)
	VPSRLD(operand.U8(16), x, x)
	VBLENDVPS(nan, quiet, x, x)
	VPACKUSDW(x, x, x)
	VPERMQ(operand.U8(0x08), x, x)
	VMOVDQU(x.AsX(), dst)
}

func bfloatAVX512(dst, a, b operand.Mem, shared []reg.VecVirtual) {
	x, y := ZMM(), ZMM()
	VPMOVZXWD(a, x)
	VPMOVZXWD(b, y)
	VPSLLD(operand.U8(16), x, x)
	VPSLLD(operand.U8(16), y, y)
	VADDPS(y, x, x)
	nan := K()
	top, quiet, odd := ZMM(), ZMM(), ZMM()
	VCMPPS(operand.U8(3), x, x, nan)
	VPSRLD(operand.U8(16), x, top)
	VPORD(shared[2], top, quiet)
	VPANDD(shared[1], top, odd)
	VPADDD(shared[0], x, x)
	VPADDD(odd, x, x)
	VPSRLD(operand.U8(16), x, x)
	VMOVDQA32(quiet, nan, x)
	VPMOVDW(x, dst)
}
