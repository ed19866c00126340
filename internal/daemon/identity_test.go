package daemon

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// A peer's region is its certificate's, in reports and lists, whether or not the configuration knows the peer.
func TestRegionFromCertificate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, func(name string, c *Config, _ *Parts) {
			if name == "a" {
				c.Peers = nil // b pulls from it all the same
			}
		}, "a", "b")
		ea := f.nodes["a"].register("e", testLayout(), 1<<20)
		f.nodes["b"].register("e", testLayout(), 1<<20)
		ea.session("s", 2)
		rep := f.nodes["b"].mustEnd(request("s"), committed, "", moved)
		if got := rep.GetSource().GetRegionId(); got != "r-a" {
			t.Errorf("the report's source is of region %q", got)
		}
		for name, want := range map[string]string{"a": "r-b", "b": "r-a"} {
			links, err := f.nodes[name].region.ListLinks(t.Context(), &pb.ListLinksRequest{})
			if err != nil || len(links.GetLinks()) != 1 || links.GetLinks()[0].GetPeer().GetRegionId() != want {
				t.Errorf("%s lists %v, %v; want its peer in region %q", name, links, err, want)
			}
		}
		// Metrics of a peer that the configuration does not list are under "other", whatever it is called.
		wantSamples(t, f.nodes["a"].samples(), map[string]float64{`kvferry_egress_served_bytes_total{peer="other"}`: 2 * 8192})
	})
}

// A peer whose certificate is of another region, or another node, than the configuration says is not pulled from.
func TestConfiguredPeerAgainstCertificate(t *testing.T) {
	for name, edit := range map[string]func(*PeerConfig){
		"region": func(p *PeerConfig) { p.Region = "r-elsewhere" },
		"node":   func(p *PeerConfig) { p.Node = "z" },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFleetEdited(t, fast, func(node string, c *Config, _ *Parts) {
					if node == "b" {
						edit(&c.Peers[0])
					}
				}, "a", "b")
				ea := f.nodes["a"].register("e", testLayout(), 1<<20)
				f.nodes["b"].register("e", testLayout(), 1<<20)
				ea.session("s", 2)
				req := request("s")
				req.SourceHint = string(f.nodes["b"].cfg.Peers[0].Node)
				rep := f.nodes["b"].mustEnd(req, failed, ReasonPeerIdentity, unmoved)
				for _, want := range map[string][]string{"region": {`"r-elsewhere"`, `"r-a"`, "peers[].region"}, "node": {`"z"`, `"a"`}}[name] {
					if !strings.Contains(rep.GetMessage(), want) {
						t.Errorf("message %q, want %s in it", rep.GetMessage(), want)
					}
				}
				f.wantOwner("s", "a")
			})
		})
	}
}

// rawPeer is a node that only dials, with a certificate of the fleet.
func (f *fleet) rawPeer(t *testing.T, region, node string) *transfer.Agent {
	t.Helper()
	conf := issue(t, f.ca, region, node).Material(f.ca).ServerConfig()
	conf.RootCAs = conf.ClientCAs
	agent, err := transfer.Open(transfer.Config{
		Name: transfer.PeerID(node), TLS: conf, Identify: identify, Stripes: 1,
		DialPacket: func(context.Context) (net.PacketConn, error) {
			return f.net.Listen(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 9}), 0))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	return agent
}

// What a peer says in a call about who it is counts for nothing: sessions go to the node of its certificate, and to no other that it names.
func TestPeerIsItsCertificate(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b")
		ea := f.nodes["a"].register("e", testLayout(), 1<<20)
		ea.session("s", 2)
		link, err := f.rawPeer(t, "r-m", "mallory").Connect(t.Context(), netip.AddrPortFrom(f.nodes["a"].ip, 7441).String(), "a")
		if err != nil {
			t.Fatal(err)
		}
		call := func(req *pb.PeerRequest) (*pb.PeerResponse, error) {
			payload, err := proto.Marshal(req)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := link.Call(t.Context(), payload)
			var resp pb.PeerResponse
			if err == nil {
				err = proto.Unmarshal(answer, &resp)
			}
			return &resp, err
		}
		ref := &pb.SessionRef{SessionId: "s"}
		offer, err := call(&pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: ref, MigrationId: "migration-of-b"}}})
		if err != nil {
			t.Fatal(err)
		}
		of, err := f.nodes["a"].d.offers.find(offer.GetOffer().GetOfferId(), "mallory")
		if err != nil || of.peer != "mallory" || of.region != "r-m" {
			t.Errorf("the offer is %+v, %v", of, err)
		}
		if _, err := call(&pb.PeerRequest{Call: &pb.PeerRequest_HandOver{HandOver: &pb.HandOverCall{
			Session: ref, MigrationId: "migration-of-b", Epoch: 1, Version: 1, Tokens: offer.GetOffer().GetSession().GetTokens(),
		}}}); err != nil {
			t.Fatal(err)
		}
		if s := f.nodes["a"].record("s"); s.GetOwnerNodeId() != "mallory" {
			t.Errorf("the session went to %q, want the caller", s.GetOwnerNodeId())
		}
	})
}

// What the configuration says of policy, audit and users is checked by field, and survives --print-config.
func TestIdentityConfig(t *testing.T) {
	c := good()
	c.Policy, c.AuditLog, c.Listen.AllowUIDs = "/etc/kvferry/policy.yaml", "/var/log/kvferry.audit", []int{0, 4242}
	if err := c.WithDefaults().Validate(); err != nil {
		t.Error(err)
	}
	y, err := c.YAML()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ParseConfig(y); err != nil || got.Policy != c.Policy || got.AuditLog != c.AuditLog || len(got.Listen.AllowUIDs) != 2 || got.Listen.AllowUIDs[1] != 4242 {
		t.Errorf("read back: %+v, %v", got.Listen, err)
	}
	c.Policy, c.AuditLog, c.Listen.AllowUIDs = "policy.yaml", "audit", []int{1, -1}
	if got := strings.Join(configFields(c.WithDefaults().Validate()), " "); got != "policy audit_log listen.allow_uids[1]" {
		t.Errorf("fields at fault: %s", got)
	}
	c.Policy, c.AuditLog, c.Listen.AllowUIDs = "", "", make([]int, maxListed+1)
	if got := strings.Join(configFields(c.WithDefaults().Validate()), " "); got != "listen.allow_uids" {
		t.Errorf("fields at fault: %s", got)
	}
}
