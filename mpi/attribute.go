package mpi

import (
	"sync"
	"sync/atomic"
)

// attribute is something that a library keeps with a communicator. They are
// few: a list is quicker than a map.
type attribute struct {
	key    *Keyval
	value  any
	making sync.Once
	made   atomic.Bool
	next   *attribute
}

// Keyval names an attribute, by its address: a library has a variable for each. It is not empty, since
// empty variables may share an address.
type Keyval struct{ _ byte }

// Releaser is an attribute that holds more than Go memory. Release is called once: when its communicator is freed and no
// operation can begin on it any more, or when the world closes and all operations have ended; why wraps ErrClosed. It
// ends what the library does on the communicator, waits for that end, and gives back what the attribute holds. It must
// not communicate: other ranks may have released theirs already, or not yet. It is not called where Close gives up
// waiting for the system's MPI library, which then goes on with operations.
type Releaser interface{ Release(why error) }

// Heritable is an attribute that is passed on: a communicator made of the attribute's own begins with what Inherit
// returns for it, under the same key. Inherit must not communicate.
type Heritable interface{ Inherit(child *Comm) any }

// Attribute returns what is kept with the communicator under a key of the
// caller's own, made by make when it is asked for the first time; make may use the communicator, but not ask for
// the same key. It lives as long as the communicator (see Releaser); a communicator made of this one inherits what is
// Heritable. MPI calls this attribute caching. Not collective.
func (c *Comm) Attribute(key *Keyval, make func() any) any {
	a := c.attribute(key)
	if a == nil {
		a = c.addAttribute(key)
	}
	if !a.made.Load() {
		a.making.Do(func() {
			a.value = make()
			a.made.Store(true)
		})
	}
	return a.value
}

// Cached returns what Attribute has made for a key, or nil if it has not yet. It is short enough to become a part of its caller.
func (c *Comm) Cached(key *Keyval) any {
	if a := c.attribute(key); a != nil && a.made.Load() {
		return a.value
	}
	return nil
}

func (c *Comm) addAttribute(key *Keyval) *attribute {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.attribute(key); a != nil {
		return a
	}
	a := &attribute{key: key, next: c.attributes.Load()}
	c.attributes.Store(a)
	return a
}

func (c *Comm) attribute(key *Keyval) *attribute {
	a := c.attributes.Load()
	for a != nil && a.key != key {
		a = a.next
	}
	return a
}

// bequeath gives a communicator made of this one what it inherits.
func (c *Comm) bequeath(child *Comm) {
	for a := c.attributes.Load(); a != nil; a = a.next {
		if !a.made.Load() {
			continue
		}
		if h, ok := a.value.(Heritable); ok {
			child.Attribute(a.key, func() any { return h.Inherit(child) })
		}
	}
}

// release has all attributes of the communicator and of its shadow give back what they hold, once: a communicator may be freed
// when the world is closed, or while it closes.
func (c *Comm) release(why error) {
	if !c.released.Swap(true) {
		c.releaseOwn(why)
		c.shadow.releaseOwn(why)
	}
}

func (c *Comm) releaseOwn(why error) {
	for a := c.attributes.Load(); a != nil; a = a.next {
		if !a.made.Load() {
			continue
		}
		if r, ok := a.value.(Releaser); ok {
			r.Release(why)
		}
	}
}
