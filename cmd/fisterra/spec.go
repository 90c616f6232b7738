package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/collective"
	"github.com/fisterra-hpc/fisterra/ib"
	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/slurm"
	"github.com/spf13/cobra"
)

func specCommand(env environment) *cobra.Command {
	var (
		roles      roleFlags
		infiniband string
		rule       string
		format     string
		portBase   int
		strict     bool
		asking     asking
	)
	cmd := &cobra.Command{
		Use:   "spec",
		Short: "Print the cluster by role and this task's part in it",
		Long: `spec answers for this task what tf4slurm's GetServerDictionary does: which address each parameter
server and worker has, and which of them this task is. Start it with srun. It opens no connection, but
with an address rule that only each host can answer, an interface: then all tasks of the step run spec,
and tell each other.

--infiniband alone is on. With auto, the default, the address rule is applied where one is given; with
on, cesga-ft2 is the default rule; off keeps host names.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if portBase < 1 {
				return usageError(fmt.Errorf("--port-base %d: want a port from 1", portBase))
			}
			job, err := slurm.FromEnv(env.lookup)
			if err != nil {
				return usageError(err)
			}
			r, err := roles.assign(job.Layout)
			if err != nil {
				return usageError(err)
			}
			f, err := slurm.ParseFormat(format)
			if err != nil {
				return usageError(fmt.Errorf("--format: %w", err))
			}
			address, err := addressRule(infiniband, rule)
			if err != nil {
				return usageError(err)
			}
			cfg := slurm.SpecConfig{Roles: r, PortBase: portBase, StrictPorts: strict}
			if address != nil {
				cfg.Address = address.Address
			}
			if job.TFServer != nil {
				cfg.Own = (&ib.Host{}).CheckOwn // TFSERVER is put together by hand, and only the host can tell
			}
			if job.TFServer == nil && address != nil && onlyHostsKnow(address, job.Layout.Nodes) {
				if cfg.Address, err = asking.addresses(cmd.Context(), env, job, address); err != nil {
					return err
				}
			}
			spec, err := slurm.SpecOf(job.Place(), cfg)
			if errors.Is(err, slurm.ErrRange) {
				err = fmt.Errorf("--port-base: %w", err)
			}
			if err != nil {
				return usageError(err)
			}
			text, err := spec.Encode(f)
			if err != nil {
				return usageError(err)
			}
			fmt.Fprint(env.stdout, text)
			return nil
		},
	}
	f := cmd.Flags()
	roles.add(f)
	addInfiniBand(f, "the address rule, written with =: auto (where one is given), on (cesga-ft2 unless another is), off (host names)", &infiniband, &rule)
	f.StringVar(&format, "format", "json", "json, tf_config, cluster_spec, flags, torch")
	f.IntVar(&portBase, "port-base", slurm.DefaultPortBase, "port of local id 0 where Slurm has reserved none")
	f.BoolVar(&strict, "strict-ports", false, "fail where Slurm has reserved no ports")
	f.DurationVar(&asking.patience, "start-timeout", time.Minute, "how long to wait for the other tasks, where they must be asked")
	f.StringVar(&asking.secretDir, "secret-dir", "", "directory on a shared file system for the key by which they know each other, where munge does not answer")
	return cmd
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := ""
	if cmd.Flags().Changed("infiniband") && slices.Contains(infiniBandValues, args[0]) {
		hint = fmt.Sprintf(": --infiniband alone is on, and its value stands after a =; write --infiniband=%s", args[0])
	}
	return usageError(fmt.Errorf("%s takes no arguments, got %q%s", cmd.Name(), args[0], hint))
}

// addressRule is how --infiniband and --address-rule turn hosts into addresses;
// nil keeps the names.
func addressRule(infiniband, rule string) (ib.Rule, error) {
	switch infiniband {
	case "off":
		return nil, nil
	case "auto":
		if rule == "" {
			return nil, nil
		}
	case "on":
		if rule == "" {
			rule = defaultInfiniBandRule
		}
	default:
		return nil, fmt.Errorf("--infiniband=%s: want auto, on or off", infiniband)
	}
	return ib.ParseRule(rule, &ib.Host{})
}

// onlyHostsKnow reports whether the rule leaves it to other hosts than this one to
// tell their addresses.
func onlyHostsKnow(rule ib.Rule, hosts []string) bool {
	return slices.ContainsFunc(hosts, func(host string) bool {
		_, err := rule.Address(host)
		return errors.Is(err, ib.ErrOtherHost)
	})
}

// asking is how the tasks of a step tell each other what only their hosts know.
type asking struct {
	patience  time.Duration
	secretDir string
}

// told is one host's answer.
type told struct{ Host, Address, Error string }

// tell is this host's answer. host is its name in the step, which may differ from what it calls itself: many hosts
// have their domain in their own name.
func tell(rule ib.Rule, host string) told {
	address, err := rule.Own(host)
	if err != nil {
		return told{Host: host, Error: err.Error()}
	}
	return told{Host: host, Address: address}
}

// addresses asks a task of every node for the address that the rule gives to its
// own host. All tasks of the step call it. They meet as the ranks of a program do, but by the step's
// own variables: what a process manager has for them can be read only once, and is left to
// the program that spec is run for.
func (a *asking) addresses(ctx context.Context, env environment, job *slurm.Job, rule ib.Rule) (func(string) (string, error), error) {
	if err := checkStartTimeout(a.patience); err != nil {
		return nil, usageError(err)
	}
	w, err := mpi.Init(ctx, &mpi.Config{
		Lookup: func(name string) (string, bool) {
			if !strings.HasPrefix(name, "SLURM") {
				return "", false
			}
			return env.lookup(name)
		},
		Transport: "tcp", InfiniBand: "off", SecretDir: a.secretDir, StartTimeout: a.patience,
		Log: slog.New(slog.NewTextHandler(env.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, initError(fmt.Errorf("spec: the tasks of the step, which must all run it with this address rule: %w", err))
	}
	all, err := exchange(ctx, w, tell(rule, job.Layout.Nodes[job.Node]), a.patience)
	if closeErr := closeWorld(ctx, w, a.patience); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, fmt.Errorf("spec: addresses of the other hosts: %w", err)
	}
	return func(host string) (string, error) {
		for _, x := range all {
			switch {
			case x.Host != host:
			case x.Error != "":
				return "", errors.New(x.Error)
			default:
				return x.Address, nil
			}
		}
		return "", fmt.Errorf("no task on %s has told its address", host)
	}, nil
}

// exchange gives every rank what all ranks tell. An error that is too long, as one that lists the addresses of many
// interfaces, is cut to its beginning: the others would wait for a rank that could not tell it.
func exchange(ctx context.Context, w *mpi.World, own told, patience time.Duration) ([]told, error) {
	const room = 2 << 10
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := json.Marshal(own)
	for n := len(own.Error) / 2; err == nil && len(text) > room && n > 0; n /= 2 {
		own.Error = own.Error[:n] + " ..."
		text, err = json.Marshal(own)
	}
	if err != nil {
		return nil, err
	}
	if len(text) > room {
		return nil, fmt.Errorf("%d B of %.80s...: more than %d", len(text), text, room)
	}
	send, recv := make([]byte, room), make([]byte, room*w.Size())
	copy(send, text)
	if err := collective.Allgather(ctx, w.Comm(), send, recv); err != nil {
		return nil, err
	}
	all := make([]told, w.Size())
	for i := range all {
		if err := json.Unmarshal(bytes.TrimRight(recv[i*room:(i+1)*room], "\x00"), &all[i]); err != nil {
			return nil, fmt.Errorf("of rank %d: %w", i, err)
		}
	}
	return all, nil
}

// defaultInfiniBandRule is what the reference system applies when its flag is on.
const defaultInfiniBandRule = "cesga-ft2"
