package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Words where a command is expected: a word that names no command is an error, also after cobra's own commands.

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

// strict makes cobra's own commands refuse words that are no commands. Else help prints the help of the last word
// that is a command, and completion its own help.
func strict(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			c.Args = func(_ *cobra.Command, args []string) error {
				cmd, rest, err := root.Find(args)
				if err != nil {
					return usageError(err)
				}
				return onlyCommands(cmd, rest)
			}
		case "completion":
			c.Args, c.RunE = onlyCommands, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
			for _, shell := range c.Commands() {
				shell.Args = noArguments
			}
		}
	}
}
