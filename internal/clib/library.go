//go:build linux && (amd64 || arm64) && !purego_off

package clib

import (
	"fmt"
	"unsafe"

	"github.com/ebitengine/purego"
)

// Available reports whether this binary can open C libraries.
const Available = true

// Library is a C library in this process. Libraries are never unloaded: MPI, PMIx and
// UCX leave threads and exit handlers behind that would run unmapped code.
type Library struct {
	handle uintptr
	name   string
}

// Open loads the library of the given file or soname, binding all of its symbols now
// and offering them to the libraries that it loads itself (MPI components look their
// own library up that way). A name without a slash is searched as dlopen(3) says. The
// error wraps [ErrNotLoaded] and carries the loader's own message.
func Open(name string) (*Library, error) {
	if name == "" {
		return nil, fmt.Errorf("%w: empty library name", ErrNotLoaded)
	}
	h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, notLoaded(name, err)
	}
	return &Library{handle: h, name: name}, nil
}

// Sym returns the address of a symbol in the library or one it depends on, 0 if there
// is none.
func (l *Library) Sym(name string) uintptr {
	p, err := purego.Dlsym(l.handle, name)
	if err != nil {
		return 0
	}
	return p
}

// Global returns the address of a symbol in any library that this process has loaded
// so far, 0 if there is none.
func Global(name string) uintptr {
	p, err := purego.Dlsym(purego.RTLD_DEFAULT, name)
	if err != nil {
		return 0
	}
	return p
}

// Path returns the file the loader found for the library, or the name it was opened
// by where the loader does not tell.
func (l *Library) Path() string {
	const linkMap = 2 // RTLD_DI_LINKMAP
	dlinfo := Global("dlinfo")
	if dlinfo == 0 {
		return l.name
	}
	m := new(uintptr)
	if int32(Call(dlinfo, l.handle, linkMap, uintptr(unsafe.Pointer(m)))) != 0 || *m == 0 {
		return l.name
	}
	// struct link_map { ElfW(Addr) l_addr; char *l_name; ... }
	name := *(*uintptr)(unsafe.Add(Pointer(*m), 8))
	if s := String(name, 4096); s != "" {
		return s
	}
	return l.name
}
