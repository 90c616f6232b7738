// Package wire holds the names and formats that the launcher and the ranks
// share: environment variables, the job's secret, and the authenticated hello
// that opens every connection.
package wire

// Environment variables that Fisterra's launcher gives to each process it starts.
const (
	EnvRank      = "FISTERRA_RANK"       // world rank, 0-based
	EnvSize      = "FISTERRA_SIZE"       // number of ranks
	EnvLocalRank = "FISTERRA_LOCAL_RANK" // rank among those on this host
	EnvLocalSize = "FISTERRA_LOCAL_SIZE" // number of ranks on this host
	EnvJob       = "FISTERRA_JOB"        // job name, unique on this host
	EnvRoot      = "FISTERRA_ROOT"       // host:port where rank 0 listens
	EnvRootFD    = "FISTERRA_ROOT_FD"    // rank 0 only: descriptor of that listening socket; without it rank 0 opens it
	EnvSecretFD  = "FISTERRA_SECRET_FD"  // descriptor from which the job's secret is read
	EnvAliveFD   = "FISTERRA_ALIVE_FD"   // descriptor that reads EOF when the launcher is gone
	EnvRestart   = "FISTERRA_RESTART"    // incarnation of the job, 0 for the first
)

// SecretBytes is the length of a job's secret.
const SecretBytes = 32
