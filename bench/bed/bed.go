package bed

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
	SourceID      = "source"
	DestinationID = "destination"
)

const (
	peerPort = 7441
	pipeSize = 1 << 20 // of an in-memory gRPC connection
)

// Config is what Open takes.
type Config struct {
	// WAN is the link, both directions alike.
	WAN wan.Model
	// ArenaDir is the folder for a folder of arenas. Default /dev/shm where that is, else the system's folder for temporary files.
	ArenaDir string
	// Stripes is the connections of the link; 0: the daemon chooses.
	Stripes int
	// Region is that of both. Default "bench".
	Region string
	// Edit changes the configuration of a daemon before it starts; nil changes nothing.
	Edit func(id string, c *daemon.Config)
}

// A Bed is two daemons over one model link, all in this process.
type Bed struct {
	Source, Destination *Node

	net   *wan.Network
	dir   folder // of arenas
	state folder // of session directories
}

// A Node is one daemon with clients to it.
type Node struct {
	ID     string
	Conn   *grpc.ClientConn
	Engine pb.EngineServiceClient
	Move   pb.MigrationServiceClient
	Region pb.RegionServiceClient

	ip   netip.Addr
	d    *daemon.Daemon
	pipe *bufconn.Listener
}

var addresses = map[string]netip.Addr{
	SourceID: netip.AddrFrom4([4]byte{10, 0, 0, 1}), DestinationID: netip.AddrFrom4([4]byte{10, 0, 0, 2}),
}

// Open starts both daemons. Close is owed unless there is an error.
func Open(cfg Config) (_ *Bed, err error) {
	if cfg.ArenaDir == "" {
		if cfg.ArenaDir = "/dev/shm"; !isDir(cfg.ArenaDir) {
			cfg.ArenaDir = os.TempDir()
		}
	}
	if cfg.Region == "" {
		cfg.Region = "bench"
	}
	b := &Bed{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if b.dir, err = makeFolder(cfg.ArenaDir); err != nil {
		return nil, fmt.Errorf("make a folder for arenas (choose another with the arena folder): %w", err)
	}
	if b.state, err = makeFolder(os.TempDir()); err != nil {
		return nil, fmt.Errorf("make a folder for session directories: %w", err)
	}
	ca, err := certs.NewCA("kvferry bench", 0)
	if err != nil {
		return nil, err
	}
	b.net = wan.NewNetwork(cfg.WAN)
	if b.Source, err = b.start(cfg, ca, SourceID, DestinationID); err != nil {
		return nil, err
	}
	if b.Destination, err = b.start(cfg, ca, DestinationID, SourceID); err != nil {
		return nil, err
	}
	return b, nil
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}

// StateDir is the folder with both daemons' session directories.
func (b *Bed) StateDir() string { return b.state.path }

// Cut has the link lose everything until Heal.
func (b *Bed) Cut() { b.net.Cut(addresses[SourceID], addresses[DestinationID]) }

// Heal ends a Cut.
func (b *Bed) Heal() { b.net.Heal(addresses[SourceID], addresses[DestinationID]) }

// start starts one daemon that knows the other.
func (b *Bed) start(cfg Config, ca *certs.CA, id, other string) (*Node, error) {
	n := &Node{ID: id, ip: addresses[id]}
	pair, err := ca.Issue(cfg.Region, id)
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
		Node:   daemon.NodeConfig{ID: id, Region: cfg.Region},
		Listen: daemon.ListenConfig{Unix: "/in/this/process", GRPC: "off", Admin: "off", QUIC: "0.0.0.0:1"},
		Arena:  daemon.ArenaConfig{Dir: b.dir.path, Bytes: 4 << 20, Lock: &lock, Keep: -1},
		Link:   daemon.LinkConfig{Stripes: cfg.Stripes, ConnectTimeout: connectTimeout(cfg.WAN), ProgressTimeout: time.Minute},
		Peers: []daemon.PeerConfig{{
			Node: other, Region: cfg.Region, Address: netip.AddrPortFrom(addresses[other], peerPort).String(), PriorBps: cfg.WAN.Rate,
		}},
		Migration: daemon.MigrationConfig{CallTimeout: time.Minute},
		StateDir:  state,
	}
	if cfg.Edit != nil {
		cfg.Edit(id, &dc)
	}
	n.pipe = bufconn.Listen(pipeSize)
	n.d, err = daemon.Open(dc, daemon.Parts{
		Local: n.pipe, Packets: packets, TLS: tlsConfig, Version: "bench",
		DialPacket: func(context.Context) (net.PacketConn, error) { return b.net.Listen(netip.AddrPortFrom(n.ip, 0)) },
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the %s's daemon: %w", id, err), packets.Close())
	}
	n.Conn, err = grpc.NewClient(n.Target(), n.DialOptions()...)
	if err != nil {
		return nil, errors.Join(err, n.d.Close())
	}
	n.Engine, n.Move, n.Region = pb.NewEngineServiceClient(n.Conn), pb.NewMigrationServiceClient(n.Conn), pb.NewRegionServiceClient(n.Conn)
	return n, nil
}

// connectTimeout leaves a slow link the round trips of its handshakes.
func connectTimeout(m wan.Model) time.Duration { return 5*time.Second + 20*m.RTT }

// Target is the daemon's gRPC target, for DialOptions.
func (n *Node) Target() string { return "passthrough:///" + n.ID }

// DialOptions reach the daemon from this process.
func (n *Node) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.pipe.DialContext(ctx) }),
	}
}

func (n *Node) close() error {
	if n == nil {
		return nil
	}
	return errors.Join(n.Conn.Close(), n.d.Close())
}

// Close ends the daemons, the destination first, and removes their files.
func (b *Bed) Close() error {
	errs := []error{b.Destination.close(), b.Source.close()}
	if b.net != nil {
		errs = append(errs, b.net.Close())
	}
	return errors.Join(append(errs, b.dir.remove(), b.state.remove())...)
}

// Link is the destination's view of its link with the source; empty when there is none.
func (b *Bed) Link(ctx context.Context) (*pb.LinkStatus, error) {
	return b.Destination.Link(ctx, SourceID)
}

// PacketsLost are those that the source took for lost, so far.
func (b *Bed) PacketsLost(ctx context.Context) (int64, error) {
	l, err := b.Source.Link(ctx, DestinationID)
	return l.GetPacketsLost(), err
}

// Link is n's view of its links with a peer; empty when there is none.
func (n *Node) Link(ctx context.Context, peer string) (*pb.LinkStatus, error) {
	resp, err := n.Region.ListLinks(ctx, &pb.ListLinksRequest{})
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

// ReceiverDrops are packets that either end's socket had no room for, so far.
func (b *Bed) ReceiverDrops() int64 {
	s, d := addresses[SourceID], addresses[DestinationID]
	return int64(b.net.Stats(s, d).DroppedReceiver + b.net.Stats(d, s).DroppedReceiver)
}
