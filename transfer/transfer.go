package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvferry/kvferry/transfer/wire"
)

// Op is the direction of a transfer, seen from the side that starts it.
type Op uint8

// The operations.
const (
	Read  Op = Op(wire.OpRead)  // remote to local
	Write Op = Op(wire.OpWrite) // local to remote
)

// String returns "read" or "write".
func (o Op) String() string {
	switch o {
	case Read:
		return "read"
	case Write:
		return "write"
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// State is where a transfer stands. The last three are terminal, and a transfer
// reaches exactly one of them.
type State uint8

// The states.
const (
	Prepared State = iota
	Running
	Done
	Failed
	Cancelled
)

// String names the state in lower case.
func (s State) String() string {
	switch s {
	case Prepared:
		return "prepared"
	case Running:
		return "running"
	case Done:
		return "done"
	case Failed:
		return "failed"
	case Cancelled:
		return "cancelled"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// TransferOptions are what a transfer may need beyond its descriptors. The zero
// value is usable.
type TransferOptions struct {
	// Token is opaque, at most 256 bytes: the Source that is read gets it with
	// every call.
	Token []byte
	// Notify goes to the peer's OnNotify once, when every page is verified, and
	// never otherwise. At most 64 KiB; empty: no notification.
	Notify []byte
	// OnLanded is called after pages of a read have been verified and placed. It
	// is called concurrently, must not block, and is not called after the
	// transfer is over. Not used by writes.
	OnLanded func(pair, firstPage, pages int)
	// ProgressTimeout fails the transfer with ErrStalled when no page is
	// verified for so long. 0: that of Config; negative: off.
	ProgressTimeout time.Duration
	// QueueTimeout fails a read with ErrQueued when its source says for so long
	// that it waits its turn and no page comes. That is not counted as a stall. 0 or
	// negative: off.
	QueueTimeout time.Duration
	// Timeout fails the transfer with context.DeadlineExceeded when it is not
	// over so long after Post. 0 or negative: off.
	Timeout time.Duration
	// Class says how urgent the transfer is to the side that sends the pages.
	// Default Interactive.
	Class Class
	// Deadline is the time after Post in which the pages are wanted: of a tenant's
	// transfers the sending side serves those with the earliest deadline first, then
	// those without one. It ends nothing, see Timeout. 0 or negative: none.
	Deadline time.Duration
}

// Progress is a snapshot of a transfer.
type Progress struct {
	State       State
	PagesTotal  int
	PagesDone   int // verified
	BytesTotal  int64
	BytesDone   int64 // verified
	CodedBytes  int64 // what those took on their way, less where pages were coded; reads only
	PagesAgain  int   // requests for a page after the first; reads only
	PagesDouble int   // arrived more than once, dropped; reads only
	Queue       Queue // where the source has it wait, as it said last; reads only
	WireBytes   int64 // of chunks that arrived: headers, pages, those asked for again and those dropped; reads only
}

// A Result is what a transfer came to.
type Result struct {
	Progress
	Duration time.Duration // from Post to the end
}

// A Transfer moves pages between two lists of descriptors, once. Its methods are
// safe for concurrent use. Release is owed.
type Transfer struct {
	link *Link
	op   Op
	key  flowKey
	in   *intake  // of a read
	out  *outflow // of a write
	opts TransferOptions

	mu struct {
		sync.Mutex
		posted   bool
		start    time.Time
		finish   time.Time
		stall    *time.Timer
		deadline *time.Timer
	}
}

// Prepare checks a transfer in full, against the memories registered here and
// those that the peer announced, and sends nothing. The lists pair up: each
// local descriptor has as many pages, of the same size, as its remote one, and
// descriptors of the receiving side share no byte. The lists and options are
// not retained.
//
// Errors: *FieldError, wrapping ErrUnknownMemory, ErrOutOfRange or
// ErrNotPermitted where one of them fits; the link's end.
func (l *Link) Prepare(op Op, local, remote []Desc, opts TransferOptions) (*Transfer, error) {
	if err := l.Err(); err != nil {
		return nil, fmt.Errorf("prepare %v: %w", op, err)
	}
	here, err := l.checkPairs(op, local, remote, opts)
	if err != nil {
		return nil, fmt.Errorf("prepare %v: %w", op, err)
	}
	l.mu.Lock()
	l.mu.nextID++
	key := flowKey{own: true, id: l.mu.nextID}
	l.mu.Unlock()
	t := &Transfer{link: l, op: op, key: key, opts: opts}
	begin := &beginning{
		op: wire.Op(op), class: opts.Class, token: append([]byte(nil), opts.Token...),
		notify: append([]byte(nil), opts.Notify...), descs: append([]Desc(nil), remote...),
	}
	if op == Read {
		t.in = newIntake(l, key, here)
		t.in.remote, t.in.onLanded, t.in.queueTimeout = begin, opts.OnLanded, opts.QueueTimeout
		t.in.init(t.ended)
	} else {
		t.out = newOutflow(l, key, here, begin)
		t.out.notify, t.out.remote = nil, begin // the notification is the peer's
		t.out.init(t.ended)
	}
	if t.opts.ProgressTimeout == 0 {
		t.opts.ProgressTimeout = l.agent.cfg.ProgressTimeout
	}
	return t, nil
}

// half returns the ending of the half that lives here.
func (t *Transfer) half() *ending {
	if t.in != nil {
		return &t.in.ending
	}
	return &t.out.ending
}

func (t *Transfer) finish(err error) bool {
	if t.in != nil {
		return t.in.finish(err)
	}
	return t.out.finish(err)
}

// ID returns the number of the transfer, unique on its link and side; errors and
// logs name it.
func (t *Transfer) ID() uint64 { return t.key.id }

// Post starts the transfer and returns; it does not wait for the peer. A
// transfer is posted once. Errors: ErrClosed for a second Post or after Cancel
// or Release; the link's end; context.Cause(ctx).
func (t *Transfer) Post(ctx context.Context) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("post transfer %d: %w", t.key.id, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.posted || t.half().hasEnded() {
		return fmt.Errorf("post transfer %d: posted before, or over: %w", t.key.id, ErrClosed)
	}
	if !t.link.register(t.key, t.in, t.out) {
		return fmt.Errorf("post transfer %d: %w", t.key.id, t.link.Err())
	}
	t.mu.posted = true
	t.mu.start = time.Now()
	if t.in != nil {
		t.in.watch()
	} else {
		t.out.touch()
	}
	if d := t.opts.ProgressTimeout; d > 0 {
		t.mu.stall = time.AfterFunc(d/2, t.checkStall)
	}
	if d := t.opts.Timeout; d > 0 {
		t.mu.deadline = time.AfterFunc(d, func() {
			t.finish(fmt.Errorf("transfer %d: not over after %v: %w", t.key.id, d, context.DeadlineExceeded))
		})
	}
	begin := t.begin()
	if d := t.opts.Deadline; d > 0 {
		begin.deadline = t.mu.start.Add(d)
		if t.out != nil {
			t.out.sched.deadline = begin.deadline // it starts when the peer has answered
		}
	}
	t.link.pushBegin(begin.op, t.key.id, begin)
	return nil
}

func (t *Transfer) begin() *beginning {
	if t.in != nil {
		return t.in.remote
	}
	return t.out.remote
}

// lastAt is the time of the last progress; the half's lock is held.
func (t *Transfer) lastAt() time.Time {
	if t.in != nil {
		return t.in.lastAt
	}
	return t.out.lastAt
}

// checkStall runs when the progress timeout, or half of it, may have passed.
func (t *Transfer) checkStall() {
	h := t.half()
	h.Lock()
	idle := time.Since(t.lastAt())
	h.Unlock()
	limit := t.opts.ProgressTimeout
	next := limit - idle
	switch {
	case idle >= limit:
		t.finish(fmt.Errorf("transfer %d: no page for %v: %w", t.key.id, limit, ErrStalled))
		return
	case idle >= limit/2:
		t.link.probe()
	default:
		next = limit/2 - idle
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.stall != nil && !h.hasEnded() {
		t.mu.stall.Reset(next)
	}
}

// ended runs once, when the half here is quiet.
func (t *Transfer) ended(err error, byPeer bool) {
	l := t.link
	t.mu.Lock()
	posted := t.mu.posted
	t.mu.finish = time.Now()
	for _, timer := range []*time.Timer{t.mu.stall, t.mu.deadline} {
		if timer != nil {
			timer.Stop()
		}
	}
	t.mu.stall, t.mu.deadline = nil, nil
	t.mu.Unlock()
	if !posted {
		return
	}
	switch {
	case err == nil && t.in != nil:
		l.sendFinal(t.key, wire.TypeDone, nil)
		l.sampleGoodput(t.in)
	case err != nil && !byPeer:
		l.sendFinal(t.key, wire.TypeCancel, failure(err))
	}
	l.unregister(t.key)
	l.agent.metrics.transfers.WithLabelValues(t.op.String(), stateOf(err).String()).Inc()
}

// sampleGoodput takes in how fast the link was while a read ran, reads beside it
// counted.
func (l *Link) sampleGoodput(in *intake) {
	in.Lock()
	own, wireDone, first, half, last, held, id := in.bytesDone, in.wireDone, in.first, in.half, in.lastAt, in.held, in.codec
	in.Unlock()
	if held { // it says how long others took, not what the link can do
		return
	}
	landed, ratio := l.landed.Load(), float64(own)/float64(max(wireDone, 1))
	codecRate := l.codecRate(id, ratio)
	l.mu.Lock()
	defer l.mu.Unlock()
	m := &l.mu.path
	from := first
	if !m.est.warm {
		from = half
	}
	var starved float64
	if watched := m.watched - in.watched; watched > 0 {
		starved = float64(m.hungry-in.hungry) / float64(watched)
	}
	if own > minGoodputBytes {
		e, ok := in.element()
		m.est.coded(e, ok, ratio, codecRate, time.Now())
		m.est.transferEnded(landed-from.landed, last.Sub(from.at), starved, time.Now())
	}
}

func stateOf(err error) State {
	switch {
	case err == nil:
		return Done
	case errors.Is(err, ErrCancelled):
		return Cancelled
	}
	return Failed
}

// Progress returns a snapshot. Once it shows a terminal state, no call into a
// Source, Sink or OnLanded runs or will start for the transfer.
func (t *Transfer) Progress() Progress {
	t.mu.Lock()
	posted := t.mu.posted
	t.mu.Unlock()
	p := Progress{State: Prepared}
	if posted {
		p.State = Running
	}
	h := t.half()
	over := h.isOver()
	h.Lock()
	defer h.Unlock()
	if over {
		p.State = stateOf(h.err)
	}
	if in := t.in; in != nil {
		p.PagesTotal, p.BytesTotal = in.pages(), in.bytes()
		p.PagesDone, p.BytesDone, p.PagesAgain, p.PagesDouble = in.done, in.bytesDone, in.retried, in.duplicates
		p.CodedBytes, p.WireBytes, p.Queue = in.wireDone, in.received.Load(), in.queue
		return p
	}
	f := t.out
	p.PagesTotal, p.BytesTotal, p.PagesDone = f.pages(), f.bytes(), f.landed
	if over && h.err == nil {
		p.PagesDone = p.PagesTotal
	}
	p.BytesDone = f.bytesOf(p.PagesDone)
	return p
}

// Changed returns a channel that is closed at the next progress or at the end.
// Take it before Progress to miss nothing.
func (t *Transfer) Changed() <-chan struct{} {
	h := t.half()
	over := h.isOver()
	h.Lock()
	defer h.Unlock()
	if over {
		c := make(chan struct{})
		close(c)
		return c
	}
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed
}

// Landed returns, for a read, a bitmap of the verified pages of descriptor pair;
// an empty one for a write or a pair out of range.
func (t *Transfer) Landed(pair int) wire.Bitmap {
	if t.in == nil || pair < 0 || pair >= len(t.in.descs) {
		return wire.Bitmap{}
	}
	m := wire.NewBitmap(int(t.in.descs[pair].Pages))
	t.in.Lock()
	defer t.in.Unlock()
	for i := range m.Len() {
		if t.in.state[t.in.base[pair]+i] == pageVerified {
			m.Set(i)
		}
	}
	return m
}

// Wait returns when the transfer is over or ctx ends, which does not end the
// transfer. The Result is that of the moment either way.
//
// Errors: nil when every page is verified; context.Cause(ctx); ErrCancelled;
// ErrStalled; ErrQueued; context.DeadlineExceeded after Timeout; *ChunkError around
// ErrChecksumMismatch, ErrStaleGeneration, ErrLeaseExpired, ErrUnknownMemory,
// ErrOutOfRange, ErrNotPermitted, ErrProtocol or what a Source or Sink returned;
// the link's end (ErrPeerGone, ErrPeerRestarted, ErrClosed, ErrProtocol, or ErrBusy
// when too many control messages wait for the peer).
func (t *Transfer) Wait(ctx context.Context) (Result, error) {
	h := t.half()
	select {
	case <-h.over:
	case <-ctx.Done():
		return t.result(), context.Cause(ctx)
	}
	return t.result(), h.err // err does not change any more
}

func (t *Transfer) result() Result {
	r := Result{Progress: t.Progress()}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.mu.posted:
	case t.mu.finish.IsZero():
		r.Duration = time.Since(t.mu.start)
	default:
		r.Duration = t.mu.finish.Sub(t.mu.start)
	}
	return r
}

// Cancel ends the transfer with ErrCancelled unless it has ended. It does not
// wait: Wait and Release do. It is idempotent.
func (t *Transfer) Cancel() {
	t.finish(fmt.Errorf("transfer %d: %w", t.key.id, ErrCancelled))
}

// Release cancels the transfer if it still runs and returns when it is quiet: no
// call into a Source, Sink or OnLanded of this side runs or will start. It is
// idempotent, always returns nil, and must not be called from such a call.
func (t *Transfer) Release() error {
	t.Cancel()
	<-t.half().over
	return nil
}
