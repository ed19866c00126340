package transfer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/transfertest"
)

var ca = transfertest.NewCA()

// fleet opens agents that reach each other, over loopback or a model link.
type fleet struct {
	t       *testing.T
	network *wan.Network // nil: loopback
}

// node is one agent of a fleet, and how to reach it.
type node struct {
	*transfer.Agent
	name transfer.PeerID
	addr string
	ip   netip.Addr
}

func loopback(t *testing.T) *fleet { return &fleet{t: t} }

func overWAN(t *testing.T, model string) *fleet {
	t.Helper()
	m, err := wan.Parse(model)
	if err != nil {
		t.Fatal(err)
	}
	n := wan.NewNetwork(m)
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return &fleet{t: t, network: n}
}

// config returns what open starts a node from.
func (f *fleet) config(i int) (transfer.Config, netip.Addr) {
	f.t.Helper()
	region := fmt.Sprintf("r%d", i)
	cfg := transfer.Config{Name: transfertest.Name(region, "n"), TLS: ca.Node(region, "n")}
	ip := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
	var err error
	if f.network == nil {
		cfg.Conn, err = net.ListenPacket("udp", "127.0.0.1:0")
		cfg.DialPacket = func(context.Context) (net.PacketConn, error) { return net.ListenPacket("udp", "127.0.0.1:0") }
	} else {
		cfg.Conn, err = f.network.Listen(netip.AddrPortFrom(ip, 4433))
		cfg.DialPacket = func(context.Context) (net.PacketConn, error) {
			return f.network.Listen(netip.AddrPortFrom(ip, 0))
		}
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return cfg, ip
}

// open starts node i; edit may change its configuration.
func (f *fleet) open(i int, edit func(*transfer.Config)) *node {
	f.t.Helper()
	cfg, ip := f.config(i)
	if edit != nil {
		edit(&cfg)
	}
	a, err := transfer.Open(cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := a.Close(); err != nil {
			f.t.Errorf("close %s: %v", cfg.Name, err)
		}
	})
	return &node{Agent: a, name: cfg.Name, addr: a.Addr().String(), ip: ip}
}

func connect(t *testing.T, from, to *node) *transfer.Link {
	t.Helper()
	l, err := from.Connect(t.Context(), to.addr, to.name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// random returns n seeded bytes.
func random(seed uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func register(t *testing.T, a *node, m transfer.Memory) transfer.MemoryID {
	t.Helper()
	id, err := a.Register(m)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// waitMemory returns when the peer at the other end has announced the memory.
func waitMemory(t *testing.T, l *transfer.Link, id transfer.MemoryID) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if _, ok := l.Metadata().Memory(id); ok {
			return
		}
		// A call that the peer refuses still comes after its announcements.
		_, _ = l.Call(ctx, nil)
	}
	t.Fatalf("memory %d was not announced", id)
}

// run prepares, posts and awaits one transfer.
func run(t *testing.T, l *transfer.Link, op transfer.Op, local, remote []transfer.Desc, opts transfer.TransferOptions) (transfer.Result, error) {
	t.Helper()
	x, err := l.Prepare(op, local, remote, opts)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Release()
	if err := x.Post(t.Context()); err != nil {
		t.Fatal(err)
	}
	return x.Wait(t.Context())
}
