package transfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
)

// A peer that begins reads and takes none of their bytes, alive as its connections are, would keep senders and their buffers for good. What is
// written for it has Config.ServeTimeout: a connection that has taken no byte for so long, of any chunk, is given up where others of the
// link have, and its chunks go over those; where none has, the transfer ends. Neither happens to one that waits its turn, is held for a
// higher class, or is slow: a window that lets anything through moves some chunk on. A path that is cut loses its connections at the
// idle timeout, which is shorter.

const (
	// serveLooks is how often a write is looked at in a ServeTimeout.
	serveLooks = 8
	// mostServes is how many of them a chunk may take to be accepted, what it is held not counted: by default an hour, for one that
	// trickles.
	mostServes = 60
)

// moved is when bytes were last accepted.
type moved struct{ at atomic.Int64 }

func (m *moved) now(t time.Time) { m.at.Store(t.UnixNano()) }

// since is for how long there has been nothing since the later of then and that moment.
func (m *moved) since(now, then time.Time) time.Duration {
	return min(now.Sub(then), time.Duration(now.UnixNano()-m.at.Load()))
}

// patience is what the write of one chunk has; without a limit any time.
type patience struct {
	limit       time.Duration
	stripe, all *moved    // of its connection, and of all of the link
	start       time.Time // when it began
	began       time.Time // without what it was held
	since       time.Time // when it was held last, or began
}

// verdict is what becomes of a write that a look finds unfinished.
type verdict int

const (
	goesOn      verdict = iota
	stripeStuck         // other connections take bytes, this one does not
	peerStuck           // none does, or this chunk never comes to its end
)

func (p *patience) judge(now time.Time) verdict {
	switch {
	case now.Sub(p.began) >= mostServes*p.limit:
		return peerStuck
	case p.all.since(now, p.start) >= p.limit: // while it was held, too: what holds it moves nothing
		return peerStuck
	case p.stripe.since(now, p.since) >= p.limit:
		return stripeStuck
	}
	return goesOn
}

// took notes that n bytes were accepted.
func (p *patience) took(n int) {
	if n > 0 {
		now := time.Now()
		p.stripe.now(now)
		p.all.now(now)
	}
}

// held has the time from at on not count.
func (p *patience) held(at time.Time) {
	now := time.Now()
	p.began, p.since = p.began.Add(now.Sub(at)), now
}

// patience is that of a chunk of f over s: only peers' reads are bounded here, a write has its own timeouts.
func (l *Link) patience(f *outflow, s *stripe) patience {
	now := time.Now()
	p := patience{stripe: &s.moved, all: &l.moved, start: now, began: now, since: now}
	if !f.key.own {
		p.limit = max(l.agent.cfg.ServeTimeout, 0)
	}
	return p
}

// stuckError is why a chunk is not written.
type stuckError struct {
	after   time.Duration
	verdict verdict
}

func (e *stuckError) Error() string {
	if e.verdict == stripeStuck {
		return fmt.Sprintf("the connection has taken no byte for %v", e.after)
	}
	return fmt.Sprintf("the side that reads takes no byte, or too few: looked at after %v", e.after)
}

func (e *stuckError) Is(target error) bool { return target == ErrStalled }

// write writes b, as WriteWithLimit does. Where a higher class has the connection to itself, nobody asks limit: a look does.
func (p *patience) write(stream *quic.SendStream, b []byte, limit func(int) int) (n int, err error) {
	for {
		if p.limit > 0 {
			_ = stream.SetWriteDeadline(time.Now().Add(max(p.limit/serveLooks, time.Millisecond))) // never fails
		}
		k, err := stream.WriteWithLimit(b[n:], limit)
		n += k
		p.took(k)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if v := p.judge(time.Now()); v != goesOn {
			stream.CancelWrite(quic.StreamErrorCode(CodeStalled))
			return n, &stuckError{p.limit, v}
		}
		if limit != nil && limit(1) == 0 {
			return n, quic.ErrWriteLimitReached
		}
	}
}

// openChunk opens the stream of a chunk of f. The peer says how many it may have.
func (l *Link) openChunk(f *outflow, s *stripe) (*quic.SendStream, error) {
	stream, err := s.conn.OpenUniStream()
	if _, full := errors.AsType[*quic.StreamLimitReachedError](err); !full {
		return stream, err
	}
	p := l.patience(f, s)
	for {
		ctx, cancel := s.conn.Context(), func() {}
		if p.limit > 0 {
			ctx, cancel = context.WithTimeout(ctx, p.limit)
		}
		stream, err = s.conn.OpenUniStreamSync(ctx)
		cancel()
		if err == nil || s.conn.Context().Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return stream, err
		}
		if v := p.judge(time.Now()); v != goesOn {
			return nil, &stuckError{p.limit, v}
		}
	}
}

// stuck acts on a chunk that was not written, for whatever reason: lost and err are what sendChunk returns.
func (l *Link) stuck(s *stripe, c chunk, why error) (lost bool, err error) {
	e, ok := errors.AsType[*stuckError](why)
	switch {
	case !ok:
		return true, nil
	case e.verdict == stripeStuck:
		l.agent.cfg.Logger.LogAttrs(l.ctx, slog.LevelWarn, "stripe takes nothing", slog.String("peer", string(l.want)), slog.Uint64("stripe", uint64(s.number)), slog.Duration("for", e.after))
		l.sched.dropStripe(s.number)
		_ = s.conn.CloseWithError(quic.ApplicationErrorCode(CodeStripeLost), "takes nothing")
		return true, nil
	}
	return false, &ChunkError{Transfer: c.flow.key.id, Pair: c.pair, Page: c.first, Err: why}
}

// endStuck ends a peer's read that nothing is taken of.
func (l *Link) endStuck(f *outflow, err error) {
	if _, stuck := errors.AsType[*stuckError](err); !f.finish(err) || !stuck {
		return
	}
	l.agent.metrics.stalled.Inc()
	l.agent.cfg.Logger.LogAttrs(l.ctx, slog.LevelWarn, "read of a peer ended: it takes nothing",
		slog.String("peer", string(l.want)), slog.Uint64("transfer", f.key.id), slog.Any("error", err))
}
