package collective

import (
	"path"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// What the goroutines of a rank are at, for the line of a log that tells who is waited for.

// stackBytes bounds what is told of a rank's stacks, which go into one line of a log.
const stackBytes = 4 << 10

// oneStackBytes bounds one of them, so that a deep recursion does not hide the others.
const oneStackBytes = stackBytes / 4

// stacksKept is how long the text of the stacks is good for all that ask: while they are taken the program stands still.
const stacksKept = time.Second

// stacks is what was last told of the goroutines' stacks.
type stacks struct {
	told  string
	taken time.Time
}

// text takes the stacks unless that has just been done.
func (k *stacks) text(now time.Time, take func() string) string {
	if k.taken.IsZero() || now.Sub(k.taken) >= stacksKept {
		k.told, k.taken = "its stacks: "+take(), now
	}
	return k.told
}

// helpers are beginnings of the names of functions in which goroutines of the library itself begin, and of packages of Go's
// library in which some do. Such goroutines say nothing about the program, and there are some for each peer.
var helpers = func() []string {
	own := path.Dir(reflect.TypeFor[state]().PkgPath())
	return []string{own + "/mpi.", own + "/mpi/native.", own + "/mpi/transport/shm.", own + "/mpi/transport/tcp.", own + "/internal/wire.",
		own + "/collective.(*state).lookOut", own + "/collective.bothDone", "os/signal."}
}()

// programStacks is what all goroutines are doing but the helpers.
func programStacks() string {
	all := make([]byte, 256<<10)
	all = all[:runtime.Stack(all, true)]
	modules := programModules()
	var b strings.Builder
	for stack := range strings.SplitSeq(string(all), "\n\n") {
		line, begins := briefly(stack, modules)
		if slices.ContainsFunc(helpers, func(helper string) bool { return strings.HasPrefix(begins, helper) }) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(cut(line, oneStackBytes))
		if b.Len() >= stackBytes {
			break
		}
	}
	return cut(b.String(), stackBytes)
}

// cut is at most n bytes of a text.
func cut(text string, n int) string {
	const more = " …"
	if len(text) <= n {
		return text
	}
	return text[:n-len(more)] + more
}

// briefly is a stack as one line, callers after what they call: "goroutine 1 [select]: ps.(*Worker).Push (push.go:31) <
// main.main (main.go:9)". Calls inside the runtime and its library are left out. begins is the function in which the
// goroutine begins: the outermost that is not left out or, if all are, the outermost of all.
func briefly(stack string, modules []string) (line, begins string) {
	lines := strings.Split(strings.TrimSpace(stack), "\n")
	var calls []string
	for i := 1; i+1 < len(lines); i += 2 { // the function with its arguments, and where it is
		function, place := lines[i], strings.TrimSpace(lines[i+1])
		if strings.HasPrefix(function, "created by ") {
			break
		}
		if end := strings.LastIndexByte(function, '('); end > 0 {
			function = function[:end]
		}
		if standard(function, modules) {
			if len(calls) == 0 {
				begins = function
			}
			continue
		}
		begins = function
		place, _, _ = strings.Cut(place, " ")
		calls = append(calls, path.Base(function)+" ("+path.Base(place)+")")
	}
	return lines[0] + " " + strings.Join(calls, " < "), begins
}

// programModules are the paths of the modules that the program is built of.
func programModules() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	modules := []string{info.Main.Path}
	for _, m := range info.Deps {
		modules = append(modules, m.Path)
	}
	return modules
}

// standard reports whether a function is of the runtime's library: no domain begins its package's path, as one must of
// what is fetched, and it is in no module of the program. Where its file is tells nothing in a program built with -trimpath.
func standard(function string, modules []string) bool {
	dir, name := path.Split(function)
	name, _, _ = strings.Cut(name, ".")
	pkg := dir + name
	if first, _, long := strings.Cut(pkg, "/"); pkg == "main" || long && strings.Contains(first, ".") {
		return false
	}
	return !slices.ContainsFunc(modules, func(m string) bool { return pkg == m || m != "" && strings.HasPrefix(pkg, m+"/") })
}
