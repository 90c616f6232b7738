package pmix

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/fisterra-hpc/fisterra/internal/clib"
)

type functions struct{ init, finalize, put, commit, fence, get, errorString uintptr }

// sonames are tried in this order. Debian keeps the library in a directory of its own
// and links it into the loader's path only with the development files.
var sonames = []string{"libpmix.so.2", "/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so.2",
	"/usr/lib/aarch64-linux-gnu/pmix2/lib/libpmix.so.2", "/usr/lib64/libpmix.so.2", "libpmix.so"}

// Mapped is the file of the libpmix that something else has loaded into this process, such as Open MPI that was not built
// with one of its own; empty: there is none.
func Mapped() string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(maps)) {
		if _, path, ok := strings.Cut(line, "/"); ok && strings.HasPrefix(filepath.Base(path), "libpmix.so") {
			return "/" + strings.TrimSuffix(path, "\n")
		}
	}
	return ""
}

// load opens the first library of these names that is there.
func (c *Client) load(names []string) error {
	var lib *clib.Library
	var tried []string
	for _, name := range names {
		l, err := clib.Open(name)
		if err == nil {
			lib = l
			break
		}
		tried = append(tried, err.Error())
		if errors.Is(err, clib.ErrBuiltWithout) {
			return fmt.Errorf("%w: %w", ErrNoLibrary, err)
		}
	}
	if lib == nil {
		return fmt.Errorf("%w; tried:\n\t%s", ErrNoLibrary, strings.Join(tried, "\n\t"))
	}
	c.path = lib.Path()
	var text uintptr
	for _, s := range []struct {
		at   *uintptr
		name string
	}{
		{&c.fn.init, "PMIx_Init"}, {&c.fn.finalize, "PMIx_Finalize"}, {&c.fn.put, "PMIx_Put"}, {&c.fn.commit, "PMIx_Commit"},
		{&c.fn.fence, "PMIx_Fence"}, {&c.fn.get, "PMIx_Get"},
		{&c.fn.errorString, "PMIx_Error_string"}, {&text, "PMIx_Get_version"},
	} {
		if *s.at = lib.Sym(s.name); *s.at == 0 {
			return fmt.Errorf("%w: %s lacks %s", ErrVersion, c.path, s.name)
		}
	}
	c.version = clib.String(clib.Call(text), 256)
	major, minor, err := version(c.version)
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	if infoLoad := lib.Sym("PMIx_Info_load"); infoLoad != 0 {
		return c.trial(infoLoad)
	}
	if major < 3 || major > 5 {
		return fmt.Errorf("%w: %s is %d.%d, known are 3 to 5", ErrVersion, c.path, major, minor)
	}
	return nil
}

// trial has the library lay an attribute out, and compares that with what encode makes.
func (c *Client) trial(infoLoad uintptr) error {
	const seconds = 1234567
	theirs := make([]byte, infoBytes+64) // in case their structure is larger
	key, value := clib.Bytes(attrTimeout), new(int32)
	*value = seconds
	status := int32(clib.Call(infoLoad, uintptr(unsafe.Pointer(&theirs[0])), uintptr(unsafe.Pointer(&key[0])),
		uintptr(unsafe.Pointer(value)), typeInt))
	ours := encode([]info{{attrTimeout, typeInt, seconds}})
	if status != statusSuccess || string(theirs[:infoBytes]) != string(ours) || strings.Trim(string(theirs[infoBytes:]), "\x00") != "" {
		return fmt.Errorf("%w: %s (%s) lays its structures out in another way", ErrVersion, c.path, c.version)
	}
	return nil
}
