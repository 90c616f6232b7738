package main

import "github.com/spf13/cobra"

func templateCommand(env environment) *cobra.Command { return &cobra.Command{Use: "template"} }
