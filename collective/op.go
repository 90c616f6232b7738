package collective

import (
	"fmt"
	"hash/fnv"
	"math/bits"
	"reflect"

	"github.com/fisterra-hpc/fisterra/internal/kernel"
	"github.com/fisterra-hpc/fisterra/mpi"
)

// BF16 is a bfloat16, FP16 an IEEE binary16; both reduce with float32
// arithmetic rounded after each operation. See ToBF16 and ToFP16.
type (
	BF16 = kernel.BF16
	FP16 = kernel.FP16
)

// ToBF16 and ToFP16 round to nearest, ties to even.
func ToBF16(f float32) BF16 { return kernel.ToBF16(f) }

// ToFP16 rounds to nearest, ties to even.
func ToFP16(f float32) FP16 { return kernel.ToFP16(f) }

// Op combines two vectors element by element. It must be associative, up to
// rounding. The predefined ones commute; those of OpFunc are taken not to unless they
// say so, and then operands are combined in the order of ranks.
type Op struct {
	user   *userOp
	kernel kernel.Op
	exact  bool // ReproducibleSum
}

// userOp is an operator made by OpFunc.
type userOp struct {
	name     string
	id       uint8
	commutes bool
	typ      reflect.Type
	fold     kernel.Func
}

// Predefined operators. Min and Max are not for complex numbers; the bitwise ones are for integers. Min and Max of a
// number and a NaN are NaN.
var (
	Sum    = Op{kernel: kernel.Sum}
	Prod   = Op{kernel: kernel.Prod}
	Min    = Op{kernel: kernel.Min}
	Max    = Op{kernel: kernel.Max}
	BitAnd = Op{kernel: kernel.And}
	BitOr  = Op{kernel: kernel.Or}
	BitXor = Op{kernel: kernel.Xor}

	// ReproducibleSum is a sum of float32 or float64 vectors whose bits do not
	// depend on the number of ranks, their order or the plan. For Allreduce and Reduce; see
	// ReproducibleAllreduce.
	ReproducibleSum = Op{exact: true}
)

// OpFunc makes an operator of a function that stores a[i] op b[i] in dst[i]. The three have the same length, and dst may be
// the same slice as a or b. f is called from any goroutine that waits. name must be the same on all ranks: they compare one
// of 127 numbers made of it, which is also all that an error says of another rank's operator. Make an operator once and
// keep it: plans are cached per operator. A panic of f ends collectives on the communicator, for all ranks.
func OpFunc[T mpi.Elem](name string, f func(dst, a, b []T)) Op {
	h := fnv.New32a()
	h.Write([]byte(name))
	return Op{user: &userOp{
		name: name,
		id:   userCode + uint8(h.Sum32()%(noOp-userCode)),
		typ:  reflect.TypeFor[T](),
		fold: func(dst, a, b []byte) { f(mpi.View[T](dst), mpi.View[T](a), mpi.View[T](b)) },
	}}
}

// noReturn is the error of a collective whose operator panics, or ends its goroutine. The program may recover, or close its
// world on the way out: neither that close nor another rank may wait for a collective that never goes on.
func noReturn(o Op) error {
	return fmt.Errorf("operator %v did not return: it panicked, or ended its goroutine", o)
}

// Commutative says that a op b equals b op a, which leaves more plans to choose from.
// It has no effect on predefined operators.
func (o Op) Commutative() Op {
	if o.user != nil {
		u := *o.user
		u.commutes = true
		o.user = &u
	}
	return o
}

func (o Op) String() string {
	switch {
	case o.user != nil:
		return o.user.name
	case o.exact:
		return "reproducible sum"
	}
	return o.kernel.String()
}

func (o Op) ordered() bool { return o.user != nil && !o.user.commutes }

// code is one byte for signatures.
func (o Op) code() uint8 {
	switch {
	case o.user != nil:
		return o.user.id
	case o.exact:
		return exactCode
	}
	return uint8(o.kernel)
}

const (
	exactCode = 0x7f
	userCode  = 0x80 // the first of operators of the program's own; noOp is none of them
)

// elemType is what a plan's execution needs to know of an element type.
type elemType struct {
	kind kernel.Type
	size int
}

// typeOf finds the element type of T.
func typeOf[T mpi.Elem]() elemType {
	var zero T
	switch any(zero).(type) {
	case float32:
		return elemType{kernel.Float32, 4}
	case float64:
		return elemType{kernel.Float64, 8}
	case BF16:
		return elemType{kernel.BFloat16, 2}
	case FP16:
		return elemType{kernel.Float16, 2}
	case int32:
		return elemType{kernel.Int32, 4}
	case int64:
		return elemType{kernel.Int64, 8}
	case uint8:
		return elemType{kernel.Uint8, 1}
	case uint64:
		return elemType{kernel.Uint64, 8}
	}
	return named(reflect.TypeFor[T]())
}

// named finds the element type of a type by what it is made of.
func named(t reflect.Type) elemType {
	size := int(t.Size())
	width := kernel.Type(bits.TrailingZeros(uint(size))) // integers are listed by size
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return elemType{kernel.Int8 + width, size}
	case reflect.Float32:
		return elemType{kernel.Float32, size}
	case reflect.Float64:
		return elemType{kernel.Float64, size}
	case reflect.Complex64:
		return elemType{kernel.Complex64, size}
	case reflect.Complex128:
		return elemType{kernel.Complex128, size}
	}
	return elemType{kernel.Uint8 + width, size}
}

// combiner returns the function that an operator is for a type.
func (o Op) combiner(typ elemType) (kernel.Func, error) {
	if o.user != nil {
		return o.user.fold, nil
	}
	f, ok := kernel.For(o.kernel, typ.kind)
	if !ok {
		return nil, fmt.Errorf("there is no %v of %v", o.kernel, typ.kind)
	}
	return f, nil
}
