package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// onlyCommands refuses a word that is none of the commands which cmd consists of.
func onlyCommands(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasAvailableSubCommands():
		return usageError(fmt.Errorf("%q: %s has no commands of its own; %[2]s --help tells what it takes", args[0], cmd.CommandPath()))
	}
	return usageError(fmt.Errorf("unknown command %q; %s --help lists the commands", args[0], cmd.CommandPath()))
}

// strictHelp has the help command refuse what is no command: cobra's own prints the help of the last word that is one.
func strictHelp(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	for _, c := range root.Commands() {
		if c.Name() == "help" {
			c.Args = func(_ *cobra.Command, args []string) error {
				cmd, rest, err := root.Find(args)
				if err != nil {
					return usageError(err)
				}
				return onlyCommands(cmd, rest)
			}
		}
	}
}
