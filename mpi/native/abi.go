package native

import "fmt"

// handle is an MPI handle of any of the three binary interfaces: a pointer in Open
// MPI, an int in MPICH's family (kept sign-extended), a small number typed as a
// pointer in the Forum's ABI.
type handle uintptr

// Family is the binary interface a library offers.
type Family uint8

// The binary interfaces, told apart by the symbols a library exports.
const (
	OpenMPI Family = iota + 1 // Open MPI 4 and 5, and what is built on it
	MPICH                     // MPICH and those that keep its ABI: Intel MPI, MVAPICH, Cray MPICH
	Forum                     // the standard ABI of MPI 5.0, libmpi_abi
)

func (f Family) String() string {
	switch f {
	case OpenMPI:
		return "openmpi"
	case MPICH:
		return "mpich"
	case Forum:
		return "mpi-abi"
	}
	return fmt.Sprintf("Family(%d)", uint8(f))
}

// Type is the type of the elements of a collective. Point-to-point messages are bytes.
type Type uint8

// Element types.
const (
	Byte Type = iota
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float32
	Float64
	Complex64
	Complex128
	types
)

var typeNames = [types]string{"byte", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
	"float32", "float64", "complex64", "complex128"}

var typeBytes = [types]int{1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 8, 16}

func (t Type) String() string {
	if t < types {
		return typeNames[t]
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// Bytes is the size of one element.
func (t Type) Bytes() int { return typeBytes[t] }

// Op is a reduction that the library has built in.
type Op uint8

// Built-in reductions.
const (
	Sum Op = iota
	Prod
	Min
	Max
	BitAnd
	BitOr
	BitXor
	ops
)

var opNames = [ops]string{"sum", "prod", "min", "max", "bitand", "bitor", "bitxor"}

func (o Op) String() string {
	if o < ops {
		return opNames[o]
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Reducible reports whether MPI defines o for elements of type t: no order on complex
// numbers, bits only of integers, no arithmetic on bytes.
func Reducible(t Type, o Op) bool {
	if t >= types || o >= ops {
		return false
	}
	switch o {
	case Min, Max:
		return t >= Int8 && t <= Float64
	case BitAnd, BitOr, BitXor:
		return t <= Uint64
	}
	return t != Byte
}

// abi is what a binary interface fixes: the values of the predefined handles and
// constants, and where a status keeps what.
type abi struct {
	family Family
	// word is the size of a handle in memory, 4 or 8 bytes.
	word int

	commWorld, requestNull, errorsReturn handle
	// requestEmpty is the request of a send that was complete at once: it stands for
	// nothing and need not be tested. 0 where there is none.
	requestEmpty handle
	types        [types]handle
	ops          [ops]handle

	anySource, procNull, anyTag int
	inPlace                     uintptr
	// Byte offsets of two ints in a status.
	statusSource, statusTag         uintptr
	threadSerial, keyvalTagUB       int
	classRank, classTag, classTrunc int
}

// symbols of Open MPI's predefined objects: their addresses are the handles.
var (
	openMPITypes = [types]string{"ompi_mpi_byte", "ompi_mpi_int8_t", "ompi_mpi_int16_t", "ompi_mpi_int32_t",
		"ompi_mpi_int64_t", "ompi_mpi_uint8_t", "ompi_mpi_uint16_t", "ompi_mpi_uint32_t", "ompi_mpi_uint64_t",
		"ompi_mpi_float", "ompi_mpi_double", "ompi_mpi_c_float_complex", "ompi_mpi_c_double_complex"}
	openMPIOps = [ops]string{"ompi_mpi_op_sum", "ompi_mpi_op_prod", "ompi_mpi_op_min", "ompi_mpi_op_max",
		"ompi_mpi_op_band", "ompi_mpi_op_bor", "ompi_mpi_op_bxor"}
)

// openMPI reads the handles of Open MPI from the loaded library; sym returns 0 for a
// symbol that is not there.
func openMPI(sym func(string) uintptr) (*abi, error) {
	a := &abi{
		family: OpenMPI, word: 8,
		anySource: -1, procNull: -2, anyTag: -1,
		inPlace:      1,
		statusSource: 0, statusTag: 4,
		threadSerial: 2, keyvalTagUB: 0,
		classRank: 6, classTag: 4, classTrunc: 15,
	}
	var missing string
	get := func(name string) handle {
		p := sym(name)
		if p == 0 && missing == "" {
			missing = name
		}
		return handle(p)
	}
	a.commWorld = get("ompi_mpi_comm_world")
	a.requestNull = get("ompi_request_null")
	a.errorsReturn = get("ompi_mpi_errors_return")
	a.requestEmpty = handle(sym("ompi_request_empty"))
	for i, name := range openMPITypes {
		a.types[i] = get(name)
	}
	for i, name := range openMPIOps {
		a.ops[i] = get(name)
	}
	if missing != "" {
		return nil, fmt.Errorf("%w: it has ompi_mpi_comm_world but not %s", ErrUnknownLibrary, missing)
	}
	return a, nil
}

// mpich holds the constants that MPICH and the libraries of its ABI initiative share.
func mpich() *abi {
	return &abi{
		family: MPICH, word: 4,
		commWorld:   0x44000000,
		requestNull: 0x2c000000, errorsReturn: 0x54000001,
		types: [types]handle{0x4c00010d, 0x4c000137, 0x4c000238, 0x4c000439, 0x4c00083a,
			0x4c00013b, 0x4c00023c, 0x4c00043d, 0x4c00083e, 0x4c00040a, 0x4c00080b, 0x4c000840, 0x4c001041},
		ops:       [ops]handle{0x58000003, 0x58000004, 0x58000002, 0x58000001, 0x58000006, 0x58000008, 0x5800000a},
		anySource: -2, procNull: -1, anyTag: -1,
		inPlace:      ^uintptr(0),
		statusSource: 8, statusTag: 12,
		threadSerial: 2, keyvalTagUB: 0x64400001,
		classRank: 6, classTag: 4, classTrunc: 14,
	}
}

// forum holds the constants of the MPI 5.0 standard ABI.
func forum() *abi {
	return &abi{
		family: Forum, word: 8,
		commWorld:   0x101,
		requestNull: 0x180, errorsReturn: 0x143,
		types: [types]handle{0x247, 0x240, 0x248, 0x250, 0x258, 0x241, 0x249, 0x251, 0x259,
			0x210, 0x214, 0x212, 0x216},
		ops:       [ops]handle{0x21, 0x24, 0x22, 0x23, 0x28, 0x29, 0x2a},
		anySource: -1, procNull: -3, anyTag: -2,
		inPlace:      1,
		statusSource: 0, statusTag: 4,
		threadSerial: 2048, keyvalTagUB: 501,
		classRank: 6, classTag: 4, classTrunc: 15,
	}
}
