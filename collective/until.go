package collective

import "context"

// until is a caller's context that ends also when collectives are called off, for waits in the system's MPI
// library: that takes nothing back but receives, and only the end of a context gets a caller out of it.
// The library looks at Err while it polls. What Done needs is made when it is asked for, by a caller that
// another one polls for: nothing is allocated otherwise.
type until struct {
	context.Context
	off    context.Context // ends when collectives are called off
	joint  context.Context // ends with either
	forget func()
}

// begin makes it ctx until collectives are called off. end is to be called when nobody waits by it any more.
func (u *until) begin(ctx context.Context) context.Context {
	u.Context = ctx
	return u
}

func (u *until) end() {
	u.Context = nil
	if u.joint != nil {
		u.forget()
		u.joint, u.forget = nil, nil
	}
}

func (u *until) Err() error {
	if err := u.off.Err(); err != nil {
		return err
	}
	return u.Context.Err()
}

func (u *until) Done() <-chan struct{} {
	if u.joint == nil {
		joint, cancel := context.WithCancelCause(u.Context)
		stop := context.AfterFunc(u.off, func() { cancel(context.Cause(u.off)) })
		u.joint, u.forget = joint, func() { stop(); cancel(nil) }
	}
	return u.joint.Done()
}
