package queue

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/repair"
)

// pageBytes is the page of the transfers that are measured: small, so that sizes vary finely.
const pageBytes = 4 << 10

// testbed is two agents in this process, joined by an in-memory link, and one link of package transfer between them.
type testbed struct {
	network *wan.Network
	source  *transfer.Agent
	dest    *transfer.Agent
	link    *transfer.Link // at the destination
	served  *transfer.Link // the same at the source
	from    transfer.MemoryID
	to      transfer.MemoryID
}

// testbedConfig is what openTestbed needs.
type testbedConfig struct {
	wan      wan.Model
	stripes  int // 0: package transfer's default
	chunk    int // bytes, 0: the same
	maxPages int // of one job
	seed     uint64
	// concurrency is transfer.Config.Concurrency; 0: its default, which is what daemons have.
	concurrency int
}

// openTestbed starts the agents and connects them; close is owed.
func openTestbed(ctx context.Context, cfg testbedConfig) (b *testbed, err error) {
	b = &testbed{network: wan.NewNetwork(cfg.wan)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	ca, err := certs.NewCA("bench", 24*time.Hour)
	if err != nil {
		return b, fmt.Errorf("make authority: %w", err)
	}
	if b.source, err = b.openAgent(ca, "source", 1, cfg); err != nil {
		return b, err
	}
	if b.dest, err = b.openAgent(ca, "destination", 2, cfg); err != nil {
		return b, err
	}
	pages := newPattern(cfg.seed)
	length := int64(cfg.maxPages) * pageBytes
	if b.from, err = b.source.Register(transfer.Memory{PageBytes: pageBytes, Length: length, Source: pages}); err != nil {
		return b, fmt.Errorf("register source: %w", err)
	}
	if b.to, err = b.dest.Register(transfer.Memory{PageBytes: pageBytes, Length: length, Sink: pages}); err != nil {
		return b, fmt.Errorf("register destination: %w", err)
	}
	if b.link, err = b.dest.Connect(ctx, b.source.Addr().String(), b.source.Peer().ID); err != nil {
		return b, fmt.Errorf("connect: %w", err)
	}
	links := b.source.Links()
	if len(links) != 1 {
		return b, fmt.Errorf("BUG: the source has %d links, want 1", len(links))
	}
	b.served = links[0]
	return b, nil
}

// openAgent starts an agent on the host 10.0.0.<host>.
func (b *testbed) openAgent(ca *certs.CA, region string, host byte, cfg testbedConfig) (*transfer.Agent, error) {
	id, err := ca.Issue(region, "n")
	if err != nil {
		return nil, fmt.Errorf("issue certificate: %w", err)
	}
	key, err := id.KeyPEM()
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	pair, err := tls.X509KeyPair(id.CertPEM(), key)
	if err != nil {
		return nil, fmt.Errorf("load certificate: %w", err)
	}
	name, err := certs.FormatIdentity(region, "n")
	if err != nil {
		return nil, err
	}
	ip := netip.AddrFrom4([4]byte{10, 0, 0, host})
	conn, err := b.network.Listen(netip.AddrPortFrom(ip, 4433))
	if err != nil {
		return nil, err
	}
	a, err := transfer.Open(transfer.Config{
		Name: transfer.PeerID(name), Conn: conn, Stripes: cfg.stripes, ChunkBytes: cfg.chunk, ProgressTimeout: -1, Concurrency: cfg.concurrency,
		DialPacket: func(context.Context) (net.PacketConn, error) { return b.network.Listen(netip.AddrPortFrom(ip, 0)) },
		TLS:        &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: ca.Pool(), ClientCAs: ca.Pool(), MinVersion: tls.VersionTLS13},
		Repair:     repair.Config{Parity: -1}, // at first it takes of the link what the law knows nothing of
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open agent: %w", err), conn.Close())
	}
	return a, nil
}

func (b *testbed) close() error {
	var errs []error
	for _, a := range []*transfer.Agent{b.dest, b.source} {
		if a != nil {
			errs = append(errs, a.Close())
		}
	}
	return errors.Join(append(errs, b.network.Close())...)
}

// fetch reads pages from the source and returns how long that took, seconds: from the request to the last verified page.
func (b *testbed) fetch(ctx context.Context, pages int) (float64, error) {
	t, err := b.link.Prepare(transfer.Read,
		[]transfer.Desc{{Memory: b.to, Pages: uint32(pages)}},
		[]transfer.Desc{{Memory: b.from, Pages: uint32(pages)}}, transfer.TransferOptions{})
	if err != nil {
		return 0, fmt.Errorf("prepare transfer: %w", err)
	}
	defer func() { _ = t.Release() }() // it fails only for a transfer that runs
	if err := t.Post(ctx); err != nil {
		return 0, fmt.Errorf("post transfer: %w", err)
	}
	r, err := t.Wait(ctx)
	if err != nil {
		return 0, fmt.Errorf("wait for transfer: %w", err)
	}
	return r.Duration.Seconds(), nil
}

// pattern is a memory of pages that all hold the same random bytes. It verifies what lands and keeps nothing, so that any
// number of transfers may read and land at the same place at a time. It is safe for concurrent use.
type pattern struct {
	page []byte
	sum  uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newPattern(seed uint64) *pattern {
	p := &pattern{page: make([]byte, pageBytes)}
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range p.page {
		p.page[i] = byte(rng.Uint32())
	}
	p.sum = crc32.Checksum(p.page, castagnoli)
	return p
}

func (p *pattern) ReadPages(_ []byte, _ int, _ transfer.Desc, _ int, dst []byte, sums []uint32) error {
	for i := range sums {
		copy(dst[i*pageBytes:(i+1)*pageBytes], p.page)
		sums[i] = p.sum
	}
	return nil
}

func (p *pattern) LandPage(_ int, d transfer.Desc, page int, b []byte, sum uint32) error {
	if got := crc32.Checksum(b, castagnoli); got != sum || got != p.sum {
		return fmt.Errorf("page %d at offset %d: %w", page, d.Offset, transfer.ErrChecksumMismatch)
	}
	return nil
}
