package transfer

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// Values of Config.Codec besides the names of codecs.
const (
	CodecAuto = "auto"
	CodecOff  = "off"
)

const (
	// sendCost is the processor time that a byte costs at the side that sends it,
	// sealing and system calls included, seconds: measured, bench/results/compare.md.
	sendCost = 2e-9
	// leastGain is what a chunk must lose to be sent coded, of its bytes.
	leastGain = 0.02
	// mostSkipped bounds the chunks that are sent raw, unseen, after some that were
	// not worth coding.
	mostSkipped = 64
	// codedMargin is by how much another way must be faster to be changed to.
	codedMargin = 1.05
	// codedWeight is that of the last chunk in the averages of a codec; see towards.
	codedWeight = 0.2
	// retryAfter is how long a codec that costs too much is left alone: the next chunk then says what it costs by now.
	retryAfter = 10 * time.Second
	// bound is the part of the path's time that coding takes from which on it may be what holds the flow.
	bound = 0.9
	// probeTrips and leastProbe say for how long pages go raw to see what the path carries, and longer, up to probeSteps times that, while
	// it carries more and more by probeGrowth; probeRest is how many times as long, and leastRest at least how long, what was seen counts:
	// at a ratio of 1.5 they cost half a percent.
	probeTrips  = 8
	leastProbe  = 100 * time.Millisecond
	probeSteps  = 16
	probeGrowth = 1.03
	probeRest   = 60
	leastRest   = 30 * time.Second
)

// priors are what codecs are taken for before they have coded anything.
var priors = map[codec.ID]coded{
	codec.Split4: {ratio: 1.33, cost: 0.9e-9, decode: 0.4e-9},
	codec.Huff:   {ratio: 1.45, cost: 1.2e-9, decode: 0.7e-9},
	codec.Huff16: {ratio: 1.17, cost: 1.2e-9, decode: 0.7e-9},
	codec.Huff8:  {ratio: 1.1, cost: 2e-9, decode: 1.2e-9},
	codec.Zstd:   {ratio: 1.3, cost: 4e-9, decode: 1e-9},
}

// coded is what a codec does to pages of one kind.
type coded struct {
	ratio  float64   // raw bytes over coded ones
	cost   float64   // processor seconds a raw byte
	decode float64   // the same at the peer
	at     time.Time // of the last chunk that it coded, or was to
	trial  bool      // what it costs is to be found out anew
}

// ways is what pages go through: a path of rate bytes a second, 0: unknown, and the
// processors of both ends; of the peer's 0: unknown.
type ways struct{ rate, cores, peerCores float64 }

// time is what a raw byte takes: of the path, or of the processors of either end,
// which code or decode it and send or receive what is left of it.
func (w ways) time(c coded) float64 {
	t := (c.cost + sendCost/c.ratio) / w.cores
	if w.peerCores > 0 {
		t = max(t, (c.decode+sendCost/c.ratio)/w.peerCores)
	}
	if w.rate > 0 {
		t = max(t, 1/(c.ratio*w.rate))
	}
	return t
}

// raw is not to code.
var raw = coded{ratio: 1}

// coder chooses codecs for what leaves over one link: for each kind of page the one
// with which a byte takes the least time, raw included, by what the path carries,
// what each codec has done lately and what the peer says that decoding takes it. Chunks that do not shrink have the next
// ones sent raw, twice as many each time. A codec that was too slow is tried again
// in time: others may have had the processors.
type coder struct {
	mode  string
	cores float64                   // that coding and sending share here
	mask  atomic.Uint64             // codecs that the peer decodes, by bit, and wire.TakesCosts
	peer  atomic.Pointer[peerCosts] // nil: not known

	mu    sync.Mutex
	kinds map[codec.Element]*codedKind
	probe probe
}

// probe finds out what the path carries while the processors hold the flow: the windows do not grow then, and say no more than that
// the path carries as much. Pages go raw for a few round trips, and on while windows or connections grow.
type probe struct {
	running bool
	began   time.Time
	until   time.Time // of a step of one that runs; else of what was seen
	rate    float64   // seen, at the begin of the step; 0: nothing
}

// carries is at least what the path carries, bytes a second, at the rate that the windows let through now. ask: pages are to go raw.
func (p *probe) carries(rate float64, rtt time.Duration, now time.Time) (carries float64, ask bool) {
	long := max(probeTrips*rtt, leastProbe)
	switch {
	case p.running && now.Before(p.until):
		return rate, true
	case p.running && rate > probeGrowth*p.rate && now.Sub(p.began) < probeSteps*long:
		p.rate, p.until = rate, now.Add(long)
		return rate, true
	case p.running:
		*p = probe{until: now.Add(max(probeRest*now.Sub(p.began), leastRest)), rate: rate}
	case p.rate == 0 || now.After(p.until):
		*p = probe{running: true, began: now, until: now.Add(long), rate: rate}
		return rate, true
	}
	return max(rate, p.rate), false
}

type codedKind struct {
	last   codec.ID // chosen last
	known  map[codec.ID]coded
	misses int // in a row
	skip   int // chunks still to be sent raw
}

// CheckCodec says what is wrong with a value of Config.Codec.
func CheckCodec(mode string) error {
	if mode == "" || mode == CodecAuto || mode == CodecOff {
		return nil
	}
	if _, err := codec.Parse(mode); err != nil {
		return fmt.Errorf("%w, besides %s and %s", err, CodecAuto, CodecOff)
	}
	return nil
}

// codecMask is what this side decodes, and that it takes costs.
func codecMask() (mask uint64) {
	for id := range codec.ID(64) {
		if id.Valid() {
			mask |= 1 << id
		}
	}
	return mask | wire.TakesCosts
}

// meet takes in what the peer decodes.
func (k *coder) meet(mask uint64) { k.mask.Store(mask) }

func (k *coder) takesCosts() bool { return k.mask.Load()&wire.TakesCosts != 0 }

func (k *coder) allowed(id codec.ID) bool { return k.mask.Load()>>id&1 == 1 }

// codes reports whether pages of kind e may ever leave coded.
func (k *coder) codes(e codec.Element) bool {
	return k.mode != CodecOff && (k.mode != CodecAuto || len(codec.For(e)) > 0)
}

// pathRate is what a link's windows let through, bytes a second, 0: unknown, and its round trip.
type pathRate struct {
	rate float64
	rtt  time.Duration
}

// choose returns the codec for a chunk of pages of kind e on that path.
func (k *coder) choose(e codec.Element, path pathRate, now time.Time) codec.ID {
	if !k.codes(e) {
		return codec.Raw
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kinds[e] == nil {
		if k.kinds == nil {
			k.kinds = make(map[codec.Element]*codedKind)
		}
		k.kinds[e] = &codedKind{known: make(map[codec.ID]coded)}
	}
	n := k.kinds[e]
	if n.skip > 0 {
		n.skip--
		return codec.Raw
	}
	if k.mode != CodecAuto {
		id, _ := codec.Parse(k.mode) // checked by Config.Validate
		if !k.allowed(id) {
			return codec.Raw
		}
		return id
	}
	w, peer := ways{rate: path.rate, cores: k.cores}, k.peer.Load()
	if peer != nil {
		w.peerCores = peer.cores
	}
	pick := k.least(e, n, w, peer)
	if pick != codec.Raw {
		pick = k.doubt(pick, n, w, peer, path.rtt, now)
	}
	n.last = pick
	if id := k.due(e, n, w, now); pick == codec.Raw && id != codec.Raw {
		return id
	}
	return pick
}

// least is the codec with which a byte takes the least time.
func (k *coder) least(e codec.Element, n *codedKind, w ways, peer *peerCosts) codec.ID {
	pick, least := codec.Raw, w.time(raw)
	if n.last != codec.Raw { // what is in use has the margin
		least *= codedMargin
	}
	for _, id := range codec.For(e) {
		if !k.allowed(id) {
			continue
		}
		t := w.time(n.what(id, peer))
		if id != n.last {
			t *= codedMargin
		}
		if t < least {
			pick, least = id, t
		}
	}
	return pick
}

// doubt returns pick, or codec.Raw where the processors hold the flow of coded pages and raw ones are faster, or might be, and it is
// time to see.
func (k *coder) doubt(pick codec.ID, n *codedKind, w ways, peer *peerCosts, rtt time.Duration, now time.Time) codec.ID {
	c := n.what(pick, peer)
	processors := w
	processors.rate = 0
	if coding := processors.time(c); w.rate == 0 || coding < bound/(c.ratio*w.rate) {
		k.probe = probe{} // the path holds it
		return pick
	} else if processors.time(raw)*codedMargin >= coding {
		return pick // raw pages are not faster over any path
	}
	var ask bool
	if w.rate, ask = k.probe.carries(w.rate, rtt, now); ask || w.time(raw)*codedMargin < w.time(c) {
		return codec.Raw
	}
	return pick
}

// due returns a codec that would be chosen if it were what it was taken for at
// first, and has not been tried for a while. It is for one chunk.
func (k *coder) due(e codec.Element, n *codedKind, w ways, now time.Time) codec.ID {
	for _, id := range codec.For(e) {
		c, ok := n.known[id]
		if !ok || !k.allowed(id) || now.Sub(c.at) < retryAfter {
			continue
		}
		first := priors[id]
		first.ratio = c.ratio
		if w.time(first)*codedMargin >= w.time(raw) {
			continue
		}
		c.at, c.trial = now, true
		n.known[id] = c
		return id
	}
	return codec.Raw
}

// what is known of a codec, here and at the peer.
func (n *codedKind) what(id codec.ID, peer *peerCosts) coded {
	c, ok := n.known[id]
	if !ok {
		c = priors[id]
	}
	if peer != nil && peer.decode[id] > 0 {
		c.decode = peer.decode[id]
	}
	return c
}

// coded takes in what a codec made of a chunk in took. It reports whether the chunk
// is worth sending so.
func (k *coder) coded(e codec.Element, id codec.ID, rawBytes, bytes int, took time.Duration, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.kinds[e]
	if float64(bytes) > (1-leastGain)*float64(rawBytes) {
		n.misses++
		n.skip = min(1<<min(n.misses, 16), mostSkipped)
		return false
	}
	n.misses = 0
	_, known := n.known[id]
	c := n.what(id, nil)
	c.ratio += codedWeight * (float64(rawBytes)/float64(bytes) - c.ratio)
	if took > 0 { // a clock that stands, in tests, tells nothing
		sample := took.Seconds() / float64(rawBytes)
		if c.cost = towards(c.cost, sample); c.trial || !known {
			c.cost = sample
		}
	}
	c.at, c.trial = now, false
	n.known[id] = c
	return true
}

// codedChunk is the coded pages of a chunk, each with its header.
type codedChunk struct {
	b       []byte
	scratch codec.Scratch
}

// encode codes pages of pageBytes bytes, one after the other in raw. A page that does
// not shrink goes as it is.
func (c *codedChunk) encode(codecs Codecs, id codec.ID, raw []byte, pageBytes int) error {
	if most := len(raw)/pageBytes*wire.PageHeaderBytes + len(raw) - pageBytes + max(pageBytes, codec.MaxEncoded(pageBytes)); cap(c.b) < most {
		c.b = make([]byte, 0, most)
	}
	c.b = c.b[:0]
	for len(raw) > 0 {
		page, at, used := raw[:pageBytes], len(c.b), id
		raw = raw[pageBytes:]
		out, err := codecs.Encode(id, wire.AppendPageHeader(c.b, wire.PageHeader{}), page, &c.scratch)
		if errors.Is(err, codec.ErrIncompressible) {
			used, out, err = codec.Raw, append(out, page...), nil
		}
		if err != nil {
			return err
		}
		c.b = out
		wire.AppendPageHeader(c.b[:at], wire.PageHeader{Codec: uint8(used), Length: uint32(len(out) - at - wire.PageHeaderBytes)})
	}
	return nil
}

// rate is what the link's windows let through, held to what the configuration
// allows, and the longest round trip.
func (l *Link) rate() (p pathRate) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.mu.stripes {
		if v := s.speed(); !s.draining && v.rtt > 0 {
			p.rate += v.until(time.Second)
			p.rtt = max(p.rtt, v.rtt)
		}
	}
	if most := float64(l.agent.cfg.MaxRate); most > 0 {
		p.rate = min(p.rate, most)
	}
	return p
}

// code codes the pages of a chunk in place, and returns the codec and how many bytes they
// take then. codec.Raw: they go raw, and are as they were.
func (l *Link) code(c chunk, pages []byte) (codec.ID, int, error) {
	mem, k := c.flow.mems[c.pair], &l.coder
	if !k.codes(mem.Element) { // the rate need not be known
		return codec.Raw, len(pages), nil
	}
	id := k.choose(mem.Element, l.rate(), time.Now())
	if id == codec.Raw {
		return codec.Raw, len(pages), nil
	}
	out := l.agent.outCodes.Get().(*codedChunk)
	defer l.agent.outCodes.Put(out)
	took, err := l.agent.processors.encode(out, id, pages, mem.PageBytes)
	if err != nil {
		return codec.Raw, 0, err
	}
	l.pagesOut.busy.Add(int64(took))
	if !k.coded(mem.Element, id, len(pages), len(out.b), took, time.Now()) {
		return codec.Raw, len(pages), nil
	}
	l.agent.metrics.codedPages.Add(float64(len(pages)))
	l.agent.metrics.codedWire.Add(float64(len(out.b)))
	return id, copy(pages, out.b), nil // shorter: it is worth sending
}
