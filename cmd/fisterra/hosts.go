package main

import (
	"errors"
	"fmt"

	"github.com/fisterra-hpc/fisterra/slurm"
	"github.com/spf13/cobra"
)

func hostsCommand(env environment) *cobra.Command {
	var compress bool
	cmd := &cobra.Command{
		Use:   "hosts [--compress] EXPRESSION...",
		Short: "Expand or compress a host list in Slurm's syntax",
		Long: `hosts prints the names that a host list stands for, one per line, in Slurm's order with repeats
kept: fisterra hosts 'n[1-3,7],gpu-a[01-04]'. With --compress it prints one expression instead, as Slurm writes it.
It does not need Slurm.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError(errors.New("hosts: no expression; for example: fisterra hosts 'n[1-3]'"))
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var names []string
			for _, expr := range args { // each is whole: a bracket does not go on in the next
				more, err := slurm.Expand(expr)
				if err != nil {
					return usageError(err)
				}
				if len(more) > slurm.MaxHosts-len(names) {
					return usageError(fmt.Errorf("hosts: %d names or more, the limit is %d", len(names)+len(more), slurm.MaxHosts))
				}
				names = append(names, more...)
			}
			if len(names) == 0 {
				return usageError(fmt.Errorf("hosts %q: no names; for example: fisterra hosts 'n[1-3]'", args))
			}
			if compress {
				text, err := slurm.Compress(names)
				if err != nil {
					return usageError(err)
				}
				fmt.Fprintln(env.stdout, text)
				return nil
			}
			for _, n := range names {
				fmt.Fprintln(env.stdout, n)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&compress, "compress", false, "print one expression instead of names")
	return cmd
}
