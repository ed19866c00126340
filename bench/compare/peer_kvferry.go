package compare

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync/atomic"

	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

// openAgent opens an agent with the defaults of package transfer; conn is nil at the destination.
func openAgent(c *endConfig, conn net.PacketConn) (*transfer.Agent, error) {
	m, err := c.material()
	if err != nil {
		return nil, err
	}
	id, err := certs.FormatIdentity(region, c.node())
	if err != nil {
		return nil, err
	}
	return transfer.Open(transfer.Config{
		Name: transfer.PeerID(id), Conn: conn,
		TLS:     &tls.Config{Certificates: []tls.Certificate{m.Certificate}, RootCAs: m.Roots, ClientCAs: m.Roots, MinVersion: tls.VersionTLS13},
		Handler: func(context.Context, transfer.Peer, []byte) ([]byte, error) { return []byte("ready"), nil },
	})
}

func serveKvferry(c *endConfig, m *memory) (string, io.Closer, error) {
	return serveAgent(c, m, codec.Unknown)
}

func serveCoded(c *endConfig, m *memory) (string, io.Closer, error) {
	return serveAgent(c, m, codec.BF16)
}

// serveAgent opens a source of pages of that element.
func serveAgent(c *endConfig, m *memory, element codec.Element) (string, io.Closer, error) {
	conn, err := net.ListenPacket("udp", net.JoinHostPort(c.Host, "0"))
	if err != nil {
		return "", nil, err
	}
	a, err := openAgent(c, conn)
	if err != nil {
		return "", nil, errors.Join(err, conn.Close())
	}
	src := transfer.Bytes(m.b, m.page)
	src.Sink, src.Element = nil, element
	if _, err := a.Register(src); err != nil {
		return "", nil, errors.Join(err, a.Close())
	}
	return conn.LocalAddr().String(), a, nil
}

// kvferryMover reads the source's memory.
type kvferryMover struct {
	*transfer.Agent
	link         *transfer.Link
	here, remote []transfer.Desc
	last         atomic.Pointer[transfer.Transfer]
}

func (k *kvferryMover) landed() int64 {
	if x := k.last.Load(); x != nil {
		return x.Progress().BytesDone
	}
	return 0
}

func dialKvferry(ctx context.Context, c *endConfig, m *memory) (_ mover, err error) {
	a, err := openAgent(c, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	id, err := certs.FormatIdentity(region, nodeSource)
	if err != nil {
		return nil, err
	}
	dst := transfer.Bytes(m.b, m.page)
	dst.Source = nil
	here, err := a.Register(dst)
	if err != nil {
		return nil, err
	}
	l, err := a.Connect(ctx, c.Addr, transfer.PeerID(id))
	if err != nil {
		return nil, err
	}
	if _, err := l.Call(ctx, []byte("ready")); err != nil { // the announcement of the memory is before its answer
		return nil, err
	}
	shapes := l.Metadata().Memories
	if len(shapes) != 1 || shapes[0].Length != int64(len(m.b)) {
		return nil, fmt.Errorf("the source announces the memories %+v, want one of %d bytes", shapes, len(m.b))
	}
	k := &kvferryMover{Agent: a, link: l}
	// Blocks of 5 MiB, as the reference layout has.
	per := 5 << 20 / m.page
	for at := 0; at < len(m.begun); at += per {
		d := transfer.Desc{Offset: uint64(at) * uint64(m.page), Pages: uint32(min(per, len(m.begun)-at))}
		d.Memory = here
		k.here = append(k.here, d)
		d.Memory = shapes[0].ID
		k.remote = append(k.remote, d)
	}
	return k, nil
}

func (k *kvferryMover) move(ctx context.Context) error {
	x, err := k.link.Prepare(transfer.Read, k.here, k.remote, transfer.TransferOptions{})
	if err != nil {
		return err
	}
	k.last.Store(x)
	defer func() { _ = x.Release() }() // always nil
	if err := x.Post(ctx); err != nil {
		return err
	}
	_, err = x.Wait(ctx)
	return err
}
