package transfer

import "sync"

// ending is the one terminal state of one half of a transfer, and the count of
// calls into the consumer's code (Source, Sink, OnLanded) that still run. A half
// is over when its fate is decided and no such call runs: that is what "quiet"
// means in this package.
type ending struct {
	sync.Mutex // guards the fields below and the progress of the half

	busy    int
	decided bool
	err     error // nil: done
	byPeer  bool  // the peer knows: it said so
	quiet   bool
	over    chan struct{}                // closed when quiet
	onQuiet func(err error, byPeer bool) // called once, before over is closed, without the lock
	changed chan struct{}                // nil, or closed at the next progress
}

func (e *ending) init(onQuiet func(err error, byPeer bool)) {
	e.over = make(chan struct{})
	e.onQuiet = onQuiet
}

// enter admits one call into the consumer's code; leave must follow.
func (e *ending) enter() bool {
	e.Lock()
	defer e.Unlock()
	if e.decided {
		return false
	}
	e.busy++
	return true
}

func (e *ending) leave() {
	e.Lock()
	e.busy--
	e.settle()
}

// end decides the fate and reports whether this call did; the first one wins.
func (e *ending) end(err error, byPeer bool) bool {
	e.Lock()
	first := !e.decided
	if first {
		e.decided, e.err, e.byPeer = true, err, byPeer
	}
	e.settle()
	return first
}

// settle unlocks, and finishes the half when nothing runs any more.
func (e *ending) settle() {
	last := e.decided && e.busy == 0 && !e.quiet
	if last {
		e.quiet = true
	}
	err, byPeer := e.err, e.byPeer
	e.Unlock()
	if last {
		e.onQuiet(err, byPeer)
		close(e.over)
		e.Lock()
		e.wake()
		e.Unlock()
	}
}

// wake tells those who wait for progress; the lock is held.
func (e *ending) wake() {
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

func (e *ending) isOver() bool {
	select {
	case <-e.over:
		return true
	default:
		return false
	}
}

// hasEnded reports whether the fate is decided, quiet or not.
func (e *ending) hasEnded() bool {
	e.Lock()
	defer e.Unlock()
	return e.decided
}
