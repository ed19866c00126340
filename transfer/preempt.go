package transfer

import (
	"errors"
	"time"

	"github.com/quic-go/quic-go"
)

// A chunk of a lower class that is half written when one of a higher class begins
// to be written, on whichever stripe, is held: its remaining bytes wait. Within a
// connection its stream has the lower urgency, too. Held writes keep their sender
// and their buffer; senders of the higher class are others. A chunk that its
// source is still to give holds nothing: that may take for ever.

// accepting notes that a connection begins to accept n bytes of the class, or,
// below zero, that it no longer does.
func (q *scheduler) accepting(class Class, n int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wire[class] += n
	top := Class(0)
	for top < classes && q.wire[top] == 0 {
		top++
	}
	if was := Class(q.top.Swap(int32(top))); top > was {
		q.resume.Broadcast()
	}
}

// held reports whether chunks of the class wait for a higher one.
func (q *scheduler) held(c Class) bool { return Class(q.top.Load()) < c }

// awaitTurn returns when the chunk is held no more; false: its transfer, or the
// connection that it is written to, is over.
func (q *scheduler) awaitTurn(c chunk, s *stripe) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if c.flow.sched.dead || q.closed || s.conn.Context().Err() != nil { // drop wakes those who wait
			return false
		}
		if !q.held(c.flow.class) {
			return true
		}
		q.resume.Wait()
	}
}

// writer writes chunks for one sender.
type writer struct {
	link   *Link
	stripe *stripe
	limit  func(int) int // nil: nothing is above the class
}

func newWriter(l *Link, s *stripe, class Class) *writer {
	w := &writer{link: l, stripe: s}
	if class > Interactive {
		w.limit = func(n int) int {
			if l.sched.held(class) {
				return 0
			}
			return n
		}
	}
	return w
}

// write writes the whole of b to the chunk's stream.
func (w *writer) write(stream *quic.SendStream, c chunk, b []byte, r *run) error {
	w.link.sched.accepting(c.flow.class, c.bytes())
	defer w.link.sched.accepting(c.flow.class, -c.bytes())
	p := w.link.patience(c.flow, w.stripe)
	for {
		n, err := p.write(stream, b, w.limit)
		if b = b[n:]; !errors.Is(err, quic.ErrWriteLimitReached) {
			return err
		}
		at := time.Now()
		if !w.link.sched.awaitTurn(c, w.stripe) {
			stream.CancelWrite(quic.StreamErrorCode(CodeCancelled))
			return errHeldOver
		}
		p.held(at)
		w.link.hedges.resumed(r)
	}
}

var errHeldOver = errors.New("over while a higher class went first")
