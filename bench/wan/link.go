package wan

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"
)

// LinkStats counts what one directed link has done since it was opened.
// Bytes are those of IP packets: they include Overhead.
type LinkStats struct {
	Packets         int64 // accepted into the bottleneck
	Bytes           int64 // of those packets
	Delivered       int64 // handed to the far end
	DeliveredBytes  int64 // of those packets
	DroppedLoss     int64 // lost behind the bottleneck
	DroppedQueue    int64 // the queue was full
	DroppedCut      int64 // offered while cut, or in flight at the cut
	DroppedMTU      int64 // larger than the MTU
	DroppedReceiver int64 // no socket at the far end, or its buffer was full
	MaxQueueBytes   int64 // deepest queue seen, the packet in service included
}

// A Link is one direction of a modelled path. It owns one goroutine, which
// sleeps while nothing is in flight.
type Link struct {
	name  string
	epoch time.Time     // times below are since epoch
	wake  chan struct{} // capacity 1: a pending wake-up is enough
	stop  chan struct{}
	done  sync.WaitGroup

	// delivering is held by the delivery goroutine while it hands packets
	// over; it is taken without mu held. Cut takes it to wait for a batch.
	delivering sync.Mutex

	mu struct {
		sync.Mutex
		model  Model // resolved
		loss   *rand.Rand
		jitter *rand.Rand
		bad    bool // Gilbert–Elliott state
		cut    bool
		closed bool

		busySince time.Duration // start of the busy period
		busyBits  float64       // serialised or queued since then
		freeAt    time.Duration // end of the last packet's serialisation
		lastAt    time.Duration // latest arrival, for order
		queued    int64         // bytes in serving
		serving   fifo[departure]
		flying    fifo[*packet]
		stats     LinkStats
	}
}

// departure is a packet that holds room in the queue until it is serialised.
type departure struct {
	at    time.Duration
	bytes int64
}

// packet is one datagram in flight; pooled.
type packet struct {
	data []byte
	from net.Addr       // shown to the reader, never modified
	to   netip.AddrPort // used by Network and Relay
	sink sink
	at   time.Duration // arrival
	wire int64         // bytes on the link, headers included; set by send
}

// sink takes packets from a link's goroutine. It reports false when there was
// no room or nobody to take the packet, and must not keep p.data after it
// returns unless it takes ownership of p, which it does by returning true.
type sink interface {
	receive(p *packet) bool
}

var packetPool = sync.Pool{New: func() any { return &packet{data: make([]byte, 0, 2048)} }}

func newPacket(payload []byte) *packet {
	p := packetPool.Get().(*packet)
	p.data = append(p.data[:0], payload...)
	return p
}

func (p *packet) free() {
	p.from, p.sink = nil, nil
	if cap(p.data) <= 2048 {
		packetPool.Put(p)
	}
}

// OpenLink starts a directed link for use by relays. name is mixed into the
// seed, so that links of one model draw apart. The model must be valid (see
// Model.Validate); OpenLink panics otherwise, as regexp.MustCompile does.
// Close is owed.
func OpenLink(m Model, name string) *Link {
	if err := m.Validate(); err != nil {
		panic("BUG: OpenLink: " + err.Error())
	}
	l := &Link{name: name, epoch: time.Now(), wake: make(chan struct{}, 1), stop: make(chan struct{})}
	l.mu.model = m.withDefaults()
	l.seed(m.Seed)
	l.done.Go(l.run)
	return l
}

// seed gives loss and jitter a generator each, so that switching one on does
// not change the other's draws.
func (l *Link) seed(seed uint64) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(l.name))
	l.mu.loss = rand.New(rand.NewPCG(seed, h.Sum64()))
	l.mu.jitter = rand.New(rand.NewPCG(seed, h.Sum64()^0x9e3779b97f4a7c15))
}

// A Receiver is the far end of a link that carries whole IP packets.
type Receiver interface {
	// Receive takes one packet, in order, on the link's goroutine. It must not
	// block for long, nor keep ip after it returns. False counts the packet as
	// LinkStats.DroppedReceiver.
	Receive(ip []byte) bool
}

// SendIP offers the link one whole IP packet for to. What counts is its length:
// Overhead is in it. ip is copied. It never blocks: what the link does not take
// is dropped and counted.
func (l *Link) SendIP(ip []byte, to Receiver) {
	p := newPacket(ip)
	p.sink = ipSink{to}
	l.offer(p, int64(len(ip)))
}

type ipSink struct{ to Receiver }

func (s ipSink) receive(p *packet) bool {
	if !s.to.Receive(p.data) {
		return false
	}
	p.free()
	return true
}

// send offers a datagram to the link, which takes ownership of it.
func (l *Link) send(p *packet) { l.offer(p, int64(len(p.data)+Overhead)) }

// offer offers p, of b bytes on the link, which takes ownership of it.
func (l *Link) offer(p *packet, b int64) {
	p.wire = b
	l.mu.Lock()
	now := time.Since(l.epoch)
	if !l.admit(b, now) {
		l.mu.Unlock()
		p.free()
		return
	}
	p.at = l.transmit(b, now)
	if l.lose() {
		l.mu.stats.DroppedLoss++
		l.mu.Unlock()
		p.free()
		return
	}
	if j := l.mu.model.Jitter; j > 0 {
		p.at += time.Duration(l.mu.jitter.Int64N(int64(j) + 1))
	}
	p.at = max(p.at, l.mu.lastAt)
	l.mu.lastAt = p.at
	l.mu.flying.push(p)
	idle := l.mu.flying.len() == 1
	l.mu.Unlock()
	if idle {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// admit applies cut, MTU and queue. Called with mu held.
func (l *Link) admit(b int64, now time.Duration) bool {
	s := &l.mu.stats
	for l.mu.serving.len() > 0 && l.mu.serving.front().at <= now {
		l.mu.queued -= l.mu.serving.pop().bytes
	}
	switch {
	case l.mu.cut || l.mu.closed:
		s.DroppedCut++
		return false
	case b > int64(l.mu.model.MTU):
		s.DroppedMTU++
		return false
	case l.mu.model.Rate > 0 && b > l.mu.model.QueueBytes-l.mu.queued:
		s.DroppedQueue++
		return false
	}
	s.Packets++
	s.Bytes += b
	return true
}

// transmit puts b bytes on the link and returns when they arrive without
// jitter. Called with mu held.
func (l *Link) transmit(b int64, now time.Duration) time.Duration {
	m := &l.mu.model
	if m.Rate <= 0 {
		return max(now, l.mu.freeAt) + m.RTT/2
	}
	if now >= l.mu.freeAt {
		l.mu.busySince, l.mu.busyBits = now, 0
	}
	l.mu.busyBits += float64(8 * b)
	l.mu.freeAt = l.mu.busySince + time.Duration(math.Round(l.mu.busyBits*1e9/m.Rate))
	l.mu.serving.push(departure{l.mu.freeAt, b})
	l.mu.queued += b
	l.mu.stats.MaxQueueBytes = max(l.mu.stats.MaxQueueBytes, l.mu.queued)
	return l.mu.freeAt + m.RTT/2
}

// lose draws a packet's fate. Called with mu held.
func (l *Link) lose() bool {
	m := &l.mu.model
	p := m.Loss
	if g := m.Burst; g != nil {
		move := g.PGoodToBad
		if l.mu.bad {
			move = g.PBadToGood
		}
		if l.mu.loss.Float64() < move {
			l.mu.bad = !l.mu.bad
		}
		if l.mu.bad {
			p = g.LossBad
		}
	}
	return p > 0 && l.mu.loss.Float64() < p
}

// run is the link's goroutine: it delivers what is due, in order, and sleeps
// until the next arrival or until there is one. It ends at Close.
func (l *Link) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var batch []*packet
	for {
		var wait time.Duration
		if batch, wait = l.deliver(batch[:0]); wait > 0 {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
		select {
		case <-l.stop:
			return
		case <-l.wake:
		case <-timer.C:
		}
	}
}

// deliver hands over every packet that is due and returns the time until the
// next one, zero when nothing is in flight. batch is scratch space.
func (l *Link) deliver(batch []*packet) ([]*packet, time.Duration) {
	l.delivering.Lock()
	defer l.delivering.Unlock()
	for {
		batch = batch[:0]
		l.mu.Lock()
		now := time.Since(l.epoch)
		for l.mu.flying.len() > 0 && (*l.mu.flying.front()).at <= now {
			batch = append(batch, l.mu.flying.pop())
		}
		if len(batch) == 0 {
			var wait time.Duration
			if l.mu.flying.len() > 0 {
				wait = (*l.mu.flying.front()).at - now
			}
			l.mu.Unlock()
			return batch, wait
		}
		l.mu.Unlock()
		l.handOver(batch)
	}
}

func (l *Link) handOver(batch []*packet) {
	var n, bytes, refused int64
	for i, p := range batch {
		b := p.wire // p is not ours any more once it is received
		if p.sink.receive(p) {
			n++
			bytes += b
		} else {
			refused++
			p.free()
		}
		batch[i] = nil
	}
	l.mu.Lock()
	l.mu.stats.Delivered += n
	l.mu.stats.DeliveredBytes += bytes
	l.mu.stats.DroppedReceiver += refused
	l.mu.Unlock()
}

// Stats returns the link's counters.
func (l *Link) Stats() LinkStats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.stats
}

// SetModel changes the link under way. Packets accepted before keep their
// arrival times, and later ones do not overtake them. The random generators
// go on unless the seed differs from the model's before. It returns
// Model.Validate's error and then changes nothing.
func (l *Link) SetModel(m Model) error {
	if err := m.Validate(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.Seed != l.mu.model.Seed {
		l.seed(m.Seed)
	}
	l.mu.model = m.withDefaults()
	l.mu.busySince, l.mu.busyBits = max(time.Since(l.epoch), l.mu.freeAt), 0
	l.mu.freeAt = l.mu.busySince
	return nil
}

// Cut stops the link: what is in flight is lost, and so is what is offered
// until Heal. When Cut returns, nothing arrives any more.
func (l *Link) Cut() {
	l.mu.Lock()
	l.mu.cut = true
	l.drop()
	l.mu.Unlock()
	l.awaitDelivery()
}

// awaitDelivery returns once a batch that was under way is handed over.
func (l *Link) awaitDelivery() {
	l.delivering.Lock()
	defer l.delivering.Unlock()
}

// drop loses everything in flight and frees the bottleneck. Called with mu held.
func (l *Link) drop() {
	for l.mu.flying.len() > 0 {
		l.mu.flying.pop().free()
		l.mu.stats.DroppedCut++
	}
	for l.mu.serving.len() > 0 {
		l.mu.serving.pop()
	}
	l.mu.queued = 0
	now := time.Since(l.epoch)
	l.mu.busySince, l.mu.busyBits, l.mu.freeAt, l.mu.lastAt = now, 0, now, now
}

// Heal undoes Cut.
func (l *Link) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.cut = false
}

// Close ends the link and its goroutine; what is in flight is lost. It is
// idempotent and never fails.
func (l *Link) Close() error {
	l.mu.Lock()
	if !l.mu.closed {
		l.mu.closed = true
		l.drop()
		close(l.stop)
	}
	l.mu.Unlock()
	l.done.Wait()
	return nil
}
