package transfer

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/kvferry/kvferry/transfer/wire"
)

const (
	// maxServed bounds the transfers of one peer that run at a time on a link.
	maxServed = 1024
	// maxServedDescs and maxServedPages bound what those, and those that are being
	// announced, come to: about 64 B a descriptor and at most 4 B a page are kept here.
	maxServedDescs, maxServedPages = 1 << 20, 1 << 25
	// maxFinals bounds the ends of transfers that a peer leaves unacknowledged.
	maxFinals = 1 << 16
)

// beginning is a transfer as its initiator announces it: descriptors of the
// other side's memories.
type beginning struct {
	op       wire.Op
	token    []byte
	notify   []byte
	descs    []Desc
	class    Class
	deadline time.Time // by which it should be over, on this side's clock; zero: none
}

// timeLeft is what is left until the deadline, as Begin carries it.
func (b *beginning) timeLeft(now time.Time) uint32 {
	if b.deadline.IsZero() {
		return 0
	}
	return uint32(min(max(b.deadline.Sub(now).Milliseconds(), 1), math.MaxUint32))
}

// pushBegin announces a transfer, in as many frames as its list needs.
func (l *Link) pushBegin(op wire.Op, id uint64, b *beginning) {
	descs := toWire(b.descs)
	for first := 0; first < len(descs); first += wire.MaxFrameDescs {
		part := descs[first:min(first+wire.MaxFrameDescs, len(descs))]
		m := wire.Begin{Op: op, More: first+len(part) < len(descs), First: uint32(first), Descs: part}
		if first == 0 {
			m.Token, m.Notify, m.Class, m.Deadline = b.token, b.notify, wire.Class(b.class), b.timeLeft(time.Now())
		}
		payload, err := wire.AppendBegin(nil, m)
		if err != nil { // Prepare checked every bound
			l.endSoon(fmt.Errorf("BUG: encode transfer %d: %w", id, err), CodeInternal)
			return
		}
		l.push(wire.TypeBegin, wire.FlagOwn, id, payload)
	}
}

// handleBegin collects a peer's transfer and starts it when it is complete. A
// transfer that is known already is only confirmed: the peer repeats itself
// after a lost connection.
func (l *Link) handleBegin(id uint64, payload []byte) error {
	m, err := wire.DecodeBegin(payload)
	if err != nil {
		return err
	}
	key := flowKey{id: id}
	l.mu.Lock()
	in, out, final := l.mu.intakes[key], l.mu.outflows[key], l.mu.finals[key]
	if in != nil || out != nil || final != nil || l.mu.ended {
		l.mu.Unlock()
		if in != nil {
			l.push(wire.TypeReady, 0, id, nil)
		}
		return nil
	}
	b := l.mu.begins[id]
	if m.First == 0 {
		b = &beginning{op: m.Op, token: m.Token, notify: m.Notify, class: Class(m.Class)}
		if m.Deadline > 0 {
			b.deadline = time.Now().Add(time.Duration(m.Deadline) * time.Millisecond)
		}
	}
	if b == nil || b.op != m.Op || len(b.descs) != int(m.First) {
		l.mu.Unlock()
		return fmt.Errorf("transfer %d continues at descriptor %d: %w", id, m.First, ErrProtocol)
	}
	served, all := len(l.mu.begins)+len(l.mu.intakes)+len(l.mu.outflows), l.mu.served.descs+len(m.Descs)
	if all > maxServedDescs {
		err = fmt.Errorf("%d descriptors in the transfers of this peer, at most %d: %w", all, maxServedDescs, ErrBusy)
	} else {
		b.descs = appendFromWire(b.descs, m.Descs)
		l.mu.served.descs = all
	}
	if m.More && err == nil {
		l.mu.begins[id] = b
	} else {
		delete(l.mu.begins, id)
		if err != nil {
			l.mu.served.descs -= len(b.descs)
		}
	}
	l.mu.Unlock()
	if served >= 2*maxServed {
		return fmt.Errorf("%d transfers on one link: %w", served, ErrProtocol)
	}
	if m.More && err == nil {
		return nil
	}
	if err == nil {
		if err = l.serve(key, b, served); err != nil {
			l.releaseServed(len(b.descs), 0)
		}
	}
	if err != nil {
		l.agent.cfg.Logger.LogAttrs(l.ctx, slog.LevelDebug, "transfer refused",
			slog.String("peer", string(l.want)), slog.Uint64("transfer", id), slog.Any("error", err))
		l.sendFinal(key, wire.TypeFailed, failure(err))
	}
	return nil
}

// servedWork is what the transfers of a peer come to.
type servedWork struct{ descs, pages int }

// takePages counts the pages of a peer's transfer; releaseServed takes them, and its
// descriptors, off again.
func (l *Link) takePages(n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if all := l.mu.served.pages + n; all > maxServedPages {
		return fmt.Errorf("%d pages in the transfers of this peer, at most %d: %w", all, maxServedPages, ErrBusy)
	}
	l.mu.served.pages += n
	return nil
}

func (l *Link) releaseServed(descs, pages int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.served.descs -= descs
	l.mu.served.pages -= pages
}

// serve starts this side's half of a peer's transfer. On an error its descriptors
// are still counted.
func (l *Link) serve(key flowKey, b *beginning, served int) error {
	if served >= maxServed {
		return fmt.Errorf("%d transfers of this peer are running: %w", served, ErrBusy)
	}
	if permit := l.agent.cfg.Permit; permit != nil && b.op == wire.OpRead {
		if err := permit(l.Peer(), b.token); err != nil {
			return err
		}
	}
	mems := make([]*memory, len(b.descs))
	total := 0
	for i, d := range b.descs {
		mem, err := l.agent.lookup(d.Memory)
		if err == nil {
			err = permits(mem, b.op)
		}
		if err == nil {
			err = d.inRange(mem.Length, mem.PageBytes)
		}
		if err != nil {
			return &ChunkError{Transfer: key.id, Pair: i, Page: -1, Err: err}
		}
		mems[i] = mem
		if total += int(d.Pages); total > wire.MaxPages {
			return &ChunkError{Transfer: key.id, Pair: i, Page: -1, Err: fmt.Errorf("more than %d pages: %w", wire.MaxPages, ErrOutOfRange)}
		}
	}
	p := newPairs(b.descs, mems)
	if b.op == wire.OpWrite {
		if err := overlap("remote", p); err != nil {
			return &ChunkError{Transfer: key.id, Pair: -1, Page: -1, Err: err}
		}
	}
	if err := l.takePages(total); err != nil {
		return &ChunkError{Transfer: key.id, Pair: -1, Page: -1, Err: err}
	}
	if b.op == wire.OpRead {
		f := newOutflow(l, key, p, b)
		f.init(func(err error, byPeer bool) { l.servedOut(f, err, byPeer) })
		if l.register(key, nil, f) {
			l.sched.start(f)
		}
		return nil
	}
	in := newIntake(l, key, p)
	in.notify = b.notify
	in.init(func(err error, byPeer bool) { l.servedIn(in, err, byPeer) })
	if l.register(key, in, nil) {
		in.watch()
		l.push(wire.TypeReady, 0, key.id, nil)
	}
	return nil
}

func permits(m *memory, op wire.Op) error {
	if op == wire.OpRead && m.Source == nil {
		return fmt.Errorf("memory %d has no source: %w", m.id, ErrNotPermitted)
	}
	if op == wire.OpWrite && (m.Sink == nil || !m.RemoteWrite) {
		return fmt.Errorf("memory %d takes no writes from peers: %w", m.id, ErrNotPermitted)
	}
	return nil
}

// register makes a half known to the link; false: the link has ended.
func (l *Link) register(key flowKey, in *intake, out *outflow) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.ended {
		return false
	}
	if in != nil {
		l.mu.intakes[key] = in
		in.watched, in.hungry = l.mu.path.watched, l.mu.path.hungry
	}
	if out != nil {
		l.mu.outflows[key] = out
	}
	l.wakeTender()
	return true
}

func (l *Link) unregister(key flowKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mu.intakes, key)
	delete(l.mu.outflows, key)
}

// servedOut ends a peer's read at its source.
func (l *Link) servedOut(f *outflow, err error, byPeer bool) {
	if err != nil && !byPeer {
		l.sendFinal(f.key, wire.TypeFailed, failure(err))
	}
	l.unregister(f.key)
	l.releaseServed(len(f.descs), f.pages())
	if hook := l.agent.cfg.OnServed; hook != nil {
		hook(l.Peer(), Served{Token: f.token, Class: f.class, Tenant: f.share.Tenant, Done: true})
	}
	if err == nil && len(f.notify) > 0 && l.agent.cfg.OnNotify != nil {
		l.agent.cfg.OnNotify(l.Peer(), f.notify)
	}
}

// servedIn ends a peer's write at its sink.
func (l *Link) servedIn(in *intake, err error, byPeer bool) {
	switch {
	case err == nil:
		l.sendFinal(in.key, wire.TypeDone, nil)
	case !byPeer:
		l.sendFinal(in.key, wire.TypeFailed, failure(err))
	}
	l.unregister(in.key)
	l.releaseServed(len(in.descs), in.pages())
	if err == nil && len(in.notify) > 0 && l.agent.cfg.OnNotify != nil {
		l.agent.cfg.OnNotify(l.Peer(), in.notify)
	}
}

// sendFinal says the last word on a transfer and keeps it until the peer
// acknowledges, so that it survives the connection it is sent over.
func (l *Link) sendFinal(key flowKey, t wire.Type, payload []byte) {
	frame, err := wire.AppendFrame(nil, t, key.flags(), key.id, payload)
	l.mu.Lock()
	if l.mu.ended {
		l.mu.Unlock()
		return
	}
	l.mu.finals[key] = frame
	if len(l.mu.finals) > maxFinals {
		err = fmt.Errorf("%d ends of transfers unacknowledged: %w", len(l.mu.finals), ErrBusy)
	}
	l.mu.Unlock()
	if err == nil {
		err = l.out.push(frame)
	}
	if err != nil {
		l.endSoon(fmt.Errorf("queue control message: %w", err), CodeBusy)
	}
}

// dispatchTransfer acts on a control frame about one transfer. Frames about
// transfers that are over, or never were, are late and change nothing.
func (l *Link) dispatchTransfer(t wire.Type, key flowKey, payload []byte) error {
	l.mu.Lock()
	in, out := l.mu.intakes[key], l.mu.outflows[key]
	l.mu.Unlock()
	switch t {
	case wire.TypeReady:
		if out != nil && key.own {
			out.begin()
		}
	case wire.TypeAgain:
		m, err := wire.DecodeAgain(payload)
		if err != nil {
			return err
		}
		if m.Reason == wire.ReasonStripeLost {
			l.closeStripe(m.Stripe)
		}
		if out != nil {
			out.handleAgain(m) // too many of them end the transfer, not the link
		}
	case wire.TypeProgress:
		n, err := wire.DecodeProgress(payload)
		if err != nil {
			return err
		}
		if out != nil {
			out.progress(n)
		}
	case wire.TypeQueued:
		m, err := wire.DecodeQueued(payload)
		if err != nil {
			return err
		}
		if in != nil {
			in.waits(Queue{Transfers: int(m.Transfers), Bytes: int64(m.Bytes)})
		}
	case wire.TypeDone:
		if out != nil {
			out.finishAs(nil, true)
		}
		l.push(wire.TypeAck, key.flags(), key.id, nil)
	case wire.TypeFailed, wire.TypeCancel:
		err := remoteFailure(key.id, payload)
		if in != nil {
			in.finishAs(err, true)
		}
		if out != nil {
			out.finishAs(err, true)
		}
		l.push(wire.TypeAck, key.flags(), key.id, nil)
	case wire.TypeAck:
		l.mu.Lock()
		delete(l.mu.finals, key)
		if len(l.mu.finals) == 0 {
			l.notifyChange()
		}
		l.mu.Unlock()
	default:
		return fmt.Errorf("type %d: %w", t, ErrProtocol)
	}
	return nil
}

// begin starts a write once the peer is ready for it.
func (f *outflow) begin() {
	f.Lock()
	first := !f.started && !f.decided
	f.started = true
	f.lastAt = time.Now()
	f.Unlock()
	if first {
		f.link.sched.start(f)
	}
}

// progress notes how many pages of a write the peer has verified.
func (f *outflow) progress(pages uint64) {
	f.Lock()
	defer f.Unlock()
	if n := int(min(pages, uint64(f.pages()))); n > f.landed {
		f.landed = n
		f.lastAt = time.Now()
		f.wake()
	}
}

// overlap reports two descriptors of the receiving side that share a byte.
func overlap(side string, p pairs) error {
	order := make([]int, len(p.descs))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := p.descs[a], p.descs[b]
		switch {
		case x.Memory != y.Memory:
			return int(x.Memory) - int(y.Memory)
		case x.Offset < y.Offset:
			return -1
		case x.Offset > y.Offset:
			return 1
		}
		return a - b
	})
	for k := 1; k < len(order); k++ {
		i, j := order[k-1], order[k]
		a, b := p.descs[i], p.descs[j]
		if a.Memory == b.Memory && b.Offset < a.Offset+uint64(a.Pages)*uint64(p.mems[i].PageBytes) {
			return &FieldError{
				Field: fmt.Sprintf("%s[%d]", side, j), Value: fmt.Sprintf("offset %d", b.Offset),
				Allowed: fmt.Sprintf("no byte of %s[%d]", side, i), Fix: "let each page land in a place of its own", Err: ErrOutOfRange,
			}
		}
	}
	return nil
}
