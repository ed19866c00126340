package transfer_test

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
)

// taps watches the dialled stripes of a pull, by their ports at the dialler, and
// silences one of them on demand.
type taps struct {
	mu      sync.Mutex
	p       *pull
	seen    map[netip.AddrPort]int // packets since watch
	dead    netip.AddrPort
	to, fro bool // which way it is dead: to the dialler, from it
}

func tapStripes(f *fleet, p *pull) *taps {
	x := &taps{p: p, seen: map[netip.AddrPort]int{}}
	f.network.Tap(func(pkt wan.Packet) wan.Verdict {
		x.mu.Lock()
		defer x.mu.Unlock()
		port, toward := pkt.From, false
		if pkt.From.Addr() == p.src.ip {
			port, toward = pkt.To, true
		}
		x.seen[port]++
		if port == x.dead && (toward && x.to || !toward && x.fro) {
			return wan.Drop
		}
		return wan.Pass
	})
	return x
}

// silence kills a stripe that does not carry control: a call goes over the one
// that does.
func (x *taps) silence(t *testing.T, to, fro bool) {
	t.Helper()
	time.Sleep(time.Second)
	x.mu.Lock()
	all := x.seen
	x.seen = map[netip.AddrPort]int{}
	x.mu.Unlock()
	_, _ = x.p.link.Call(t.Context(), nil) // refused, which is an answer
	x.mu.Lock()
	defer x.mu.Unlock()
	for port := range all {
		if x.seen[port] == 0 {
			x.dead, x.to, x.fro = port, to, fro
			return
		}
	}
	t.Fatalf("ports %v, of which a call used %v", all, x.seen)
}

// counter reads one counter of a registry.
func counter(t *testing.T, r *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// TestStripeSilenced has one connection go dead one way or both ways before a
// transfer: the others carry it, and it is over in little more than the time it
// takes to find out; the link is whole again afterwards.
func TestStripeSilenced(t *testing.T) {
	for _, tc := range []struct {
		name    string
		to, fro bool
	}{{"to the dialler", true, false}, {"from the dialler", false, true}, {"both ways", true, true}} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := overWAN(t, slow)
				reg := prometheus.NewRegistry()
				p := newPull(t, f, 256, func(i int, c *transfer.Config) {
					if i == 1 {
						c.Registerer = reg
					}
				})
				x := tapStripes(f, p)
				read := func() time.Duration {
					clear(p.to.b)
					res, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{})
					if err != nil {
						t.Fatal(err)
					}
					p.equal(t)
					return res.Duration
				}
				read()
				whole := read()
				x.silence(t, tc.to, tc.fro)
				took := read()
				hedged := counter(t, reg, "kvferry_transfer_hedged_bytes_total")
				t.Logf("%v with all, %v with one silenced, %.0f bytes hedged", whole, took, hedged)
				if took > whole+3*time.Second {
					t.Errorf("took %v, %v before", took, whole)
				}
				if hedged > 16<<20 {
					t.Errorf("%.0f bytes of duplicates", hedged)
				}
				time.Sleep(time.Minute)
				// Four, or six where the transfer ended while two more were on trial.
				if s := p.link.Stats(); s.Stripes < 4 || s.Stripes > 6 {
					t.Errorf("%d stripes a minute later", s.Stripes)
				}
				if again := read(); again > whole*3/2 {
					t.Errorf("a minute later %v, %v before", again, whole)
				}
				time.Sleep(time.Second)
				idle(t, p.src, p.dst)
			})
		})
	}
}
