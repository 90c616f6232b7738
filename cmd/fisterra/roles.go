package main

import (
	"fmt"

	"github.com/fisterra-hpc/fisterra/mpi"
	"github.com/fisterra-hpc/fisterra/ps"
	"github.com/fisterra-hpc/fisterra/slurm"
	"github.com/spf13/pflag"
)

// roleFlags say which ranks serve and which work.
type roleFlags struct {
	list        string
	ps          int
	workersFlag int
	placement   string
	flags       *pflag.FlagSet
}

func (r *roleFlags) add(f *pflag.FlagSet) {
	r.flags = f
	f.StringVar(&r.list, "roles", "", "role of each position, such as ps,worker,worker (instead of --ps and --workers)")
	f.IntVar(&r.ps, "ps", 1, "number of parameter servers (one rank alone: 0)")
	f.IntVar(&r.workersFlag, "workers", 0, "number of workers (default: all other ranks; of train that starts its own: 3)")
	f.StringVar(&r.placement, "placement", "first", "where the parameter servers sit: first, spread, last")
}

// parsed is the list of --roles.
func (r *roleFlags) parsed() (slurm.Roles, error) {
	roles, err := slurm.ParseRoles(r.list)
	if err != nil {
		return nil, fmt.Errorf("--roles: %w", err)
	}
	return roles, nil
}

// placed is where --placement puts the servers.
func (r *roleFlags) placed() (slurm.Placement, error) {
	where, err := slurm.ParsePlacement(r.placement)
	if err != nil {
		return where, fmt.Errorf("--placement: %w", err)
	}
	return where, nil
}

// check refuses flags that say the same in two ways, and what no number of ranks makes right.
func (r *roleFlags) check() error {
	for _, name := range []string{"ps", "workers", "placement"} {
		if r.list != "" && r.flags.Changed(name) {
			return fmt.Errorf("--roles %s and --%s %v exclude each other", r.list, name, r.flags.Lookup(name).Value)
		}
	}
	if r.list != "" {
		_, err := r.parsed()
		return err
	}
	if r.ps < 0 {
		return fmt.Errorf("--ps %d: want a number from 0", r.ps)
	}
	if r.flags.Changed("workers") && r.workersFlag < 1 {
		return fmt.Errorf("--workers %d: want a number from 1", r.workersFlag)
	}
	_, err := r.placed()
	return err
}

// servers is how many of so many ranks serve: a rank that is alone works, unless the
// flags say otherwise. It is 0 where they are wrong: assign says why.
func (r *roleFlags) servers(ranks int) int {
	if r.list != "" {
		roles, err := r.parsed()
		if err != nil {
			return 0
		}
		return roles.Count(slurm.PS)
	}
	if ranks == 1 && !r.flags.Changed("ps") && !r.flags.Changed("workers") {
		return 0
	}
	return r.ps
}

// ranks is the number of ranks that the flags ask for, with three workers by default.
func (r *roleFlags) ranks() (int, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	if r.list != "" {
		roles, err := r.parsed()
		return len(roles), err
	}
	workers := r.workersFlag
	if !r.flags.Changed("workers") {
		workers = defaultWorkers
	}
	return r.ps + workers, nil
}

// started is the number of ranks that the launcher has started, below 0 where it does
// not say. That the flags ask for another number is an error.
func (r *roleFlags) started(env environment) (int, error) {
	if err := r.check(); err != nil {
		return 0, err
	}
	l, err := mpi.Detect(env.lookup)
	if err != nil || l.Size < 0 || r.list == "" && !r.flags.Changed("workers") {
		return l.Size, err
	}
	want, err := r.ranks()
	if err == nil && want != l.Size {
		err = fmt.Errorf("%s are %d roles, but %s has started %d ranks", r.text(), want, l.Kind, l.Size)
	}
	return l.Size, err
}

// workers is how many of so many ranks work, 0 where that is not known or cannot be:
// assign says why.
func (r *roleFlags) workers(ranks int) int {
	switch {
	case r.list != "":
		roles, err := r.parsed()
		if err != nil {
			return 0
		}
		cluster, err := ps.NewCluster(roles)
		if err != nil {
			return 0
		}
		return len(cluster.Workers)
	case r.flags.Changed("workers"):
		return r.workersFlag
	}
	return max(0, ranks-r.servers(ranks))
}

const defaultWorkers = 3

// assign gives each position of a layout its role.
func (r *roleFlags) assign(l *slurm.Layout) (slurm.Roles, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if r.list != "" {
		roles, err := r.parsed()
		if err != nil {
			return nil, err
		}
		if err := roles.CheckSize(l.Size()); err != nil {
			return nil, fmt.Errorf("--roles: %w", err)
		}
		return roles, nil
	}
	servers, workers := r.servers(l.Size()), r.workersFlag
	if !r.flags.Changed("workers") {
		workers = l.Size() - servers
		if workers < 1 {
			return nil, fmt.Errorf("--ps %d on %d ranks leaves %d workers: at least 1 is needed", r.ps, l.Size(), workers)
		}
	}
	where, err := r.placed()
	if err != nil {
		return nil, err
	}
	return slurm.CountRoles(servers, workers, where, l)
}

// text is what all ranks must agree on.
func (r *roleFlags) text() string {
	if r.list != "" {
		return r.list
	}
	workers := "the rest"
	if r.flags.Changed("workers") {
		workers = fmt.Sprint(r.workersFlag)
	}
	return fmt.Sprintf("%d ps, %s workers, ps %s", r.ps, workers, r.placement)
}
