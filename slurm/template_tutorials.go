package slurm

import "slices"

// TutorialVersion is a row of the reference tutorials' table of versions: what the
// two arguments of their job scripts choose.
type TutorialVersion struct {
	TensorFlow string // the first argument; "" stands for none, and for any unknown one
	Python     string // the second argument; "" stands for none
	// OldSystem holds where the site's older system (its module file for release
	// 6.7) is used; the newer one (7.5) has one TensorFlow only.
	OldSystem bool

	TensorFlowVersion string
	PythonVersion     string // "" where the tutorials do not say
}

// TutorialVersions is the reference table.
var TutorialVersions = []TutorialVersion{
	{"", "", true, "1.7.0", "2.7.14"},
	{"10", "", true, "1.0.0", ""},
	{"12", "", true, "1.2.1", ""},
	{"13", "", true, "1.3.1", ""},
	{"17", "2", true, "1.7.0", "2.7.14"},
	{"", "", false, "1.7.0", "2.7.15"},
	{"17", "2", false, "1.7.0", "2.7.15"},
	{"17", "3", false, "1.7.0", "3.7.0"},
}

// Tutorial is one of the reference tutorials' job scripts.
type Tutorial struct {
	Name  string
	About string
	Batch Batch
}

// Tutorials are the reference tutorials' jobs with their sizes, times and
// partitions, each with the program of this project that does the same. The
// serial ones are one server and one worker here.
var Tutorials = []Tutorial{
	{"with-hooks", "a shared step on the server, ten steps of 10 s, then all stop (examples/sleep, built beside the script)", distributed("thinnodes", "./sleep")},
	{"mnist-01", "one worker, 50 samples a step", serial()},
	{"mnist-02", "one worker with hooks and summaries", serial()},
	{"mnist-03", "one server and three workers, asynchronous", distributed("cola-corta", "fisterra", "train", "--mode=async", "--batch=50")},
	{"mnist-04", "one server and three workers, synchronous", distributed("cola-corta", "fisterra", "train", "--mode=sync", "--batch=50")},
}

func distributed(partition string, command ...string) Batch {
	return Batch{Nodes: 1, TasksPerNode: 4, CPUsPerTask: 6, Time: "00:05:00", Partition: partition, Memory: MemoryPerCPU, Command: command}
}

func serial() Batch {
	return Batch{Nodes: 1, TasksPerNode: 2, CPUsPerTask: 1, Time: "00:10:00", MemoryPerTask: 10240, Command: []string{"fisterra", "train", "--batch=50"}}
}

// TutorialNamed finds a tutorial by its name.
func TutorialNamed(name string) (Tutorial, bool) {
	i := slices.IndexFunc(Tutorials, func(t Tutorial) bool { return t.Name == name })
	if i < 0 {
		return Tutorial{}, false
	}
	return Tutorials[i], true
}
