package steady

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
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
	cores  [2]*cores // of the ends
}

func newRig(ctx context.Context, c Cell) (_ *rig, err error) {
	r := &rig{cell: c, net: wan.NewNetwork(c.WAN), cores: [2]*cores{newCores(c.Cores), newCores(c.Cores)}}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	if r.pages, err = newPages(c.PageBytes, c.Codec != ""); err != nil {
		return nil, err
	}
	ca, err := certs.NewCA("kvferry bench", 0)
	if err != nil {
		return nil, err
	}
	conn, err := r.listen(0, netip.AddrPortFrom(sourceHost, 4433))
	if err != nil {
		return nil, err
	}
	if r.agents[0], err = r.open(ca, 0, transfer.Config{Conn: conn}); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	r.agents[1], err = r.open(ca, 1, transfer.Config{DialPacket: func(context.Context) (net.PacketConn, error) {
		return r.listen(1, netip.AddrPortFrom(destinationHost, 0))
	}})
	if err != nil {
		return nil, err
	}
	m := transfer.Memory{PageBytes: c.PageBytes, Length: c.bytes(), Source: r.pages}
	if c.Codec != "" {
		m.Element = codec.BF16
	}
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

// listen opens a socket of an end, which charges processor time where the cell says so.
func (r *rig) listen(end int, addr netip.AddrPort) (net.PacketConn, error) {
	conn, err := r.net.Listen(addr)
	if err != nil || r.cell.PacketCost == 0 {
		return conn, err
	}
	return &charged{PacketConn: conn, cost: r.cell.PacketCost, cores: r.cores[end]}, nil
}

func (r *rig) open(ca *certs.CA, end int, cfg transfer.Config) (*transfer.Agent, error) {
	name := [...]string{"source", "destination"}[end]
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
	cfg.Codec, cfg.Cores, cfg.Codecs = r.cell.Codec, r.cell.Cores, chargedCodecs{r.cores[end], r.cell.Costs}
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
	errs = append(errs, r.net.Close())
	for _, c := range r.cores {
		c.settle()
	}
	return errors.Join(errs...)
}

// counters at one moment.
type counters struct {
	at     time.Time
	landed int64
	source transfer.LinkStats
	came   transfer.Coding // to the destination
	link   wan.LinkStats
}

func (r *rig) count() counters {
	c := counters{at: time.Now(), landed: r.pages.landed.Load(), link: r.net.Stats(sourceHost, destinationHost), came: r.link.Stats().Received}
	for _, l := range r.agents[0].Links() {
		c.source = l.Stats()
	}
	return c
}

func (r *rig) between(a, b counters) *Measure {
	m := &Measure{
		Bytes: b.landed - a.landed, Seconds: b.at.Sub(a.at).Seconds(), Stripes: b.source.Stripes, PacketsSent: b.source.PacketsSent - a.source.PacketsSent,
		WireBytes: int64(b.came.WireBytes - a.came.WireBytes), CodedBytes: int64(b.came.CodedBytes - a.came.CodedBytes),
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
