package mpi

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/fisterra-hpc/fisterra/internal/wire"
)

// inherit takes over the descriptor that a variable of Fisterra's launcher names, and does not pass it on to children.
// It first looks at what the descriptor is: a program between the launcher and this rank may have closed it, and this
// process may since have opened something else under its number, which must be left alone.
func inherit(variable string, fd int) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	kind := st.Mode & unix.S_IFMT
	var want string
	var fits bool
	switch variable {
	case wire.EnvAliveFD:
		want, fits = "pipe", kind == unix.S_IFIFO
	case wire.EnvSecretFD:
		// The Go runtime has regular files open, too, but the kernel's own, whose size is given as 0.
		want, fits = "pipe or file of the job's secret", kind == unix.S_IFIFO || kind == unix.S_IFREG && st.Size == wire.SecretBytes
	case wire.EnvRootFD:
		want, fits = "listening socket", kind == unix.S_IFSOCK
	}
	if err == nil && !fits {
		err = errors.New("something else has that number")
	}
	if err != nil {
		return nil, fmt.Errorf("%s is %d, must be the launcher's %s: %w; the program that starts this rank closes the descriptors "+
			"that it inherits, and must pass them on (Python's subprocess does with close_fds=False), or the rank has used it already", variable, fd, want, err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), variable), nil
}
