//go:build chaos

package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/kvferry/kvferry/internal/daemon"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

const peerPort = 7441

// Bounds of the daemons, short so that a run is.
const (
	callTimeout     = 2 * time.Second
	connectTimeout  = 5 * time.Second
	progressTimeout = 5 * time.Second
	leaseTTL        = 10 * time.Second
	// grace is what a migration may take beyond its deadline: the authority's word on a hand-over is waited for.
	grace = 4*callTimeout + connectTimeout + time.Second
)

// host is a machine: an address and a disk, on which one daemon runs at a time.
type host struct {
	r    *run
	i    int
	name string
	ip   netip.Addr

	mu    sync.Mutex
	cur   *node // nil: none runs
	birth chan struct{}
	born  int // daemons so far
}

// node is one daemon's life.
type node struct {
	h      *host
	dir    string // of state and arenas
	d      *daemon.Daemon
	conn   *grpc.ClientConn
	eng    pb.EngineServiceClient
	mig    pb.MigrationServiceClient
	region pb.RegionServiceClient
	gate   gate
	dead   chan struct{} // closed when it is killed

	mu      sync.Mutex
	closed  bool
	sockets []net.PacketConn
	engine  *engine
}

func (n *node) isDead() bool {
	select {
	case <-n.dead:
		return true
	default:
		return false
	}
}

func (h *host) state(dir string) string { return filepath.Join(dir, "state") }

// current is the daemon that runs, nil for none.
func (h *host) current() *node {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.cur
}

// await is the daemon that runs, once one does; nil: none did in time.
func (h *host) await(d time.Duration) *node {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		h.mu.Lock()
		cur, birth := h.cur, h.birth
		h.mu.Unlock()
		if cur != nil {
			return cur
		}
		select {
		case <-birth:
		case <-timer.C:
			return nil
		}
	}
}

// listen opens a socket of n.
func (n *node) listen(port uint16) (net.PacketConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return nil, net.ErrClosed
	}
	inner, err := n.h.r.net.Listen(netip.AddrPortFrom(n.h.ip, port))
	if err != nil {
		return nil, err
	}
	n.sockets = append(n.sockets, inner)
	return &socket{PacketConn: inner, gate: &n.gate}, nil
}

// start starts a daemon on what is in dir.
func (h *host) start(dir string) error {
	r := h.r
	n := &node{h: h, dir: dir, dead: make(chan struct{})}
	for _, sub := range []string{h.state(dir), filepath.Join(dir, "arena")} {
		if err := os.MkdirAll(sub, 0o700); err != nil {
			return err
		}
	}
	off := false
	cfg := daemon.Config{
		Node:      daemon.NodeConfig{ID: h.name, Region: "r-" + h.name},
		Listen:    daemon.ListenConfig{Unix: "/in/this/process", GRPC: "off", Admin: "off", QUIC: "0.0.0.0:1"},
		Arena:     daemon.ArenaConfig{Dir: filepath.Join(dir, "arena"), Bytes: 1 << 20, Lock: &off},
		GPU:       daemon.GPUConfig{Enabled: &off},
		Link:      daemon.LinkConfig{ConnectTimeout: connectTimeout, ProgressTimeout: progressTimeout, Stripes: 2},
		Migration: daemon.MigrationConfig{CallTimeout: callTimeout, LeaseTTL: leaseTTL, Deadline: time.Minute},
		StateDir:  h.state(dir),
	}
	for j, other := range names {
		if j != h.i {
			cfg.Peers = append(cfg.Peers, daemon.PeerConfig{Node: other, Region: "r-" + other, Address: netip.AddrPortFrom(r.hosts[j].ip, peerPort).String()})
		}
	}
	tls := r.pairs[h.i].Material(r.ca).ServerConfig()
	tls.RootCAs = tls.ClientCAs
	packets, err := n.listen(peerPort)
	if err != nil {
		return err
	}
	pipe := bufconn.Listen(1 << 20)
	n.d, err = daemon.Open(cfg, daemon.Parts{
		Local: pipe, Packets: packets, TLS: tls, Version: "chaos", Log: r.logger(h.name),
		DialPacket: func(context.Context) (net.PacketConn, error) { return n.listen(0) },
	})
	if err != nil {
		return errors.Join(err, packets.Close())
	}
	n.conn, err = grpc.NewClient("passthrough:///"+h.name, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) }))
	if err != nil {
		return errors.Join(err, n.d.Close())
	}
	n.eng, n.mig, n.region = pb.NewEngineServiceClient(n.conn), pb.NewMigrationServiceClient(n.conn), pb.NewRegionServiceClient(n.conn)
	if err := n.register(); err != nil {
		return errors.Join(err, n.conn.Close(), n.d.Close())
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.cur = n
	close(h.birth)
	return nil
}

// kill ends h's daemon as SIGKILL would: from here on nothing that it does counts, its disk is as it was at this moment, and its peers
// hear nothing. Another one starts on that disk after down. It may be called from within the daemon, with its locks held.
func (h *host) kill(down time.Duration, why string) {
	r := h.r
	h.mu.Lock()
	n := h.cur
	if n == nil {
		h.mu.Unlock()
		return
	}
	h.cur, h.birth = nil, make(chan struct{})
	h.born++
	next := filepath.Join(r.dir, fmt.Sprintf("%s-%d", h.name, h.born))
	h.mu.Unlock()
	close(n.dead)
	if err := copyDir(n.dir, next); err != nil {
		r.failf("harness", "copy %s's disk: %v", h.name, err)
	}
	n.mu.Lock()
	n.closed = true
	for _, s := range n.sockets {
		_ = s.Close()
	}
	n.mu.Unlock()
	n.gate.open()
	r.logf("%s is killed (%s), and starts again in %v", h.name, why, down)
	r.wg.Go(func() { // what is left of it ends; nobody sees it
		_ = n.conn.Close()
		n.closeEngine()
		_ = n.d.Close()
		_ = os.RemoveAll(n.dir)
	})
	r.wg.Go(func() {
		time.Sleep(down)
		if err := h.start(next); err != nil {
			r.failf("restart", "%s does not start again: %v", h.name, err)
			return
		}
		r.logf("%s has started again", h.name)
	})
}

// copyDir copies a folder of plain files and folders. A file that changes meanwhile is read again.
func copyDir(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		if e.IsDir() {
			err = copyDir(src, dst)
		} else {
			err = copyFile(src, dst)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) { // a temporary file may have gone
			return err
		}
	}
	return nil
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	for again := 0; err == nil && again < 10; again++ {
		var now []byte
		if now, err = os.ReadFile(from); err != nil || bytes.Equal(b, now) {
			break
		}
		b = now
	}
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o600)
}
