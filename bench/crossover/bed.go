package crossover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/daemon"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Node ids of the two daemons.
const (
	sourceNode      = "source"
	destinationNode = "destination"
)

const (
	peerPort = 7441
	pipeSize = 1 << 20 // of an in-memory gRPC connection
)

// bed is two daemons over one model link, all in this process.
type bed struct {
	net                 *wan.Network
	dir                 folder // of arenas
	state               folder // of session directories
	source, destination *node
}

// node is one daemon with clients to it.
type node struct {
	id     string
	ip     netip.Addr
	d      *daemon.Daemon
	pipe   *bufconn.Listener
	conn   *grpc.ClientConn
	engine pb.EngineServiceClient
	move   pb.MigrationServiceClient
	region pb.RegionServiceClient
}

var bedAddr = map[string]netip.Addr{
	sourceNode: netip.AddrFrom4([4]byte{10, 0, 0, 1}), destinationNode: netip.AddrFrom4([4]byte{10, 0, 0, 2}),
}

// openBed starts both daemons. close is owed, also after an error.
func (b *bed) open(cfg Config) (err error) {
	if b.dir, err = makeFolder(cfg.ArenaDir); err != nil {
		return fmt.Errorf("make a folder for arenas (choose another with the arena folder): %w", err)
	}
	if b.state, err = makeFolder(os.TempDir()); err != nil {
		return fmt.Errorf("make a folder for session directories: %w", err)
	}
	ca, err := certs.NewCA("kvferry bench", 0)
	if err != nil {
		return err
	}
	b.net = wan.NewNetwork(cfg.WAN)
	if b.source, err = b.start(cfg, ca, sourceNode, destinationNode); err != nil {
		return err
	}
	b.destination, err = b.start(cfg, ca, destinationNode, sourceNode)
	return err
}

// start starts one daemon that knows the other.
func (b *bed) start(cfg Config, ca *certs.CA, id, other string) (*node, error) {
	n := &node{id: id, ip: bedAddr[id]}
	pair, err := ca.Issue("bench", id)
	if err != nil {
		return nil, err
	}
	tlsConfig := pair.Material(ca).ServerConfig()
	tlsConfig.RootCAs = tlsConfig.ClientCAs
	packets, err := b.net.Listen(netip.AddrPortFrom(n.ip, peerPort))
	if err != nil {
		return nil, err
	}
	lock := false
	state := filepath.Join(b.state.path, id)
	if err := os.Mkdir(state, 0o700); err != nil {
		return nil, errors.Join(err, packets.Close())
	}
	dc := daemon.Config{
		Node:   daemon.NodeConfig{ID: id, Region: "bench"},
		Listen: daemon.ListenConfig{Unix: "/in/this/process", GRPC: "off", Admin: "off", QUIC: "0.0.0.0:1"},
		Arena:  daemon.ArenaConfig{Dir: b.dir.path, Bytes: 4 << 20, Lock: &lock},
		Link:   daemon.LinkConfig{Stripes: cfg.Stripes, ConnectTimeout: connectTimeout(cfg.WAN), ProgressTimeout: time.Minute},
		Peers: []daemon.PeerConfig{{
			Node: other, Region: "bench", Address: netip.AddrPortFrom(bedAddr[other], peerPort).String(), PriorBps: cfg.WAN.Rate,
		}},
		Migration: daemon.MigrationConfig{CallTimeout: time.Minute},
		StateDir:  state,
	}
	n.pipe = bufconn.Listen(pipeSize)
	n.d, err = daemon.Open(dc, daemon.Parts{
		Local: n.pipe, Packets: packets, TLS: tlsConfig, Version: "bench",
		DialPacket: func(context.Context) (net.PacketConn, error) { return b.net.Listen(netip.AddrPortFrom(n.ip, 0)) },
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the %s's daemon: %w", id, err), packets.Close())
	}
	n.conn, err = grpc.NewClient(n.target(), n.dialOptions()...)
	if err != nil {
		return nil, errors.Join(err, n.d.Close())
	}
	n.engine, n.move, n.region = pb.NewEngineServiceClient(n.conn), pb.NewMigrationServiceClient(n.conn), pb.NewRegionServiceClient(n.conn)
	return n, nil
}

// connectTimeout leaves a slow link the round trips of its handshakes.
func connectTimeout(m wan.Model) time.Duration { return 5*time.Second + 20*m.RTT }

func (n *node) target() string { return "passthrough:///" + n.id }

func (n *node) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.pipe.DialContext(ctx) }),
	}
}

func (n *node) close() error {
	if n == nil {
		return nil
	}
	return errors.Join(n.conn.Close(), n.d.Close())
}

// close ends the daemons, the destination first, and removes their files.
func (b *bed) close() error {
	errs := []error{b.destination.close(), b.source.close()}
	if b.net != nil {
		errs = append(errs, b.net.Close())
	}
	return errors.Join(append(errs, b.dir.remove(), b.state.remove())...)
}

// link is the destination's view of its link with the source.
func (b *bed) link(ctx context.Context) (*pb.LinkStatus, error) {
	return b.destination.link(ctx, sourceNode)
}

// packetsLost are those that the source took for lost, so far.
func (b *bed) packetsLost(ctx context.Context) (int64, error) {
	l, err := b.source.link(ctx, destinationNode)
	return l.GetPacketsLost(), err
}

// link is n's view of its links with a peer; empty when there is none.
func (n *node) link(ctx context.Context, peer string) (*pb.LinkStatus, error) {
	resp, err := n.region.ListLinks(ctx, &pb.ListLinksRequest{})
	if err != nil {
		return nil, err
	}
	for _, l := range resp.GetLinks() {
		if l.GetPeer().GetNodeId() == peer {
			return l, nil
		}
	}
	return &pb.LinkStatus{}, nil
}

// receiverDrops are packets that either end's socket had no room for, so far.
func (b *bed) receiverDrops() int64 {
	s, d := bedAddr[sourceNode], bedAddr[destinationNode]
	return int64(b.net.Stats(s, d).DroppedReceiver + b.net.Stats(d, s).DroppedReceiver)
}
