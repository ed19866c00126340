package daemon

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvferry/kvferry/internal/certs"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// realNode is one daemon on real sockets of this host, outside any bubble.
type realNode struct {
	t           *testing.T
	d           *Daemon
	ca          *certs.CA
	arena       string
	socket      string
	grpc, admin string // addresses
	local       *grpc.ClientConn
	engine      pb.EngineServiceClient
	region      pb.RegionServiceClient
}

func newRealNode(t *testing.T, edit func(*Config, *Parts)) *realNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "kvf") // short: a socket's path has at most 103 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	arena, err := os.MkdirTemp("/dev/shm", "kvferry-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(arena) })
	ca, err := certs.NewCA("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Save(dir); err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue("r-a", "a")
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Save(dir); err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	n := &realNode{t: t, ca: ca, arena: arena, socket: filepath.Join(dir, "s")}
	lock := false
	cfg := Config{
		Node:     NodeConfig{ID: "a", Region: "r-a"},
		Listen:   ListenConfig{Unix: n.socket, QUIC: "127.0.0.1:0"},
		TLS:      TLSConfig{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "a.crt"), Key: filepath.Join(dir, "a.key")},
		Arena:    ArenaConfig{Dir: arena, Bytes: 1 << 20, Lock: &lock, Keep: -1},
		StateDir: filepath.Join(dir, "state"),
	}
	parts := Parts{Remote: listen(), Admin: listen(), Version: "test"}
	n.grpc, n.admin = parts.Remote.Addr().String(), parts.Admin.Addr().String()
	if edit != nil {
		edit(&cfg, &parts)
	}
	if n.d, err = Open(cfg, parts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.d.Close() })
	ids := newArenaIDs()
	n.local = n.dial("unix:"+n.socket, insecure.NewCredentials(), ids.unary(), ids.stream())
	n.engine, n.region = pb.NewEngineServiceClient(n.local), pb.NewRegionServiceClient(n.local)
	return n
}

func (n *realNode) dial(target string, creds credentials.TransportCredentials, opts ...grpc.DialOption) *grpc.ClientConn {
	n.t.Helper()
	conn, err := grpc.NewClient(target, append(opts, grpc.WithTransportCredentials(creds))...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// clientTLS is an operator's or proxy's side of the mutual TLS, with a certificate of ca.
func clientTLS(t *testing.T, roots, ca *certs.CA) credentials.TransportCredentials {
	t.Helper()
	pair, err := ca.Issue("r-a", "operator")
	if err != nil {
		t.Fatal(err)
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair.TLS()}, RootCAs: roots.Pool(), ServerName: "localhost", MinVersion: tls.VersionTLS13,
	})
}

// eventually polls cond until it holds or ten seconds have passed.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatalf("not within 10 s: %s", what)
		case <-tick.C:
		}
	}
}
