package main

import "github.com/spf13/cobra"

func trainCommand(env environment) *cobra.Command { return &cobra.Command{Use: "train"} }
