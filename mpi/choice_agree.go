package mpi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fisterra-hpc/fisterra/internal/wire"
	"github.com/fisterra-hpc/fisterra/mpi/native"
)

// Ranks that are left the choice of a transport must all choose the same. In a Slurm step they meet first, by what Slurm
// tells each task: a process manager's data for the MPI library can be read only once, and is left for the library.
// Whether ranks meet so follows from the launcher and Config, never from a host. All tell position 0 what they have
// found, and position 0 decides for all. If the choice is Fisterra's own transports, they go on with the same meeting.

// finding is what a rank has found on its host.
type finding struct {
	Rank    int
	Host    string
	Device  string // why no RDMA device is usable; empty if one is
	Library string // the MPI library that would drive it, such as "openmpi 4.1.4"; empty if none could be opened
	Missing string // why no library could be opened
}

// surveyHost finds out what this rank's host has. It opens the library only where there is a device to drive.
func surveyHost(l *origin, survey func() error, library func() (*native.Library, error)) finding {
	f := finding{Rank: l.rank, Host: l.host}
	if err := survey(); err != nil {
		f.Device, _, _ = strings.Cut(err.Error(), "; looked for\n")
		return f
	}
	lib, err := library()
	if err != nil {
		f.Missing, _, _ = strings.Cut(err.Error(), "; tried:\n")
		return f
	}
	f.Library = lib.String()
	return f
}

// lacks says what the rank is without for RDMA; empty: nothing.
func (f finding) lacks() string {
	switch {
	case f.Device != "":
		return "no usable RDMA device"
	case f.Missing != "":
		return "an RDMA device, but not the MPI library that would drive it: " + f.Missing
	}
	return ""
}

func (f finding) String() string {
	has := f.lacks()
	if has == "" {
		has = f.Library
	}
	return fmt.Sprintf("rank %d on %s has %s", f.Rank, f.Host, has)
}

// decide makes the choice that follows from what ranks have found: the MPI library if all ranks can use it and all have
// the same one. A library that cfg names must open where there is a device.
func decide(cfg *Config, found []finding) (choice, error) {
	slices.SortFunc(found, func(a, b finding) int { return cmp.Compare(a.Rank, b.Rank) })
	var lacking []finding
	devices := 0
	for _, f := range found {
		if f.Missing != "" && cfg.MPILibrary != "" {
			return choice{}, fmt.Errorf("mpi: %w: rank %d on %s: %s", ErrTransport, f.Rank, f.Host, f.Missing)
		}
		if f.Device == "" {
			devices++
		}
		if f.lacks() != "" {
			lacking = append(lacking, f)
		}
	}
	c := choice{transport: "auto", byHost: true, warns: true}
	other := slices.IndexFunc(found, func(f finding) bool { return f.Library != found[0].Library })
	switch {
	case devices == 0:
		c.reason, c.warns = own+": no usable RDMA device", false
	case len(lacking) == len(found) && devices == len(found):
		c.reason = own + ": there is " + found[0].lacks()
	case len(lacking) > 0:
		c.reason = own + ": not all ranks can use RDMA: " + lacking[0].String()
		if n := len(lacking) - 1; n > 0 {
			c.reason += fmt.Sprintf("; %d more lack something", n)
		}
	case other > 0:
		c.reason = fmt.Sprintf("%s: the ranks have different MPI libraries: %v, %v", own, found[0], found[other])
	default:
		c = choice{transport: "mpi", byHost: true, reason: "an RDMA device is usable, and the system's MPI library drives it"}
	}
	return c, nil
}

// chooseTogether makes the choice. A process manager's connection can be opened once in a process, and the MPI library needs it. So in a
// Slurm step the ranks first meet without it, on a port that follows from the step's variables, and position 0
// decides. If the choice is our own transports, that meeting simply goes on. If there is no key for such a meeting (no
// munge, no secret directory), and outside a step, each rank decides by its own host alone.
//
// The meeting is the caller's to go on with or close; nil where there was none. It blocks until all ranks have come, ctx
// ends, or StartTimeout is over.
func chooseTogether(ctx context.Context, cfg *Config, l *origin, own finding) (choice, *meeting, error) {
	if l.step == nil {
		c, err := decide(cfg, []finding{own})
		return c, nil, err
	}
	task := *l
	task.kind = BySlurm
	if _, err := findKeyring(ctx, cfg, &task, cfg.lookup()); err != nil {
		if cfg.SecretDir != "" {
			return choice{}, nil, err // the others, which have that directory, would wait for this rank in vain
		}
		// On a cluster without munge all ranks come here, and their process manager may still bring them together.
		// If only this host lacks munge, the other ranks wait for this one in vain: so its choice has to name the reason.
		c, derr := decide(cfg, []finding{own})
		c.reason += fmt.Sprintf("; the ranks of the step could not agree first: %v", err)
		return c, nil, derr
	}
	m, err := meet(ctx, cfg, &task)
	if err == nil {
		var c choice
		if c, err = m.agreeOnTransport(ctx, own); err == nil {
			return c, m, nil
		}
		m.close()
	}
	if errors.Is(err, ErrStartTimeout) {
		err = fmt.Errorf("%w; the ranks were to agree on a transport: with one that is named (Config.Transport, --transport) they need not", err)
	}
	return choice{}, nil, err
}

// verdict is a choice on its way to the ranks.
type verdict struct {
	Transport string
	Reason    string
	Warns     bool
}

// agreeOnTransport tells position 0 what this rank has found, and returns what position 0 decides for all.
func (m *meeting) agreeOnTransport(ctx context.Context, own finding) (choice, error) {
	caller := ctx
	ctx, cancel := context.WithDeadlineCause(ctx, m.deadline, startTimeout(m.cfg.startTimeout()))
	defer cancel()
	var v verdict
	if m.door == nil {
		body, err := m.ask(caller, frameFinding, encodeJSON(own), frameVerdict)
		if err == nil {
			v, err = decodeJSON[verdict](body)
		}
		if err != nil {
			return choice{}, err
		}
	} else {
		came, err := m.collect(ctx, frameFinding, nil)
		var c choice
		if err == nil {
			found := []finding{own}
			for _, j := range came {
				found = append(found, j.finding)
			}
			c, err = decide(m.cfg, found)
		}
		if err != nil {
			turnAway(came, err)
			return choice{}, err
		}
		v = verdict{Transport: c.transport, Reason: c.reason, Warns: c.warns}
		m.sendVerdict(came, v)
	}
	return choice{transport: v.Transport, reason: v.Reason, warns: v.Warns, byHost: true, agreed: true}, nil
}

// sendVerdict tells the ranks the verdict, and listens for what each says next: its card, if the meeting goes on.
func (m *meeting) sendVerdict(came map[int]joiner, v verdict) {
	frame := wire.AppendFrame(nil, frameVerdict, encodeJSON(v))
	for rank, j := range came {
		m.told = append(m.told, j.conn)
		j.conn.SetDeadline(m.deadline.Add(time.Second))
		j.conn.Write(frame) // a rank that does not hear it finds the connection closed, and the others find the rank missing
		go m.hear(rank, j.conn)
	}
}
