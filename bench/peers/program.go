package main

import (
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

//go:embed c
var sources embed.FS

// program is one of the things compared: how it is started for a group.
type program struct {
	name string
	// can reports whether the program measures the group at all.
	can func(group) bool
	// command is its command line, and env what it needs beyond this process's environment.
	command func(g group, budget time.Duration) (args, env []string)
	// endTime is how long the program may take to end once it has printed every result; then it is ended, and the results
	// count. 0: it has to end by itself.
	endTime time.Duration
}

// finalizeTime is how long a library may take to finalize: MPICH over tcp was seen to stay in it for minutes.
const finalizeTime = 20 * time.Second

// compiled says how a peer's programs are made. Absent compilers are named, not skipped in silence.
type compiled struct {
	compiler string
	flags    []string
	source   string
	libs     []string
}

func (c compiled) build(src, out string) error {
	if _, err := exec.LookPath(c.compiler); err != nil {
		return fmt.Errorf("no %s in PATH (make install-parts)", c.compiler)
	}
	args := append([]string{"-O3", "-march=native", "-o", out}, c.flags...)
	args = append(append(args, filepath.Join(src, c.source)), c.libs...)
	if text, err := exec.Command(c.compiler, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", c.compiler, c.source, err, text)
	}
	return nil
}

// library describes an MPI library as peer: how its programs are compiled and started.
type library struct {
	name, compiler string
	launch         func(g group, cores int) (args, env []string)
}

func openmpi() library {
	return library{"openmpi", "mpicc.openmpi", func(g group, cores int) (args, env []string) {
		args = []string{"mpirun.openmpi", "-n", strconv.Itoa(g.ranks), "--bind-to", "none"}
		if g.transport == "tcp" {
			args = append(args, "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo")
		} else {
			args = append(args, "--mca", "btl", "vader,self")
		}
		if g.ranks > cores {
			args = append(args, "--oversubscribe", "--mca", "mpi_yield_when_idle", "1")
		}
		return args, []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
	}}
}

func mpich() library {
	return library{"mpich", "mpicc.mpich", func(g group, cores int) (args, env []string) {
		args = []string{"mpiexec.mpich", "-n", strconv.Itoa(g.ranks)}
		if g.transport == "tcp" {
			env = append(env, "UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo")
		}
		if g.ranks > cores {
			env = append(env, "MPIR_CVAR_POLLS_BEFORE_YIELD=10")
		}
		return args, env
	}}
}

// peer compiles a library's programs into dir, with the sources below src.
func (l library) peer(src, dir string, level func(library string) string, cores int) (*program, error) {
	binary := map[bool]string{}
	for _, p2p := range []bool{true, false} {
		source := "collectives"
		if p2p {
			source = "p2p"
		}
		binary[p2p] = filepath.Join(dir, source+"."+l.name)
		c := compiled{compiler: l.compiler, source: source + ".c"}
		if err := c.build(src, binary[p2p]); err != nil {
			return nil, err
		}
	}
	return &program{
		name: l.name, endTime: finalizeTime,
		can: func(g group) bool { return !g.overLibrary() || g.over(l.name) },
		command: func(g group, budget time.Duration) ([]string, []string) {
			args, env := l.launch(g, cores)
			thread := level(l.name)
			if g.over(l.name) {
				thread = "serialized" // as Fisterra asks for
			}
			return append(args, binary[g.pointToPoint()], g.op, "--sizes", g.sizeList(),
				"--thread", thread, "--budget-ms", milliseconds(budget)), env
		},
	}, nil
}

// milliseconds is a time as the programs read it, with fractions of one.
func milliseconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds()*1e3, 'f', -1, 64) }

// gloo compiles the Gloo program in dir, below which its ranks meet, too. Gloo moves by TCP and knows collectives only.
func gloo(src, dir string) (*program, error) {
	binary := filepath.Join(dir, "gloo")
	c := compiled{compiler: "g++", flags: []string{"-std=c++17"}, source: "gloo.cc", libs: []string{"-lgloo"}}
	if err := c.build(src, binary); err != nil {
		return nil, err
	}
	return &program{
		name: "gloo",
		can: func(g group) bool {
			return g.transport == "tcp" && slices.Contains([]string{"allreduce", "bcast", "allgather", "alltoall", "barrier"}, g.op)
		},
		command: func(g group, budget time.Duration) ([]string, []string) {
			return []string{binary, g.op, "--ranks", strconv.Itoa(g.ranks), "--dir", dir, "--sizes", g.sizeList(),
				"--budget-ms", milliseconds(budget)}, nil
		},
	}, nil
}

// fisterra runs our own command: by itself, or under the launcher of the library whose messages it takes. Unlike the
// peers it chooses the congestion control of its connections, so that it is told theirs.
func fisterra(binary string, libraries []library, cores int, congestion string) *program {
	return &program{
		name: "fisterra",
		can: func(g group) bool {
			return !g.overLibrary() || slices.ContainsFunc(libraries, func(l library) bool { return g.over(l.name) })
		},
		command: func(g group, budget time.Duration) ([]string, []string) {
			what := []string{"--sizes", g.sizeList(), "--budget", budget.String(), "--format", "json"}
			for _, l := range libraries {
				if g.over(l.name) {
					args, env := l.launch(g, cores)
					args = append(args, binary, "bench", g.op, "--transport", "mpi")
					if !g.pointToPoint() {
						args = append(args, "--collectives", "fisterra")
					}
					return append(args, what...), env
				}
			}
			if g.transport == "tcp" {
				what = append(what, "--congestion-control", congestion)
			}
			return append([]string{binary, "bench", g.op, "-n", strconv.Itoa(g.ranks), "--transport", g.transport}, what...), nil
		},
	}
}

// newBuildDir makes a directory of its own below parent, in which programs are built: whoever removes it
// again removes nobody else's files.
func newBuildDir(parent string) (string, error) {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, "peers-")
	if err != nil {
		return "", err
	}
	return filepath.Abs(dir)
}

// unpack writes the C sources to dir, which holds none yet.
func unpack(dir string) (string, error) {
	return filepath.Join(dir, "c"), os.CopyFS(dir, sources)
}
