package transfer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/time/rate"

	"github.com/kvferry/kvferry/transfer/repair"
	"github.com/kvferry/kvferry/transfer/wire"
)

// maxCalls bounds the calls of one peer that run at a time, maxCallBytes what they
// carry.
const maxCalls, maxCallBytes = 256, 32 << 20

// A Link joins two agents: k QUIC connections (stripes), over which control
// messages and chunks of transfers travel in both directions. The side that
// dialled restores lost stripes. All methods are safe for concurrent use.
type Link struct {
	agent   *Agent
	want    PeerID
	nonce   wire.Nonce
	dialled bool
	addr    net.Addr // of the peer, when dialled
	started time.Time

	// ctx ends with the link: the parent of what calls and dials use.
	ctx    context.Context //nolint:containedctx // a lifetime, like net/http's base context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // stripes, control writer, keeper, calls
	sched  scheduler
	out    outbox
	hedges hedges
	kick   chan struct{} // capacity 1: stripes are missing
	wake   chan struct{} // capacity 1: the tender should look at the path
	ready  chan struct{} // closed when the peer's metadata has come
	dials  *rate.Limiter
	losses *repair.Estimator // of what goes to the peer, all stripes

	streams atomic.Int64 // chunk streams open here, in both directions
	landed  atomic.Int64 // page bytes of all intakes, as they came: coded or not
	moved   moved        // chunks' bytes, over any stripe
	coder   coder

	pagesOut, pagesIn codingCounts

	mu struct {
		sync.Mutex
		peer       Peer
		stripes    map[uint32]*stripe
		control    *stripe       // carries what is sent from here
		changed    chan struct{} // closed and replaced when stripes come or go
		nextStripe uint32
		dialling   int // stripes
		nextID     uint64
		intakes    map[flowKey]*intake
		outflows   map[flowKey]*outflow
		begins     map[uint64]*beginning // of the peer, incomplete
		served     servedWork            // of begins, and of the peer's intakes and outflows
		finals     map[flowKey][]byte    // last words not yet acknowledged
		calls      map[uint64]chan answer
		serving    map[uint64]context.CancelFunc
		carried    int // bytes of the calls being served
		metadata   Metadata
		hasMeta    bool
		ended      bool
		ending     bool // endSoon was called
		joining    int  // stripes that were admitted and have not joined
		superseded bool // whether the peer has given the link up is being found out
		probing    bool
		heardAt    time.Time // when some stripe was last found to have received a packet
		aliveSince time.Time // when that was the case again after an outage
		err        error
		path       path
		told       wire.Costs // to the peer, of what coding takes here
		past       pastStripes
		pastRepair repair.Stats // of stripes that are gone
	}
}

func newLink(a *Agent, want PeerID, nonce wire.Nonce, addr net.Addr, known Estimates) *Link {
	l := &Link{
		agent: a, want: want, nonce: nonce, dialled: addr != nil, addr: addr, started: time.Now(),
		kick: make(chan struct{}, 1), wake: make(chan struct{}, 1), ready: make(chan struct{}),
		dials: rate.NewLimiter(rate.Every(time.Second), 4), losses: repair.NewEstimator(),
	}
	l.ctx, l.cancel = context.WithCancelCause(a.ctx)
	l.sched.init(a.cfg.schedulerRules(), l.tellQueued)
	l.out.init()
	l.hedges.init()
	l.coder.mode, l.coder.cores = a.cfg.Codec, float64(a.cfg.Cores)
	l.mu.peer.ID = want
	l.mu.path.est, l.mu.path.policy = newEstimator(known, l.started), newStripePolicy(a.cfg.Stripes, known.Stripes)
	l.mu.stripes = make(map[uint32]*stripe)
	l.mu.changed = make(chan struct{})
	l.mu.intakes = make(map[flowKey]*intake)
	l.mu.outflows = make(map[flowKey]*outflow)
	l.mu.begins = make(map[uint64]*beginning)
	l.mu.finals = make(map[flowKey][]byte)
	l.mu.calls = make(map[uint64]chan answer)
	l.mu.serving = make(map[uint64]context.CancelFunc)
	l.wg.Go(l.writeControl)
	l.wg.Go(l.keep)
	l.wg.Go(l.tend)
	return l
}

// Peer returns who is at the other end.
func (l *Link) Peer() Peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.peer
}

// Metadata returns what the peer last announced: its memories are announced as
// they are registered, ahead of any later control message of the peer.
func (l *Link) Metadata() Metadata {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.mu.metadata
	m.Memories = slices.Clone(m.Memories)
	return m
}

// Done returns a channel that is closed when the link has ended; Err then says
// why.
func (l *Link) Done() <-chan struct{} { return l.ctx.Done() }

// Err returns nil while the link lives, and then why it ended: ErrClosed,
// ErrPeerGone or ErrPeerRestarted, wrapped.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.err
}

// Close ends the link with a code for the peer (CodeOK for an orderly end). It
// waits up to a second for the peer to acknowledge transfers that ended. What
// still runs on the link fails with ErrClosed. Close is idempotent.
func (l *Link) Close(code Code) error {
	l.drain(time.Second)
	l.end(fmt.Errorf("link to %q: %w", l.want, ErrClosed), code)
	l.waitStripes()
	return nil
}

// drain waits until the peer has acknowledged every end of a transfer.
func (l *Link) drain(limit time.Duration) {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		l.mu.Lock()
		idle := len(l.mu.finals) == 0 || len(l.mu.stripes) == 0
		changed := l.mu.changed
		l.mu.Unlock()
		if idle {
			return
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return
		case <-deadline.C:
			return
		}
	}
}

// notifyChange wakes those who wait for stripes or acknowledgements; l.mu held.
func (l *Link) notifyChange() {
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
}

func (l *Link) waitStripes() {
	for {
		l.mu.Lock()
		n, changed := len(l.mu.stripes), l.mu.changed
		l.mu.Unlock()
		if n == 0 {
			return
		}
		<-changed
	}
}

// maxAccepted bounds the stripes of a link that a peer dialled: after an outage the
// dialler may replace all of them before this side knows that they are dead.
const maxAccepted = 2 * MaxStripes

// admit keeps a place for a stripe that a peer dialled; left must follow, once it
// has joined or failed to.
func (l *Link) admit() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.mu.stripes) + l.mu.joining; n >= maxAccepted {
		return fmt.Errorf("link of %q has %d connections, at most %d: %w", l.want, n, maxAccepted, ErrBusy)
	}
	l.mu.joining++
	return nil
}

func (l *Link) left() {
	l.mu.Lock()
	l.mu.joining--
	l.mu.Unlock()
	l.kickKeeper() // a link without a stripe is given up in time
}

// join adds a connected stripe. It fails when the link has ended or the peer is
// another process than before.
func (l *Link) join(s *stripe, peer Peer) error {
	l.mu.Lock()
	switch {
	case l.mu.ended:
		defer l.mu.Unlock()
		return l.mu.err
	case l.mu.peer.Incarnation != "" && l.mu.peer.Incarnation == peer.Incarnation && l.mu.peer.Region != peer.Region:
		defer l.mu.Unlock()
		return fmt.Errorf("%w: the link's certificate is of region %q, this one of %q", ErrPeerIdentity, l.mu.peer.Region, peer.Region)
	case l.mu.peer.Incarnation != "" && l.mu.peer != peer:
		l.mu.Unlock()
		err := fmt.Errorf("peer %q: was %q, is %q: %w", peer.ID, l.Peer().Incarnation, peer.Incarnation, ErrPeerRestarted)
		l.end(err, CodePeerRestarted)
		return err
	case l.mu.stripes[s.number] != nil:
		defer l.mu.Unlock()
		return fmt.Errorf("stripe %d exists: %w", s.number, ErrProtocol)
	}
	l.mu.peer = peer
	l.mu.stripes[s.number] = s
	if l.mu.control == nil {
		l.mu.control = s
	}
	l.sched.addStripe(s.number, s.speed)
	l.notifyChange()
	l.wg.Go(func() { l.runStripe(s) })
	l.mu.Unlock()
	l.agent.metrics.stripes.Inc()
	l.tellCosts(false)
	return nil
}

// drop removes a stripe whose connection ended.
func (l *Link) drop(s *stripe, cause error) {
	l.sched.dropStripe(s.number)
	s.endRepair()
	l.mu.Lock()
	delete(l.mu.stripes, s.number)
	l.mu.past.add(s.conn.ConnectionStats())
	l.mu.pastRepair.Add(s.repairStats())
	if l.mu.control == s {
		l.mu.control = nil
		for _, o := range l.mu.stripes {
			// One that is being retired only when there is no other.
			if c := l.mu.control; c == nil || c.draining && !o.draining || c.draining == o.draining && o.number < c.number {
				l.mu.control = o
			}
		}
	}
	ended, retired := l.mu.ended, s.draining
	intakes := make([]*intake, 0, len(l.mu.intakes))
	for _, in := range l.mu.intakes {
		intakes = append(intakes, in)
	}
	l.notifyChange()
	l.mu.Unlock()
	l.agent.metrics.stripes.Dec()
	if ended {
		return
	}
	level, what := slog.LevelWarn, "stripe lost"
	if retired {
		level, what = slog.LevelDebug, "stripe retired"
	}
	l.agent.cfg.Logger.LogAttrs(l.ctx, level, what,
		slog.String("peer", string(l.want)), slog.Uint64("stripe", uint64(s.number)), slog.Any("cause", cause))
	if code, remote := closedByPeer(cause); remote && code != CodeStripeLost {
		l.end(l.goneError(cause), CodeOK)
		return
	}
	if s.control.Load() {
		l.resync()
	}
	for _, in := range intakes {
		in.stripeLost(s.number)
	}
	l.kickKeeper()
}

func closedByPeer(err error) (Code, bool) {
	if re, ok := errors.AsType[*RemoteError](connError(err)); ok {
		return re.Code, true
	}
	return CodeOK, false
}

// goneError wraps the cause of a link's end so that it matches ErrPeerGone, and
// ErrPeerRestarted or another sentinel where the peer said so.
func (l *Link) goneError(cause error) error {
	cause = connError(cause)
	if errors.Is(cause, ErrPeerRestarted) {
		return fmt.Errorf("peer %q: %w", l.want, cause)
	}
	return fmt.Errorf("peer %q: %w: %w", l.want, ErrPeerGone, cause)
}

// end ends the link once: every transfer and call fails with err, every
// connection is closed with code.
func (l *Link) end(err error, code Code) {
	l.mu.Lock()
	if l.mu.ended {
		l.mu.Unlock()
		return
	}
	l.mu.ended, l.mu.err = true, err
	stripes := make([]*stripe, 0, len(l.mu.stripes))
	for _, s := range l.mu.stripes {
		stripes = append(stripes, s)
	}
	calls := l.mu.calls
	l.mu.calls = make(map[uint64]chan answer)
	intakes, outflows := l.flows()
	l.mu.Unlock()

	l.cancel(err)
	l.sched.close()
	for _, in := range intakes {
		in.finish(err)
	}
	for _, f := range outflows {
		f.finish(err)
	}
	for _, c := range calls {
		c <- answer{err: err}
	}
	for _, s := range stripes {
		_ = s.conn.CloseWithError(quic.ApplicationErrorCode(code), clip(err.Error(), 256))
	}
	l.agent.forget(l)
}

// endSoon is end for callers that hold a lock of a transfer, or that run under the
// end of one: the link's end takes the former and waits for the latter.
func (l *Link) endSoon(err error, code Code) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.ended || l.mu.ending {
		return
	}
	l.mu.ending = true
	l.wg.Go(func() { l.end(err, code) })
}

// flows lists the halves of transfers; l.mu held.
func (l *Link) flows() ([]*intake, []*outflow) {
	intakes := make([]*intake, 0, len(l.mu.intakes))
	for _, in := range l.mu.intakes {
		intakes = append(intakes, in)
	}
	outflows := make([]*outflow, 0, len(l.mu.outflows))
	for _, f := range l.mu.outflows {
		outflows = append(outflows, f)
	}
	return intakes, outflows
}

// keep restores lost stripes of a dialled link, and gives an accepted one up
// when its dialler does not return. It ends with the link.
func (l *Link) keep() {
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.kick:
		}
		if l.dialled {
			l.redial()
			continue
		}
		l.awaitDialler()
	}
}

// awaitDialler waits for a stripe. The dialler may notice the loss an idle
// timeout later than this side and then has its connect timeout.
func (l *Link) awaitDialler() {
	limit := time.NewTimer(l.agent.cfg.IdleTimeout + l.agent.cfg.ConnectTimeout)
	defer limit.Stop()
	for {
		l.mu.Lock()
		n, changed := len(l.mu.stripes), l.mu.changed
		l.mu.Unlock()
		if n > 0 {
			return
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return
		case <-limit.C:
			l.end(fmt.Errorf("peer %q did not come back: %w", l.want, ErrPeerGone), CodePeerGone)
			return
		}
	}
}
