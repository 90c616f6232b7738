package launch

// notices tells somebody what happens, in order, without waiting for them: they may be as stuck as the writer that takes the
// ranks' output, which is often the same terminal or pipe, and must not keep the job from ending.
type notices struct {
	queue chan string
	told  chan struct{} // closed when all has been said
}

// maxNotices is how many may wait; a job has a few, and one for each further request to stop.
const maxNotices = 64

func newNotices(notify func(string)) *notices {
	n := &notices{queue: make(chan string, maxNotices), told: make(chan struct{})}
	go func() {
		defer close(n.told)
		for message := range n.queue {
			notify(message)
		}
	}()
	return n
}

func (n *notices) add(message string) {
	select {
	case n.queue <- message:
	default: // nobody has listened to any of so many
	}
}

// finish says that nothing is added any more.
func (n *notices) finish() { close(n.queue) }
