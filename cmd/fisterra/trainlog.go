package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps/train"
)

// openLog opens this process's log: notices and warnings on stderr (everything with -v),
// and everything in its file where there is an output directory.
func (t *trainFlags) openLog(env environment, w *mpi.World, name string) (*slog.Logger, func(), error) {
	level := train.Notice
	if t.verbose {
		level = slog.LevelInfo
	}
	terminal := slog.NewTextHandler(env.stderr, &slog.HandlerOptions{Level: level})
	if t.out == "" {
		return slog.New(terminal).With("rank", w.Rank()), func() {}, nil
	}
	if err := os.MkdirAll(t.out, 0o755); err != nil {
		return nil, nil, directoryError(fmt.Errorf("--out: %w", err))
	}
	// A run that resumes goes on in the same file.
	f, err := os.OpenFile(filepath.Join(t.out, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, nil, directoryError(fmt.Errorf("--out: %w", err))
	}
	file := slog.NewTextHandler(io.Writer(f), &slog.HandlerOptions{Level: slog.LevelInfo})
	log := slog.New(slog.NewMultiHandler(terminal, file)).With("rank", w.Rank())
	return log, func() { f.Close() }, nil
}

// introduce logs who this process is. From then on signals are answered in the log.
func introduce(log *slog.Logger, w *mpi.World, name string) {
	log.Info("started", "name", name, "launcher", w.Launcher(), "ranks", w.Size(), "host", w.Host(w.Rank()), "pid", os.Getpid())
	log.Info(choiceLine(w))
	for _, line := range transportLines(w) {
		log.Info(line)
	}
}
