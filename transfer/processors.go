package transfer

import (
	"math"
	"sync"
	"time"

	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// Codecs codes and decodes pages: see codec.Encode and codec.Decode, whose contract it has. It is called concurrently, with
// different scratches.
type Codecs interface {
	Encode(id codec.ID, dst, src []byte, s *codec.Scratch) ([]byte, error)
	Decode(id codec.ID, dst, src []byte, s *codec.Scratch) error
}

// packageCodecs is package codec.
type packageCodecs struct{}

func (packageCodecs) Encode(id codec.ID, dst, src []byte, s *codec.Scratch) ([]byte, error) {
	return codec.Encode(id, dst, src, s)
}

func (packageCodecs) Decode(id codec.ID, dst, src []byte, s *codec.Scratch) error {
	return codec.Decode(id, dst, src, s)
}

// maxCores bounds Config.Cores.
const maxCores = 1<<16 - 1

// processors are what codes and decodes for an agent: as many pages or chunks at a time as there are processors, so that what one
// takes is its cost and not that of those beside it.
type processors struct {
	codecs Codecs
	turns  chan struct{} // capacity Config.Cores

	mu struct {
		sync.Mutex
		costs [wire.MaxCostCodec + 1]codecCosts
	}
}

// codecCosts are what a codec takes when it need not wait for a processor, seconds a raw byte; 0: not known.
type codecCosts struct {
	encode, decode   float64
	encoded, decoded time.Time // the last of each
}

func newProcessors(c Config) *processors {
	return &processors{codecs: c.Codecs, turns: make(chan struct{}, c.Cores)}
}

// run does work when it is its turn, and returns what that took.
func (p *processors) run(work func() error) (took time.Duration, err error) {
	p.turns <- struct{}{}
	defer func() { <-p.turns }()
	start := time.Now()
	err = work()
	return time.Since(start), err
}

// encode codes the pages of a chunk.
func (p *processors) encode(out *codedChunk, id codec.ID, raw []byte, pageBytes int) (time.Duration, error) {
	took, err := p.run(func() error { return out.encode(p.codecs, id, raw, pageBytes) })
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.mu.costs[id]
	learnCost(&c.encode, &c.encoded, took, len(raw))
	return took, err
}

// decode decodes a page.
func (p *processors) decode(id codec.ID, page []byte, c *codedPage) (time.Duration, error) {
	took, err := p.run(func() error { return p.codecs.Decode(id, page, c.b, &c.scratch) })
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &p.mu.costs[id]
	learnCost(&s.decode, &s.decoded, took, len(page))
	return took, err
}

// learnCost takes a sample in; after a pause it is all that counts.
func learnCost(known *float64, at *time.Time, took time.Duration, bytes int) {
	if took <= 0 || bytes == 0 { // a clock that stands, in tests, tells nothing
		return
	}
	now, cost := time.Now(), took.Seconds()/float64(bytes)
	if now.Sub(*at) >= retryAfter {
		*known = cost
	}
	*known = towards(*known, cost)
	*at = now
}

// towards is a cost after another sample: what that is less by counts with codedWeight, what it is more by with a tenth of that, since
// it may have waited for a processor that others had.
func towards(cost, sample float64) float64 {
	weight := codedWeight
	if sample > cost {
		weight /= 10
	}
	return cost + weight*(sample-cost)
}

// costs is what is to be told to peers.
func (p *processors) costs() wire.Costs {
	m := wire.Costs{Cores: uint16(cap(p.turns))}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, c := range p.mu.costs {
		if c.encode > 0 || c.decode > 0 {
			m.Codecs = append(m.Codecs, wire.Cost{Codec: uint8(id), Encode: picoseconds(c.encode), Decode: picoseconds(c.decode)})
		}
	}
	return m
}

func picoseconds(s float64) uint32 { return uint32(min(math.Ceil(s*1e12), math.MaxUint32)) }

// toldChange is by how much a cost must have changed to be told again.
const toldChange = 1.1

// costsChanged reports whether a peer that knows was should be told now.
func costsChanged(was, now wire.Costs) bool {
	if was.Cores != now.Cores || len(was.Codecs) != len(now.Codecs) {
		return true
	}
	far := func(a, b uint32) bool {
		return float64(a) > toldChange*float64(b) || float64(b) > toldChange*float64(a)
	}
	for i, c := range now.Codecs {
		if w := was.Codecs[i]; w.Codec != c.Codec || far(w.Encode, c.Encode) || far(w.Decode, c.Decode) {
			return true
		}
	}
	return false
}

// tellCosts tells the peer what coding takes here when it does not know; again: whatever it was told before.
func (l *Link) tellCosts(again bool) {
	if !l.coder.takesCosts() {
		return
	}
	now := l.agent.processors.costs()
	l.mu.Lock()
	tell := again || costsChanged(l.mu.told, now)
	if tell {
		l.mu.told = now
	}
	l.mu.Unlock()
	if !tell {
		return
	}
	payload, err := wire.AppendCosts(nil, now)
	if err != nil { // the bounds hold above
		return
	}
	l.push(wire.TypeCosts, 0, 0, payload)
}

// heed takes in what coding takes the peer.
func (k *coder) heed(m wire.Costs) {
	p := &peerCosts{cores: float64(m.Cores)}
	for _, c := range m.Codecs {
		p.encode[c.Codec], p.decode[c.Codec] = float64(c.Encode)/1e12, float64(c.Decode)/1e12
	}
	k.peer.Store(p)
}

// peerCosts is what the peer said: seconds a raw byte, 0: not known.
type peerCosts struct {
	cores          float64
	encode, decode [wire.MaxCostCodec + 1]float64
}

// codecRate is how many raw bytes a second the slower end does of a codec that the peer codes with and this side decodes, while both
// send or receive what is left of them; 0: not known.
func (l *Link) codecRate(id codec.ID, ratio float64) float64 {
	peer, p := l.coder.peer.Load(), l.agent.processors
	if peer == nil || id == codec.Raw {
		return 0
	}
	p.mu.Lock()
	decode := p.mu.costs[id].decode
	p.mu.Unlock()
	encode := peer.encode[id]
	if encode == 0 || decode == 0 {
		return 0
	}
	return min(peer.cores/(encode+sendCost/ratio), float64(cap(p.turns))/(decode+sendCost/ratio))
}
