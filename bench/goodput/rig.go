package goodput

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/kvferry/kvferry/bench/kvgen"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

// rig is one network with the bytes that move over it, for all configurations.
type rig struct {
	cfg      Config // with defaults
	net      *wan.Network
	ca       *certs.CA
	from, to []byte
	blocks   int
	block    int64 // bytes
}

func newRig(cfg Config) (*rig, error) {
	r := &rig{cfg: cfg, block: int64(cfg.PageBytes) * int64(cfg.PagesPerBlock)}
	r.blocks = blocks(cfg.Bytes, r.block)
	size := int64(r.blocks) * r.block
	if err := checkMemory(2 * size); err != nil {
		return nil, err
	}
	var err error
	if r.ca, err = certs.NewCA("kvferry bench", 0); err != nil {
		return nil, err
	}
	r.from, r.to = make([]byte, size), make([]byte, size)
	fillKV(r.from, cfg.PageBytes, cfg.Seed)
	clear(r.to) // touches it
	r.net = wan.NewNetwork(cfg.WAN)
	return r, nil
}

// distinct is how many bytes of pages are made; they are repeated from there on. Pages are coded one by one.
const distinct = 32 << 20

// fillKV writes seeded pages that look like KV cache to a codec.
func fillKV(b []byte, pageBytes int, seed uint64) {
	n := min(len(b), max(distinct/pageBytes, 1)*pageBytes)
	for at, i := 0, 0; at < n; at, i = at+pageBytes, i+1 {
		fillPage(b[at:min(at+pageBytes, n)], i%layers, seed+uint64(i))
	}
	for ; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

// layers is how many layers the pages are of, in turn.
const layers = 32

// fillPage fills a page with K and V of heads of 16 tokens and 128 channels, or, where it is no multiple of such, with one token of as
// many channels as fit, and bytes that do not compress for the rest.
func fillPage(b []byte, layer int, seed uint64) {
	half := len(b) / 4 // elements
	c := kvgen.Config{Tokens: 16, HeadDim: 128, Heads: half / (16 * 128), Layer: layer, Layers: layers, Seed: seed}
	if half%(16*128) != 0 || half == 0 {
		half = half / 2 * 2
		c.Tokens, c.HeadDim, c.Heads = 1, half, 1
	}
	for c.Kind = kvgen.K; half > 0 && c.Kind <= kvgen.V; c.Kind++ {
		if err := kvgen.Generate(b[:2*half], c); err != nil {
			panic("BUG: " + err.Error())
		}
		b = b[2*half:]
	}
	if len(b) > 0 {
		fill(b, seed)
	}
}

// fill writes seeded bytes that do not compress.
func fill(b []byte, seed uint64) {
	var key [32]byte
	for i := range 8 {
		key[i] = byte(seed >> (8 * i))
	}
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
}

func (r *rig) close() error { return r.net.Close() }

// damaged says that the destination's bytes are not the source's.
func (r *rig) damaged() bool { return !bytes.Equal(r.from, r.to) }

// pair is one configuration's two agents, on hosts of their own.
type pair struct {
	rig         *rig
	stripes     int // 0: as many as the path needs
	source      netip.Addr
	destination netip.Addr
	rec         atomic.Pointer[recorder]

	agents [2]*transfer.Agent // source, destination
	from   transfer.MemoryID
	to     transfer.MemoryID
	link   *transfer.Link // the destination's
}

func (r *rig) newPair(index, stripes int) *pair {
	p := &pair{rig: r, stripes: stripes}
	p.source, p.destination = netip.AddrFrom4([4]byte{10, 0, byte(index), 1}), netip.AddrFrom4([4]byte{10, 0, byte(index), 2})
	r.net.Heal(p.source, p.destination) // opens the links here: their goroutines are neither end's
	return p
}

// up opens the agents and connects them. On an error nothing stays open.
func (p *pair) up(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, p.down())
		}
	}()
	listener, err := p.rig.net.Listen(netip.AddrPortFrom(p.source, 4433))
	if err != nil {
		return err
	}
	asEnd(ctx, endSource, func(context.Context) {
		p.agents[0], err = p.open(endSource, transfer.Config{Conn: listener, Codec: p.rig.cfg.Codec})
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	asEnd(ctx, endDestination, func(ctx context.Context) {
		p.agents[1], err = p.open(endDestination, transfer.Config{Stripes: p.stripes, DialPacket: func(context.Context) (net.PacketConn, error) {
			return p.rig.net.Listen(netip.AddrPortFrom(p.destination, 0))
		}})
		if err == nil {
			p.link, err = p.agents[1].Connect(ctx, listener.LocalAddr().String(), p.agents[0].Peer().ID)
		}
	})
	if err != nil {
		return err
	}
	src := transfer.Bytes(p.rig.from, p.rig.cfg.PageBytes)
	src.Source, src.Sink = stamped{src.Source, &p.rec}, nil
	src.Element = codec.BF16
	if p.from, err = p.agents[0].Register(src); err != nil {
		return err
	}
	dst := transfer.Bytes(p.rig.to, p.rig.cfg.PageBytes)
	dst.Source = nil
	p.to, err = p.agents[1].Register(dst)
	if err != nil {
		return err
	}
	return p.announced(ctx)
}

// announced waits until the destination knows the source's memory: one round trip of the control stream is behind the
// announcement.
func (p *pair) announced(ctx context.Context) error {
	if _, ok := p.link.Metadata().Memory(p.from); ok {
		return nil
	}
	_, err := p.link.Call(ctx, []byte("ready"))
	if _, ok := p.link.Metadata().Memory(p.from); ok {
		return nil
	}
	return fmt.Errorf("the source's memory was not announced: %w", err)
}

func (p *pair) open(name string, cfg transfer.Config) (*transfer.Agent, error) {
	cert, err := p.rig.ca.Issue("bench", name)
	if err != nil {
		return nil, err
	}
	id, err := certs.FormatIdentity("bench", name)
	if err != nil {
		return nil, err
	}
	cfg.Name, cfg.ChunkBytes = transfer.PeerID(id), chunkBytes
	cfg.TLS = &tls.Config{Certificates: []tls.Certificate{cert.TLS()}, RootCAs: p.rig.ca.Pool(), ClientCAs: p.rig.ca.Pool(), MinVersion: tls.VersionTLS13}
	cfg.Handler = func(context.Context, transfer.Peer, []byte) ([]byte, error) { return []byte("ready"), nil }
	return transfer.Open(cfg)
}

// down closes the agents, the destination first.
func (p *pair) down() error {
	var errs []error
	for _, i := range []int{1, 0} {
		if p.agents[i] != nil {
			errs = append(errs, p.agents[i].Close())
			p.agents[i] = nil
		}
	}
	p.link = nil
	return errors.Join(errs...)
}

// sending is what the source has sent since it connected, all its links, and what the destination repaired of it.
func (p *pair) sending() transfer.LinkStats {
	var out transfer.LinkStats
	for _, l := range p.agents[0].Links() {
		s := l.Stats()
		out.BytesSent += s.BytesSent
		out.PacketsSent += s.PacketsSent
		out.PacketsLost += s.PacketsLost
		out.Repair.ParityPackets += s.Repair.ParityPackets
		out.Repair.ParityBytes += s.Repair.ParityBytes
		out.RTTMin, out.RTTSmoothed, out.Stripes = s.RTTMin, s.RTTSmoothed, s.Stripes
	}
	if p.link != nil {
		out.Repair.Repaired = p.link.Stats().Repair.Repaired
	}
	return out
}

// descs are all blocks of a memory.
func (r *rig) descs(id transfer.MemoryID) []transfer.Desc {
	out := make([]transfer.Desc, r.blocks)
	for i := range out {
		out[i] = transfer.Desc{Memory: id, Offset: uint64(i) * uint64(r.block), Pages: uint32(r.cfg.PagesPerBlock)}
	}
	return out
}

// pathOf is what is known of a path; nil when nothing is.
func pathOf(e transfer.Estimates) *Path {
	known := func(x transfer.Estimate, scale float64) *float64 {
		if !x.Known() {
			return nil
		}
		return ptr(scale * x.Value)
	}
	p := Path{known(e.Goodput, 8), known(e.Capacity, 8), known(e.Loss, 1), known(e.Ramp, 1)}
	if p == (Path{}) {
		return nil
	}
	return &p
}
