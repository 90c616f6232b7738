package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/fisterra-hpc/fisterra/ib"
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
	)
	cmd := &cobra.Command{
		Use:   "spec",
		Short: "Print the cluster by role and this task's part in it",
		Long: `spec answers for this task what tf4slurm's GetServerDictionary does: which address each parameter
server and worker has, and which of them this task is. Start it with srun. It opens no connection.

--infiniband alone is on. With auto, the default, the address rule is applied where one is given; with
on, cesga-ft2 is the default rule; off keeps host names.`,
		Args: noArguments,
		RunE: func(*cobra.Command, []string) error {
			job, err := slurm.FromEnv(env.lookup)
			if err != nil {
				return usageError(err)
			}
			r, err := roles.of(job.Layout)
			if err != nil {
				return usageError(err)
			}
			f, err := slurm.ParseFormat(format)
			if err != nil {
				return usageError(err)
			}
			address, err := addressOf(infiniband, rule)
			if err != nil {
				return usageError(err)
			}
			cfg := slurm.SpecConfig{Roles: r, Address: address, PortBase: portBase, StrictPorts: strict}
			if job.TFServer != nil {
				cfg.Own = (&ib.Host{}).CheckOwn // TFSERVER is put together by hand, and only the host can tell
			}
			spec, err := slurm.SpecOf(job.Place(), cfg)
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
	addInfiniBand(f, &infiniband, &rule)
	f.StringVar(&format, "format", "json", "json, tf_config, cluster_spec, flags, torch")
	f.IntVar(&portBase, "port-base", slurm.DefaultPortBase, "port of local id 0 where Slurm has reserved none")
	f.BoolVar(&strict, "strict-ports", false, "fail where Slurm has reserved no ports")
	return cmd
}

func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError(fmt.Errorf("%s takes no arguments, got %q", cmd.Name(), args[0]))
	}
	return nil
}

// addressOf is how --infiniband and --address-rule turn hosts into addresses;
// nil keeps the names.
func addressOf(infiniband, rule string) (func(string) (string, error), error) {
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
	r, err := ib.ParseRule(rule, &ib.Host{})
	if err != nil {
		return nil, err
	}
	own, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	return func(host string) (string, error) {
		address, err := r.Address(host)
		if errors.Is(err, ib.ErrOtherHost) && host == own {
			return r.Own(host)
		}
		return address, err
	}, nil
}

// defaultInfiniBandRule is what the reference system applies when its flag is on.
const defaultInfiniBandRule = "cesga-ft2"
