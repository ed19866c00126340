package steady

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/transfer"
)

var (
	sourceHost      = netip.MustParseAddr("10.0.0.1")
	destinationHost = netip.MustParseAddr("10.0.0.2")
)

// rig is two agents over a model link.
type rig struct {
	cell   Cell // with defaults
	net    *wan.Network
	agents [2]*transfer.Agent // source, destination
	link   *transfer.Link     // the destination's
	pages  *pages
	ids    [2]transfer.MemoryID
}

func newRig(ctx context.Context, c Cell) (_ *rig, err error) {
	r := &rig{cell: c, net: wan.NewNetwork(c.WAN), pages: newPages(c.PageBytes)}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	ca, err := certs.NewCA("kvferry bench", 0)
	if err != nil {
		return nil, err
	}
	conn, err := r.listen(netip.AddrPortFrom(sourceHost, 4433))
	if err != nil {
		return nil, err
	}
	if r.agents[0], err = r.open(ca, "source", transfer.Config{Conn: conn}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r.agents[1], err = r.open(ca, "destination", transfer.Config{DialPacket: func(context.Context) (net.PacketConn, error) {
		return r.listen(netip.AddrPortFrom(destinationHost, 0))
	}})
	if err != nil {
		return nil, err
	}
	m := transfer.Memory{PageBytes: c.PageBytes, Length: c.bytes(), Source: r.pages}
	for i, a := range r.agents {
		if i == 1 {
			m.Source, m.Sink = nil, r.pages
		}
		if r.ids[i], err = a.Register(m); err != nil {
			return nil, err
		}
	}
	if r.link, err = r.agents[1].Connect(ctx, conn.LocalAddr().String(), r.agents[0].Peer().ID); err != nil {
		return nil, err
	}
	if _, err := r.link.Call(ctx, []byte("ready")); err != nil { // the announcement of the memory is before its answer
		return nil, err
	}
	return r, nil
}

// listen opens a socket, which charges processor time where the cell says so.
func (r *rig) listen(addr netip.AddrPort) (net.PacketConn, error) {
	conn, err := r.net.Listen(addr)
	if err != nil || r.cell.PacketCost == 0 {
		return conn, err
	}
	return &charged{PacketConn: conn, cost: r.cell.PacketCost}, nil
}

func (r *rig) open(ca *certs.CA, name string, cfg transfer.Config) (*transfer.Agent, error) {
	pair, err := ca.Issue("bench", name)
	if err != nil {
		return nil, err
	}
	id, err := certs.FormatIdentity("bench", name)
	if err != nil {
		return nil, err
	}
	cfg.Name = transfer.PeerID(id)
	cfg.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, RootCAs: ca.Pool(), ClientCAs: ca.Pool(), MinVersion: tls.VersionTLS13}
	cfg.Handler = func(context.Context, transfer.Peer, []byte) ([]byte, error) { return []byte("ready"), nil }
	if r.cell.Agents != nil {
		r.cell.Agents(&cfg)
	}
	return transfer.Open(cfg)
}

// start posts the transfer.
func (r *rig) start(ctx context.Context) (*transfer.Transfer, error) {
	var descs [2][]transfer.Desc
	block := int64(r.cell.PageBytes) * int64(r.cell.PagesPerBlock)
	for at := int64(0); at < r.cell.bytes(); at += block {
		for i := range descs {
			descs[i] = append(descs[i], transfer.Desc{Memory: r.ids[i], Offset: uint64(at), Pages: uint32(r.cell.PagesPerBlock)})
		}
	}
	x, err := r.link.Prepare(transfer.Read, descs[1], descs[0], transfer.TransferOptions{})
	if err != nil {
		return nil, err
	}
	return x, x.Post(ctx)
}

func (r *rig) close() error {
	var errs []error
	for _, i := range []int{1, 0} {
		if r.agents[i] != nil {
			errs = append(errs, r.agents[i].Close())
		}
	}
	return errors.Join(append(errs, r.net.Close())...)
}

// counters at one moment.
type counters struct {
	at     time.Time
	landed int64
	source transfer.LinkStats
	link   wan.LinkStats
}

func (r *rig) count() counters {
	c := counters{at: time.Now(), landed: r.pages.landed.Load(), link: r.net.Stats(sourceHost, destinationHost)}
	for _, l := range r.agents[0].Links() {
		c.source = l.Stats()
	}
	return c
}

func (r *rig) between(a, b counters) *Measure {
	m := &Measure{
		Bytes: b.landed - a.landed, Seconds: b.at.Sub(a.at).Seconds(), Stripes: b.source.Stripes, PacketsSent: b.source.PacketsSent - a.source.PacketsSent,
		PacketsLost: b.source.PacketsLost - a.source.PacketsLost, DroppedLoss: b.link.DroppedLoss - a.link.DroppedLoss, DroppedQueue: b.link.DroppedQueue - a.link.DroppedQueue,
	}
	m.Share = float64(m.Bytes) * 8 / (m.Seconds * r.cell.WAN.Rate)
	m.Ceiling = PacketPayload * dataShare(a.source, b.source)
	m.OfCeiling = m.Share / m.Ceiling
	m.Repair = repairText(b.source)
	return m
}

// datagramHeaders are bytes of IPv4 and UDP around a packet.
const datagramHeaders = 28

// dataShare is the part that QUIC's packets have of the bytes that the source sent between two moments; parity has the rest.
func dataShare(a, b transfer.LinkStats) float64 {
	data := float64(b.BytesSent-a.BytesSent) + datagramHeaders*float64(b.PacketsSent-a.PacketsSent)
	parity := float64(b.Repair.ParityBytes-a.Repair.ParityBytes) + datagramHeaders*float64(b.Repair.ParityPackets-a.Repair.ParityPackets)
	if data+parity <= 0 {
		return 1
	}
	return data / (data + parity)
}

// repairText is the packet repair in use: packets a group, packets of parity for them, groups open at a time.
func repairText(s transfer.LinkStats) string {
	if s.Repair.Symbols == 0 {
		return ""
	}
	return fmt.Sprintf("%d+%.1fx%d", s.Repair.Group, float64(s.Repair.Symbols)/2, s.Repair.Depth)
}

// charged is a socket whose packets cost processor time. It is charged in runs of packets: a sleep each would be most of the
// simulation's work.
type charged struct {
	net.PacketConn
	cost        time.Duration
	sent, taken atomic.Int64 // nanoseconds that are owed
}

const (
	chargedRun = 16 // full packets
	fullPacket = 1280
)

func (c *charged) charge(owed *atomic.Int64, n int) {
	cost := int64(c.cost)
	if owed.Add(cost/4+cost*3/4*int64(n)/fullPacket) < chargedRun*cost {
		return
	}
	if d := owed.Swap(0); d > 0 {
		time.Sleep(time.Duration(d))
	}
}

// WriteTo sends a packet.
func (c *charged) WriteTo(b []byte, addr net.Addr) (int, error) {
	c.charge(&c.sent, len(b))
	return c.PacketConn.WriteTo(b, addr)
}

// ReadFrom reads a packet.
func (c *charged) ReadFrom(b []byte) (int, net.Addr, error) {
	n, addr, err := c.PacketConn.ReadFrom(b)
	if err == nil {
		c.charge(&c.taken, n)
	}
	return n, addr, err
}

// SetReadBuffer and SetWriteBuffer are what QUIC asks of a socket.
func (c *charged) SetReadBuffer(n int) error {
	if s, ok := c.PacketConn.(interface{ SetReadBuffer(int) error }); ok {
		return s.SetReadBuffer(n)
	}
	return fmt.Errorf("read buffer of %T", c.PacketConn)
}

// SetWriteBuffer does as SetReadBuffer.
func (c *charged) SetWriteBuffer(n int) error {
	if s, ok := c.PacketConn.(interface{ SetWriteBuffer(int) error }); ok {
		return s.SetWriteBuffer(n)
	}
	return fmt.Errorf("write buffer of %T", c.PacketConn)
}
