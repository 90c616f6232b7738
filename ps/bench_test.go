package ps

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/mpi/launch"
)

// What a rank that a benchmark has started is to do.
const benchVariable = "FISTERRA_PS_BENCH"

type benchJob struct {
	Transport  string
	ValueBytes int
	N          int
}

type benchReport struct {
	What       string
	P50Micros  float64
	MiBPerSec  float64 // with many requests in flight
	FinalRight bool
}

// BenchmarkPushPull measures one worker and one server, two processes: the
// median time of a push, a pull and both at once, waited for one by one, and the
// throughput with a window of 40 under way. The server applies plain SGD. The result
// is checked before it is reported.
func BenchmarkPushPull(b *testing.B) {
	for _, transport := range []string{"tcp", "shm"} {
		for _, n := range []int{4 << 10, 64 << 10, 1 << 20, 4 << 20} {
			b.Run(fmt.Sprintf("%s/%dKiB", transport, n>>10), func(b *testing.B) {
				job, _ := json.Marshal(benchJob{transport, n, max(b.N, 20)})
				var out, log bytes.Buffer
				outcome, err := launch.Run(context.Background(), launch.Config{
					Ranks: 2, Program: os.Args[0], Env: []string{benchVariable + "=" + string(job)}, Stdout: &out, Stderr: &log, Timeout: patience,
				})
				if err != nil || outcome.Code != 0 {
					b.Fatalf("%+v %v\n%s%s", outcome, err, &out, &log)
				}
				b.ReportMetric(0, "ns/op")
				for s := bufio.NewScanner(&out); s.Scan(); {
					var r benchReport
					if err := json.Unmarshal(s.Bytes(), &r); err != nil {
						b.Fatalf("%v: %s", err, s.Text())
					}
					if !r.FinalRight {
						b.Fatalf("%s: the values are wrong", r.What)
					}
					b.ReportMetric(r.P50Micros, r.What+"-µs")
					if r.MiBPerSec > 0 {
						b.ReportMetric(r.MiBPerSec, r.What+"-MiB/s")
					}
				}
			})
		}
	}
}

// benchRank is a rank's part of the benchmark.
func benchRank(text string) error {
	var job benchJob
	if err := json.Unmarshal([]byte(text), &job); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	world, err := mpi.Init(ctx, &mpi.Config{Transport: job.Transport})
	if err != nil {
		return err
	}
	defer world.Close(ctx)
	elems := job.ValueBytes / 4
	cfg := Config{Comm: world.Comm(), Cluster: Counts(1, 1), Tables: []Table{{"w", elems, Float32}}, Rule: Rule{Rate: 1}, Window: 64}
	if world.Rank() == 0 {
		server, err := NewServer(cfg)
		if err != nil {
			return err
		}
		_, err = server.Serve(ctx)
		return err
	}
	w, err := NewWorker(cfg)
	if err != nil {
		return err
	}
	if err := benchWorker(ctx, w, elems, job.N); err != nil {
		return err
	}
	_, err = w.Finish(ctx, 0, 0)
	return err
}

func benchWorker(ctx context.Context, w *Worker, elems, n int) error {
	grad, values := sequence[float32](elems, -1, 0), make([]float32, elems)
	if _, err := Set(ctx, w, "w", 0, values, 0).Wait(ctx); err != nil {
		return err
	}
	pushes := 0
	const flight = 40
	for _, what := range []string{"push", "pull", "pushpull"} {
		issue := func() *Future {
			switch what {
			case "push":
				pushes++
				return Push(ctx, w, "w", grad, Contribution{})
			case "pull":
				return Pull(ctx, w, "w", values)
			}
			pushes++
			return PushPull(ctx, w, "w", grad, values, Contribution{})
		}
		took := make([]time.Duration, n)
		for i := range took {
			begin := time.Now()
			if _, err := issue().Wait(ctx); err != nil {
				return err
			}
			took[i] = time.Since(begin)
		}
		slices.Sort(took)
		r := benchReport{What: what, P50Micros: float64(took[n/2].Nanoseconds()) / 1e3}
		if what == "push" { // pulls in flight would share one buffer
			begin := time.Now()
			var under []*Future
			for range n {
				if len(under) == flight {
					if _, err := under[0].Wait(ctx); err != nil {
						return err
					}
					under = under[1:]
				}
				under = append(under, issue())
			}
			for _, f := range under {
				if _, err := f.Wait(ctx); err != nil {
					return err
				}
			}
			r.MiBPerSec = float64(n) * float64(elems*4) / (1 << 20) / time.Since(begin).Seconds()
		}
		if _, err := Pull(ctx, w, "w", values).Wait(ctx); err != nil {
			return err
		}
		r.FinalRight = values[0] == float32(pushes) && values[elems-1] == float32(pushes)
		line, _ := json.Marshal(r)
		fmt.Println(string(line))
	}
	return nil
}

// TestBenchmarkedExchange runs the benchmark's processes once, so that it
// cannot rot.
func TestBenchmarkedExchange(t *testing.T) {
	for _, transport := range []string{"tcp", "shm"} {
		job, _ := json.Marshal(benchJob{transport, 256 << 10, 20})
		var out, log bytes.Buffer
		outcome, err := launch.Run(context.Background(), launch.Config{
			Ranks: 2, Program: os.Args[0], Env: []string{benchVariable + "=" + string(job)}, Stdout: &out, Stderr: &log, Timeout: patience,
		})
		if err != nil || outcome.Code != 0 || bytes.Count(out.Bytes(), []byte(strconv.Quote("FinalRight")+":true")) != 3 {
			t.Fatalf("%s: %+v %v\n%s%s", transport, outcome, err, &out, &log)
		}
	}
}
