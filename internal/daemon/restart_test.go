package daemon

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/internal/certs"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// onDisk keeps every node's sessions under dir.
func onDisk(dir string) func(string, *Config, *Parts) {
	return func(name string, c *Config, p *Parts) { c.StateDir, p.NoState = filepath.Join(dir, name), false }
}

// restart stops a node and starts it again at the same address with the same state directory.
func (f *fleet) restart(name string) *node {
	f.t.Helper()
	f.nodes[name].stop()
	for i, n := range f.names {
		if n == name {
			return f.addNode(i)
		}
	}
	return nil
}

// The directory survives a restart: sessions that were handed over are still found through the node that had them, and
// those it owns are still its own, without blocks.
func TestRestartOfSource(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, onDisk(dir), "a", "b", "c")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 1<<20)
		}
		gone := engines["a"].session("gone", 6)
		stays := engines["a"].session("stays", 6)
		f.nodes["b"].mustEnd(request("gone"), committed, "", moved)
		before := f.nodes["a"].d.Incarnation()
		a := f.restart("a")
		if a.d.Incarnation() == before {
			t.Error("the incarnation did not change")
		}
		engines["a"] = a.register("e", testLayout(), 1<<20)
		req := request("gone")
		req.SourceHint = "a"
		rep := f.nodes["c"].mustEnd(req, committed, "", moved)
		if rep.GetSource().GetNodeId() != "b" {
			t.Errorf("source %v, want b by a's forwarding record", rep.GetSource())
		}
		engines["c"].check("", gone)
		f.wantOwner("gone", "c")
		f.wantOwner("stays", "a")
		if got := a.record("stays"); len(got.GetBlockKeys()) != 6 || got.GetTokens() != 99 {
			t.Errorf("record after the restart: %v", got)
		}
		// Its memory is gone: the session moves, and all of it is to be prefilled.
		rep = f.nodes["b"].mustEnd(request("stays"), recompute, ReasonBlockNotFound, moved)
		if rep.GetTailTokens() != 99 || rep.GetBytes() != 0 || rep.GetSource().GetIncarnation() != a.d.Incarnation() {
			t.Errorf("report %v", rep)
		}
		engines["b"].write("", stays)
		f.nodes["a"].mustEnd(request("stays"), committed, "", moved)
		engines["a"].check("", stays)
		f.settle()
	})
}

// A source that is restarted in the middle of a transfer: the migration ends typed, and the next one works, at once.
func TestRestartMidTransfer(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, onDisk(dir))
		keys := r.ea.session("s", 64)
		m := r.b.begin(request("s"))
		m.landed(8192)
		r.a.stop()
		rep := m.end()
		if c := Reason(rep.GetCode()); rep.GetState() != failed || rep.GetOwnership() != unmoved || !sourceGone(c) {
			t.Errorf("report %v", rep)
		}
		r.a = r.addNode(0)
		r.ea = r.a.register("e", testLayout(), 4<<20)
		r.ea.write("", keys)
		started := time.Now()
		next := r.b.mustEnd(request("s"), committed, "", moved)
		if next.GetBlocksPresent() != rep.GetBlocksMoved() {
			t.Errorf("%d blocks had landed, %d are here", rep.GetBlocksMoved(), next.GetBlocksPresent())
		}
		t.Logf("after the restart: %v", time.Since(started))
		r.eb.check("", keys)
		r.wantOwner("s", "b")
		r.settle()
	})
}

// A source that dies without a word and comes back at the same address: its peers' connections are dead and do not know
// it, each of several. The next migration finds out and works.
func TestCrashOfSource(t *testing.T) {
	for _, stripes := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(stripes), func(t *testing.T) {
			dir := t.TempDir()
			bubble(t, func(t *testing.T) {
				certificates := map[string]*tls.Config{} // the same ones after the restart: it resets connections from before
				r := newRig(t, fast, func(name string, c *Config, p *Parts) {
					onDisk(dir)(name, c, p)
					c.Link.Stripes = stripes
					if certificates[name] == nil {
						certificates[name] = p.TLS
					}
					p.TLS = certificates[name]
				})
				keys := r.ea.session("s", 8)
				r.b.mustEnd(request("nobody"), failed, ReasonSessionNotFound, unmoved) // connects
				time.Sleep(time.Second)                                                // all of them
				r.cut()                                                                // nobody hears it die
				r.a.stop()
				r.heal()
				r.a = r.addNode(0)
				r.ea = r.a.register("e", testLayout(), 4<<20)
				r.ea.write("", keys)
				started := time.Now()
				r.b.mustEnd(request("s"), committed, "", moved)
				if d := time.Since(started); d > 3*time.Second {
					t.Errorf("the dead link held the migration up for %v", d)
				}
				r.eb.check("", keys)
				r.wantOwner("s", "b")
				r.settle()
			})
		})
	}
}

// A node of another CA is refused, on both sides, with what to do about it.
func TestWrongCertificate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, func(name string, _ *Config, p *Parts) {
			if name != "b" {
				return
			}
			other, err := certs.NewCA("other", time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			pair, err := other.Issue("r-b", "b")
			if err != nil {
				t.Fatal(err)
			}
			p.TLS = pair.Material(other).ServerConfig()
			p.TLS.RootCAs = p.TLS.ClientCAs
		})
		keys := r.ea.session("s", 2)
		for _, req := range []*pb.MigrateRequest{request("s"), auto("s")} {
			rep := r.b.mustEnd(req, failed, ReasonPeerIdentity, unmoved)
			if !strings.Contains(rep.GetMessage(), "kvferry certs") {
				t.Errorf("message does not say how to fix it: %s", rep.GetMessage())
			}
		}
		links, err := r.b.region.ListLinks(context.Background(), &pb.ListLinksRequest{})
		if err != nil || len(links.GetLinks()) != 1 || links.GetLinks()[0].GetConnected() || links.GetLinks()[0].GetError() == "" {
			t.Errorf("links %v, %v", links, err)
		}
		r.ea.check("", keys)
		r.wantOwner("s", "a")
		r.settle()
	})
}

// A good certificate of another node than the configured one at that address is refused.
func TestWrongIdentity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, func(name string, c *Config, _ *Parts) {
			if name == "b" {
				c.Peers[0].Address = "10.0.0.3:7441" // a's entry leads to c
			}
		}, "a", "b", "c")
		for _, n := range f.nodes {
			n.register("e", testLayout(), 1<<20)
		}
		req := request("s")
		req.SourceHint = "a"
		rep := f.nodes["b"].mustEnd(req, failed, ReasonPeerIdentity, unmoved)
		if !strings.Contains(rep.GetMessage(), `wanted "a", the certificate names "c"`) {
			t.Errorf("message does not name both: %s", rep.GetMessage())
		}
		req = auto("s") // where a is gone for good, and its address is c's now
		req.SourceHint, req.Takeover, req.RepinSeq = "a", true, 1
		f.nodes["b"].mustEnd(req, recompute, ReasonPeerIdentity, moved)
		f.settle()
	})
}

// A daemon whose configuration and certificate disagree does not start.
func TestOpenChecksIdentity(t *testing.T) {
	ca, err := certs.NewCA("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue("r-a", "a")
	if err != nil {
		t.Fatal(err)
	}
	tls := pair.Material(ca).ServerConfig()
	tls.RootCAs = tls.ClientCAs
	_, err = Open(Config{Node: NodeConfig{ID: "b", Region: "r-a"}}, Parts{TLS: tls, NoState: true})
	if err == nil || !strings.Contains(err.Error(), `must be what the certificate says ("a", "r-a")`) {
		t.Errorf("open: %v", err)
	}
	_, err = Open(Config{Node: NodeConfig{ID: "a", Region: "r-a"}}, Parts{NoState: true})
	if err == nil || !strings.Contains(err.Error(), "config tls.ca = ") || !strings.Contains(err.Error(), "kvferry certs") {
		t.Errorf("open without certificates: %v", err)
	}
}
