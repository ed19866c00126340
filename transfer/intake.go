package transfer

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/internal/fault"
	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

const (
	pageMissing = iota
	pageLanding
	pageVerified
)

// maxResets bounds how often a page is asked for again because its stream was
// reset or cut short, which no healthy peer does often.
const maxResets = 16

// intake is the receiving half of a transfer: of a read that was started here,
// or of a peer's write.
type intake struct {
	ending
	pairs
	link     *Link
	key      flowKey
	remote   *beginning // what the peer was told, of a read
	notify   []byte     // for this side, of a peer's write
	onLanded func(pair, firstPage, pages int)

	queueTimeout time.Duration // 0 or less: off

	// When it began, of link.mu.path; guarded by the link's lock.
	watched, hungry time.Duration

	// Guarded by ending's lock.
	state      []uint8
	done       int
	bytesDone  int64
	wireDone   int64    // what those took on their way, headers not counted
	codec      codec.ID // of the last page that was coded
	again      map[int]*asked
	streams    map[*quic.ReceiveStream]struct{} // chunks that are being read
	lost       []uint32                         // stripes that were lost on the way
	retried    int
	duplicates int
	received   atomic.Int64 // bytes of chunks, headers and duplicates included
	first      mark         // when the first page was verified
	half       mark         // when half of the bytes were
	lastAt     time.Time    // of the last progress
	timer      *time.Timer
	nudges     int       // since the last progress
	seen       uint64    // bytes that the link had received at the last nudge
	queue      Queue     // where the source has it wait
	queued     time.Time // since when it has; zero: it does not
	held       bool      // it waited with pages landed
}

// mark is a moment and what had landed by then over the whole link.
type mark struct {
	at     time.Time
	landed int64
}

// asked counts the requests for one page after the first.
type asked struct{ bad, reset int }

func newIntake(l *Link, key flowKey, p pairs) *intake {
	return &intake{pairs: p, link: l, key: key, state: make([]uint8, p.pages()), again: make(map[int]*asked), streams: make(map[*quic.ReceiveStream]struct{})}
}

// streamGrace is what the peer has to end a chunk whose transfer is over.
const streamGrace = 5 * time.Second

// track notes a stream that is being read; false: the transfer takes no more.
// untrack must follow.
func (in *intake) track(s *quic.ReceiveStream) bool {
	in.Lock()
	defer in.Unlock()
	if in.decided {
		return false
	}
	in.streams[s] = struct{}{}
	return true
}

func (in *intake) untrack(s *quic.ReceiveStream) {
	in.Lock()
	defer in.Unlock()
	delete(in.streams, s)
}

// cutStreams ends what is still being read of a transfer that is over.
func (in *intake) cutStreams() {
	in.Lock()
	open := slices.Collect(maps.Keys(in.streams))
	in.Unlock()
	for _, s := range open {
		s.CancelRead(quic.StreamErrorCode(CodeCancelled))
		in.link.agent.metrics.cut.Inc()
	}
}

// check holds a chunk header against the transfer it names.
func (in *intake) check(h *wire.ChunkHeader) error {
	if int(h.Pair) >= len(in.descs) {
		return fmt.Errorf("chunk of descriptor %d of %d: %w", h.Pair, len(in.descs), ErrProtocol)
	}
	d, mem := in.descs[h.Pair], in.mems[h.Pair]
	if uint64(h.FirstPage)+uint64(h.Pages) > uint64(d.Pages) {
		return fmt.Errorf("chunk of pages %d+%d of %d: %w", h.FirstPage, h.Pages, d.Pages, ErrProtocol)
	}
	if uint64(h.RawLength) != uint64(h.Pages)*uint64(mem.PageBytes) {
		return fmt.Errorf("chunk of %d bytes for %d pages of %d: %w", h.RawLength, h.Pages, mem.PageBytes, ErrProtocol)
	}
	return nil
}

// arrived is a page that has come.
type arrived struct {
	b    []byte
	sum  uint32 // announced
	wire int    // bytes that it took, coded or not
	err  error  // it could not be decoded; wraps ErrChecksumMismatch

	codec codec.ID
	took  time.Duration // to decode
}

// land verifies one page and places it. It reports whether the page must be
// asked for again; over says that the transfer takes no more.
func (in *intake) land(pair, page int, p arrived) (bad, over bool) {
	n := in.base[pair] + page
	in.Lock()
	if in.decided {
		in.Unlock()
		return false, true
	}
	if in.state[n] != pageMissing {
		in.duplicates++
		in.Unlock()
		in.link.agent.metrics.duplicates.Inc()
		return false, false
	}
	in.state[n] = pageLanding
	in.busy++
	in.Unlock()
	defer in.leave()

	err := in.place(pair, page, p)
	in.Lock()
	if err != nil {
		in.state[n] = pageMissing
		in.Unlock()
		if !errors.Is(err, ErrChecksumMismatch) {
			in.finish(err)
			return false, true
		}
		in.link.agent.metrics.mismatches.Inc()
		if in.note(n, true) > 1 {
			in.finish(err)
			return false, true
		}
		return true, false
	}
	in.state[n] = pageVerified
	in.done++
	in.bytesDone += int64(len(p.b))
	in.wireDone += int64(p.wire)
	if p.codec != codec.Raw {
		in.codec = p.codec
	}
	in.lastAt, in.queue, in.queued = time.Now(), Queue{}, time.Time{}
	landed := in.link.landed.Add(int64(p.wire))
	if in.done == 1 {
		in.first = mark{at: in.lastAt, landed: landed}
	}
	if in.half.at.IsZero() && 2*in.bytesDone >= in.bytes() {
		in.half = mark{at: in.lastAt, landed: landed}
	}
	complete := in.done == len(in.state)
	in.wake()
	in.Unlock()
	if in.onLanded != nil {
		in.onLanded(pair, page, 1)
	}
	if complete {
		in.finish(nil)
	}
	return false, complete
}

func (in *intake) place(pair, page int, p arrived) error {
	mem := in.mems[pair]
	if !mem.enter() {
		return &ChunkError{Transfer: in.key.id, Pair: pair, Page: page, Err: ErrUnknownMemory}
	}
	defer mem.leave()
	err := p.err
	if err == nil {
		err = mem.Sink.LandPage(pair, in.descs[pair], page, p.b, p.sum)
	}
	if err != nil {
		return &ChunkError{Transfer: in.key.id, Pair: pair, Page: page, Err: err}
	}
	return nil
}

// note counts one more request for page n and returns how many of its kind
// there have been.
func (in *intake) note(n int, bad bool) int {
	in.Lock()
	defer in.Unlock()
	a := in.again[n]
	if a == nil {
		a = new(asked)
		in.again[n] = a
	}
	in.retried++
	if bad {
		a.bad++
		return a.bad
	}
	a.reset++
	return a.reset
}

// cutShort asks again for pages [first, first+pages) of pair, whose stream ended
// before they arrived.
func (in *intake) cutShort(pair, first, pages int, stripe uint32) {
	var missing []int
	for i := range pages {
		n := in.base[pair] + first + i
		in.Lock()
		skip := in.decided || in.state[n] != pageMissing
		in.Unlock()
		if skip {
			continue
		}
		if in.note(n, false) > maxResets {
			in.finish(&ChunkError{Transfer: in.key.id, Pair: pair, Page: first + i, Err: fmt.Errorf("reset %d times: %w", maxResets, ErrProtocol)})
			return
		}
		missing = append(missing, n)
	}
	in.ask(wire.ReasonBadPage, stripe, missing)
}

// stripeLost asks again for what is missing of the chunks that the peer sent
// over a lost stripe.
func (in *intake) stripeLost(stripe uint32) {
	in.Lock()
	if in.decided {
		in.Unlock()
		return
	}
	if !slices.Contains(in.lost, stripe) {
		in.lost = append(in.lost, stripe)
	}
	missing := in.missing()
	in.Unlock()
	in.ask(wire.ReasonStripeLost, stripe, missing)
}

// nudge runs when no page may have come for a while: a stripe may be dead and not
// yet know. What was sent and is missing is asked for over others: soon when the
// link as a whole has gone quiet, and then less and less often; after half the
// progress timeout in any case.
func (in *intake) nudge() {
	limit, soon, received := in.link.nudgeInterval(), in.link.quietInterval(), in.link.received()
	in.Lock()
	if in.decided {
		in.Unlock()
		return
	}
	idle := time.Since(in.lastAt)
	quiet := received-min(in.seen, received) < quietBytes
	in.seen = received
	wait := min(soon<<min(in.nudges, 16), limit)
	var missing []int
	switch {
	case idle >= limit || quiet && idle >= wait:
		missing = in.missing()
		in.nudges++
		wait = min(soon<<min(in.nudges, 16), limit)
	case idle < wait:
		in.nudges = 0
		wait = min(soon, limit) - min(idle, soon, limit)
	default: // bytes come, no page of this transfer
		wait = min(soon, limit-idle)
	}
	in.timer.Reset(max(wait, time.Millisecond))
	in.Unlock()
	if len(missing) > 0 {
		in.link.probe()
		in.ask(wire.ReasonStalled, 0, missing)
	}
}

// watch starts the timer of nudge; it is called once, when the intake begins.
func (in *intake) watch() {
	soon, received := min(in.link.quietInterval(), in.link.nudgeInterval()), in.link.received()
	in.Lock()
	defer in.Unlock()
	in.seen = received
	in.lastAt = time.Now()
	in.timer = time.AfterFunc(soon, in.nudge)
}

// quietBytes is what keep-alives and repeats come to: less than it in a
// quietInterval is a link on which nothing travels.
const quietBytes = 16 << 10

// quietInterval is the silence after which a link that should carry pages has
// gone quiet: retransmissions take a few round trips.
func (l *Link) quietInterval() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(time.Second, 8*l.counts().rtt)
}

// received is the bytes that all connections have received.
func (l *Link) received() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts().bytesReceived
}

func (l *Link) nudgeInterval() time.Duration {
	if d := l.agent.cfg.ProgressTimeout; d > 0 {
		return max(d/2, time.Millisecond)
	}
	return 10 * time.Second
}

// resync repeats every request that may have been lost with a control stream.
func (in *intake) resync() {
	in.Lock()
	if in.decided {
		in.Unlock()
		return
	}
	missing, lost := in.missing(), slices.Clone(in.lost)
	var bad []int
	for n := range in.again {
		if in.state[n] == pageMissing {
			bad = append(bad, n)
		}
	}
	in.Unlock()
	for _, stripe := range lost {
		in.ask(wire.ReasonStripeLost, stripe, missing)
	}
	slices.Sort(bad)
	in.ask(wire.ReasonBadPage, 0, bad)
}

func (in *intake) missing() []int {
	var out []int
	for n, s := range in.state {
		if s == pageMissing {
			out = append(out, n)
		}
	}
	return out
}

// ask requests ascending pages over the control stream.
func (in *intake) ask(reason wire.Reason, stripe uint32, pages []int) {
	if fault.Planted(fault.ResumeOffByOne) {
		pages = pages[:max(0, len(pages)-1)]
	}
	for len(pages) > 0 {
		base := pages[0]
		n := 0
		for n < len(pages) && pages[n]-base < wire.MaxBits {
			n++
		}
		m := wire.Again{Reason: reason, Stripe: stripe, Base: uint32(base), Pages: wire.NewBitmap(pages[n-1] - base + 1)}
		for _, p := range pages[:n] {
			m.Pages.Set(p - base)
		}
		pages = pages[n:]
		payload, err := wire.AppendAgain(nil, m)
		if err != nil {
			in.finish(fmt.Errorf("ask again: %w", err))
			return
		}
		in.link.agent.metrics.retries.Add(float64(m.Pages.Count()))
		in.link.push(wire.TypeAgain, in.key.flags(), in.key.id, payload)
	}
}

// finish ends the intake for a reason that arose here; finishAs says whether the
// peer gave it.
func (in *intake) finish(err error) bool { return in.finishAs(err, false) }

func (in *intake) finishAs(err error, byPeer bool) bool {
	if !in.end(err, byPeer) {
		return false
	}
	in.Lock()
	defer in.Unlock()
	if in.timer != nil {
		in.timer.Stop()
	}
	if len(in.streams) > 0 {
		time.AfterFunc(streamGrace, in.cutStreams)
	}
	return true
}
