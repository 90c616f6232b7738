package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fisterra-hpc/fisterra/internal/lab"
)

var update = flag.Bool("update", false, "write the golden files anew")

// command runs the command in this process, with this environment.
func command(vars map[string]string, args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = run(args, environment{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, lookup: func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}})
	return out.String(), errs.String(), code
}

func TestTemplateGolden(t *testing.T) {
	for name, line := range map[string]string{
		"default":  "--program fisterra",
		"workers":  "--program fisterra --nodes 2 --ntasks-per-node 3 --workers 5 --placement spread -- --mode async --epochs 5",
		"life":     "--program fisterra -N 4 --ntasks-per-node 1 -t 30 -p low --signal USR1@60 --requeue --no-kill --checkpoint /scratch/me/run --mpi pmi2 --memory 8G",
		"site":     "--program /opt/fisterra -J digits -A phys.42 -C haswell&ib -c 6 --module gcc/12.2 --module openmpi/4.1 --memory per-cpu -o digits-%j.out -e digits-%j.err -- --transport mpi --infiniband",
		"array":    "--program fisterra --array 0-3%2 --ntasks-per-node 2 --checkpoint runs --out results",
		"roles":    "--program fisterra --ntasks-per-node 3 --roles worker,ps,worker",
		"tutorial": "--program fisterra --tutorial mnist-04 --version-args 17,3 --partition main --memory site -- --epochs 1",
		"hooks":    "--tutorial with-hooks",
		"data":     "--program fisterra --checkpoint state -- --data /not/here --checkpoint-every 100 --aggregate 2",
	} {
		got, stderr, code := command(nil, append([]string{"template", "slurm"}, strings.Fields(line)...)...)
		if code != 0 {
			t.Errorf("%s: exit %d, %s", name, code, stderr)
			continue
		}
		file := filepath.Join("testdata", "template", name+".sh")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil || got != string(want) {
			t.Errorf("%s differs from %s (%v):\n%s", line, file, err, got)
		}
	}
}

// Without --program the script starts the very program that wrote it.
func TestTemplateNamesItself(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", filepath.Dir(self))
	got, stderr, code := command(nil, "template", "slurm", "--requeue", "-o", "no-such-directory/log")
	if code != 0 || !strings.Contains(got, " "+self+" train\n") {
		t.Errorf("exit %d, want %s in\n%s", code, self, got)
	}
	for _, note := range []string{"begins anew", "no-such-directory", self + ", and " + os.TempDir()} {
		if !strings.Contains(stderr, note) {
			t.Errorf("no note of %q: %s", note, stderr)
		}
	}
	if _, stderr, _ := command(nil, "template", "slurm", "--program", self); stderr != "" {
		t.Errorf("a note about a program that was chosen: %s", stderr)
	}
}

// What a tutorial has can be taken out, and a script over the library alone waits for the ranks that notice nothing.
func TestTemplateLeavesOut(t *testing.T) {
	for line, never := range map[string][]string{
		"--tutorial mnist-04 --partition= --time= --version-args=": {"--partition", "--time"},
		"--mpi pmi2 -- --transport tcp":                            {"--wait=120"},
		"--mpi pmi2 -- --infiniband=off":                           {"--wait=120"},
		"--mpi pmi2 -- --mode async":                               {"--wait=120"},
		"--mpi pmix":                                               {"--wait=120"},
		"-- --aggregate 2":                                         {"--wait=120"},
	} {
		got, stderr, code := command(nil, append([]string{"template", "slurm", "--program", "fisterra"}, strings.Fields(line)...)...)
		for _, text := range never {
			if code != 0 || strings.Contains(got, text) {
				t.Errorf("%s: exit %d, %s, want no %s in\n%s", line, code, stderr, text, got)
			}
		}
	}
	for _, line := range []string{"", "--mpi pmi2", "-- --transport mpi"} {
		if got, _, _ := command(nil, append([]string{"template", "slurm"}, strings.Fields(line)...)...); !strings.Contains(got, "--wait=120") {
			t.Errorf("%s: want --wait=120 in\n%s", line, got)
		}
	}
}

// TestTemplateRefusesGoRun: a job would find that program deleted.
func TestTemplateRefusesGoRun(t *testing.T) {
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 { // go run finds what it has built the second time, elsewhere
		cmd := lab.Command(t.Context(), t, "go", "run", "./cmd/fisterra", "template", "slurm")
		cmd.Dir = root
		if r := cmd.Run(); r.Code == 0 || r.Stdout != "" || !strings.Contains(r.Stderr, "make build") {
			t.Errorf("run %d: %v", i, r)
		}
	}
	for file, want := range map[string]bool{
		"/tmp/go-build1872069137/b001/exe/fisterra":                                                               true,
		"/home/me/.cache/go-build/6b/6b0c007f6b0b22708dbad12fa82ca8d15bc161453b520474ef5ca4717d683b63-d/fisterra": true,
		"/home/me/go-build/bin/fisterra":                                                                          false,
		"/tmp/go-build1872069137/b001/fisterra.test":                                                              false,
	} {
		if isGoRuns(file) != want {
			t.Errorf("%s of go run: %v", file, !want)
		}
	}
}

func TestIsBelow(t *testing.T) {
	for file, want := range map[string]bool{"/tmp/x/fisterra": true, "/tmpfs/fisterra": false, "/home/me/fisterra": false, "fisterra": false, "./sleep": false} {
		if isBelow(file, "/tmp") != want {
			t.Errorf("%s below /tmp: %v", file, !want)
		}
	}
}

func TestTemplateRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"--nodes 0":                                   "--nodes 0",
		"--cpus-per-task 0":                           "--cpus-per-task 0",
		"--nodes many":                                "many",
		"--time soon":                                 `--time`,
		"--memory much":                               `--memory "much"`,
		"--memory 0":                                  `--memory "0"`,
		"--ps 4":                                      "--workers 0 for 4 ranks (--nodes 1, --ntasks-per-node 4)",
		"--ps 1 --workers 2":                          "4 tasks",
		"--roles ps,worker":                           "--roles: more tasks than roles: 4 tasks, 2 roles",
		"--roles ps,boss,worker,worker":               "--roles",
		"--roles ps,worker --ps 1":                    "exclude each other",
		"--placement middle":                          "--placement",
		"-- --help":                                   "would only print it",
		"--signal USR1@60 --requeue":                  "needs --checkpoint",
		"--roles worker,ps --placement last":          "exclude each other",
		"--array 0-3 -- --out x":                      "--out is a flag of template slurm, too",
		"-- --out x":                                  "--out is a flag of template slurm, too",
		"--out y -- --out x":                          "--out is a flag of template slurm, too",
		"--signal B:USR1@60":                          "--signal",
		"--signal TERM@60 --requeue --checkpoint x":   "scancel",
		"--signal HUP@60":                             "does not save on HUP",
		"--mpi pmix;v4":                               "--mpi",
		"--mpi list":                                  "print its list",
		"-- --infiniband off":                         "--infiniband=off",
		"--tutorial mnist-05":                         "mnist-04",
		"--version-args 18,3":                         `know "", "10", "12", "13", "17,2", "17,3"`,
		"train":                                       `"train" is no flag`,
		"--nodes 1 train -- --epochs 1":               `"train" is no flag`,
		"-- --epoch 1":                                "--epoch",
		"-- --epochs 1 more":                          `"more"`,
		"-- --epochs some":                            "some",
		"--module gcc;rm":                             "--module",
		"-- --checkpoint-every 5":                     "--checkpoint-every 5 without --checkpoint",
		"-- --checkpoint-every -5":                    "--checkpoint-every -5",
		"-- --lr NaN":                                 "--lr NaN",
		"-- --lr Inf":                                 "--lr +Inf",
		"-- --aggregate 4":                            "--aggregate 4: want at most",
		"-- --aggregate -1":                           "--aggregate -1",
		"--ps 0 --workers 4 -- --mode async":          "--mode async without parameter servers",
		"--roles worker,worker -- --aggregate 2":      "--aggregate 2 without parameter servers",
		"--nodes 20 -- --batch 50":                    "--batch 50 for 79 workers",
		"--nodes 20 --tutorial mnist-04":              "--batch 50 for 79 workers",
		"--ps 2 -- --batch 1":                         "--batch 1 for 2 workers",
		"--roles ps,chief,worker,worker -- --batch 2": "--batch 2 for 3 workers",
		"--roles ps,worker,worker,evaluator":          "evaluator",
		"-- --transport ib":                           "--transport",
		"-- --infiniband --transport tcp":             "--transport tcp cannot do RDMA",
		"-- --peer-timeout -1s":                       "--peer-timeout -1s",
		"-- --address-rule cesga-ft2:abc":             "--address-rule",
		"-- --model gpt":                              "--model",
		"-- --ps 2":                                   "--ps is a flag of template slurm",
		"-- --checkpoint state":                       "--checkpoint is a flag of template slurm",
		"--tutorial with-hooks --ps 1":                "--ps is for fisterra train, but the program is ./sleep",
		"--tutorial with-hooks --checkpoint d":        "--checkpoint is for fisterra train",
		"--tutorial with-hooks --placement last":      "--placement is for fisterra train",
		"--partition p --array 1- --nodes 2":          "--array",
	} {
		out, stderr, code := command(nil, append([]string{"template", "slurm"}, strings.Fields(line)...)...)
		if code != exitUsage || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, want %d and %q in: %s%s", line, code, exitUsage, want, stderr, out)
		}
	}
}

func TestTemplateTutorials(t *testing.T) {
	got, stderr, code := command(nil, "template", "tutorials")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{"with-hooks", "mnist-04", "TensorFlow 1.2.1 on the older system", "TensorFlow 1.7.0 with Python 3.7.0 on the newer system"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}
