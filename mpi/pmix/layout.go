package pmix

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

// Sizes and offsets of PMIx's structures. They are the same in versions 3, 4 and 5:
//
//	pmix_proc_t  { char nspace[256]; uint32_t rank; }
//	pmix_value_t { uint16_t type; /* 6 bytes */ union { ... } data; /* 24 bytes */ }
//	pmix_info_t  { char key[512]; uint32_t flags; /* 4 bytes */ pmix_value_t value; }
//
// pmix_byte_object_t, a member of the union, is { char *bytes; size_t size; }.
const (
	maxNamespaceBytes = 255
	maxKeyBytes       = 511

	procBytes      = 260
	procRank       = 256
	valueBytes     = 32
	valueData      = 8
	infoBytes      = 552
	infoValue      = 520
	rankWildcard   = 1<<32 - 2 // UINT32_MAX-1
	scopeGlobal    = 3
	typeBool       = 1
	typeInt        = 6
	typeUint16     = 13
	typeUint32     = 14
	typeByteObject = 27
)

// Status codes that we tell apart.
const (
	statusSuccess  = 0
	statusTimeout  = -24
	statusNotFound = -46
	statusPartial  = -52
)

// Attributes.
const (
	attrTimeout   = "pmix.timeout"
	attrCollect   = "pmix.collect"
	attrImmediate = "pmix.immediate"
	attrJobSize   = "pmix.job.size"
	attrLocalSize = "pmix.local.size"
	attrLocalRank = "pmix.lrank"
)

// proc is a pmix_proc_t.
func proc(namespace string, rank uint32) []byte {
	b := make([]byte, procBytes)
	copy(b[:maxNamespaceBytes], namespace)
	binary.NativeEndian.PutUint32(b[procRank:], rank)
	return b
}

// info is an attribute with a value of a small type.
type info struct {
	key  string
	kind uint16
	data uint64
}

// encode lays attributes out as an array of pmix_info_t.
func encode(attributes []info) []byte {
	b := make([]byte, infoBytes*len(attributes))
	for i, a := range attributes {
		at := b[i*infoBytes : (i+1)*infoBytes]
		copy(at[:maxKeyBytes], a.key)
		binary.NativeEndian.PutUint16(at[infoValue:], a.kind)
		binary.NativeEndian.PutUint64(at[infoValue+valueData:], a.data)
	}
	return b
}

// decode reads the numbers and byte objects we ask for out of a pmix_value_t
// that the library allocated, and frees it.
func decode(p uintptr) (number uint64, data []byte, err error) {
	if p == 0 {
		return 0, nil, fmt.Errorf("%w: no value", ErrProtocol)
	}
	value := unsafe.Slice((*byte)(clib.Pointer(p)), valueBytes)
	kind := binary.NativeEndian.Uint16(value)
	word := binary.NativeEndian.Uint64(value[valueData:])
	free := clib.Global("free")
	defer func() {
		if free != 0 {
			clib.Call(free, p)
		}
	}()
	switch kind {
	case typeUint16:
		return word & 0xffff, nil, nil
	case typeUint32:
		return word & 0xffffffff, nil, nil
	case typeByteObject:
		n := binary.NativeEndian.Uint64(value[valueData+8:])
		if n > 1<<30 {
			return 0, nil, fmt.Errorf("%w: a value of %d B", ErrProtocol, n)
		}
		data = append([]byte{}, unsafe.Slice((*byte)(clib.Pointer(uintptr(word))), n)...)
	default:
		return 0, nil, fmt.Errorf("%w: a value of type %d", ErrProtocol, kind)
	}
	if word != 0 && free != 0 {
		clib.Call(free, uintptr(word))
	}
	return 0, data, nil
}

// version reads "OpenPMIx 4.2.2 (PMIx Standard: ...)" or "3.2.3".
func version(text string) (major, minor int, err error) {
	for _, word := range strings.Fields(text) {
		a, rest, ok := strings.Cut(strings.Trim(word, "v,;()"), ".")
		b, _, _ := strings.Cut(rest, ".")
		major, err1 := strconv.Atoi(a)
		minor, err2 := strconv.Atoi(strings.TrimRight(b, "abcdefghijklmnopqrstuvwxyz"))
		if ok && err1 == nil && err2 == nil {
			return major, minor, nil
		}
	}
	return 0, 0, fmt.Errorf("%w: it calls itself %q", ErrVersion, text)
}
