package compare

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"

	"github.com/kvferry/kvferry/internal/certs"
)

// NameKvferry is the way that the others are compared with; the others are in Names.
const NameKvferry = "kvferry"

// The names of the other ways.
const (
	nameQUIC1  = "quic-go-1"
	nameQUIC8  = "quic-go-8"
	nameTCP    = "tcp-tls"
	nameHTTP2  = "http2"
	nameGRPC   = "grpc-tls"
	nameMemory = "quic-go-memory"
	nameBBR    = "tcp-bbr"
	nameCUBIC  = "tcp-cubic"
	nameRsync  = "rsync-ssh"
	nameCoded  = "kvferry-coded"
)

// peer is one way to move bytes.
type peer struct {
	name, what string
	floor      bool // both ends in one process, for the floor
	wan        bool // over an emulated link only
	// serve opens the source: an address for the destination, and what to close.
	serve func(*endConfig, *memory) (addr string, _ io.Closer, err error)
	// dial opens the destination.
	dial func(context.Context, *endConfig, *memory) (mover, error)
}

// mover is a destination that is connected.
type mover interface {
	// move asks for everything and returns when all of it has landed.
	move(context.Context) error
	// landed is the bytes that the last move has verified so far.
	landed() int64
	io.Closer
}

// peers in the order of the tables.
var peers = []peer{
	{name: NameKvferry, what: "two agents of package transfer, page checksums on", serve: serveKvferry, dial: dialKvferry},
	{name: nameQUIC1, what: "stock quic-go, 1 connection, a stream a chunk", serve: serveQUIC, dial: dialQUIC(1)},
	{name: nameQUIC8, what: "stock quic-go, 8 connections, a stream a chunk", serve: serveQUIC, dial: dialQUIC(8)},
	{name: nameTCP, what: "TCP with TLS 1.3, 1 connection", serve: serveTCP, dial: dialTCP},
	{name: nameHTTP2, what: "HTTP/2 over TLS 1.3, one response", serve: serveHTTP2, dial: dialHTTP2},
	{name: nameGRPC, what: "gRPC server stream over TLS 1.3, 1 MiB messages", serve: serveGRPC, dial: dialGRPC},
	{name: nameMemory, what: "quic-go over in-memory connections, both ends in one process", floor: true, serve: serveMemory, dial: dialMemory},
	{name: nameCoded, what: "the same, pages known to be BF16, so that they may travel coded", wan: true, serve: serveCoded, dial: dialKvferry},
	{name: nameBBR, what: "kernel TCP with BBR, 1 connection, no TLS", wan: true, serve: serveKernel("bbr"), dial: dialKernel("bbr")},
	{name: nameCUBIC, what: "kernel TCP with CUBIC, 1 connection, no TLS", wan: true, serve: serveKernel("cubic"), dial: dialKernel("cubic")},
}

func findPeer(name string) (*peer, error) {
	for i := range peers {
		if peers[i].name == name {
			return &peers[i], nil
		}
	}
	return nil, fmt.Errorf("no way to move bytes is called %q", name)
}

// The node names of the two ends, and their region.
const (
	region          = "bench"
	nodeSource      = "source"
	nodeDestination = "destination"
)

// material is an end's certificate as package certs uses it.
func (c *endConfig) material() (*certs.Material, error) {
	pair, err := tls.X509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate of the end: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.CA) {
		return nil, errors.New("the end has no certificate of the authority")
	}
	return &certs.Material{Roots: roots, Certificate: pair, Region: region, Node: c.node()}, nil
}

func (c *endConfig) node() string {
	if c.Role == roleDestination {
		return nodeDestination
	}
	return nodeSource
}

// serverTLS and clientTLS are mutual TLS 1.3 for a protocol.
func (c *endConfig) serverTLS(protocols ...string) (*tls.Config, error) {
	m, err := c.material()
	if err != nil {
		return nil, err
	}
	t := m.ServerConfig()
	t.NextProtos = protocols
	return t, nil
}

func (c *endConfig) clientTLS(protocols ...string) (*tls.Config, error) {
	m, err := c.material()
	if err != nil {
		return nil, err
	}
	t := m.PeerConfig(region, nodeSource)
	t.NextProtos = protocols
	return t, nil
}

// closers closes several, the last first.
type closers []io.Closer

func (c closers) Close() error {
	var errs []error
	for i := len(c) - 1; i >= 0; i-- {
		errs = append(errs, c[i].Close())
	}
	return errors.Join(errs...)
}

// closerFunc is a function as an io.Closer.
type closerFunc func() error

func (f closerFunc) Close() error { return f() }
