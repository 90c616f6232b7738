// Package fisterra is the root of a runtime that trains models with a
// parameter server, or with collectives, on HPC clusters. It holds no code: see
// mpi for messages, collective for collectives, ps for the parameter server, and
// cmd/fisterra for the command. ARCHITECTURE.md tells how they fit together.
package fisterra
