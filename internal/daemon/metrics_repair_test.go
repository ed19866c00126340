package daemon

import (
	"context"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Over a path that loses packets repair's metrics are what the link counts at both ends: the source sends parity, the destination
// rebuilds.
func TestRepairMetrics(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, wan.Model{RTT: 20 * time.Millisecond, Rate: 2e8, Loss: 0.01, Seed: 5}, nil)
		r.ea.session("s", 200)
		r.b.begin(request("s")).end()
		r.settle()
		for _, n := range []*node{r.a, r.b} {
			peer := map[*node]string{r.a: "b", r.b: "a"}[n]
			if n == r.a { // b dialled: the link is an accepted one
				peer = r.a.d.links.label("b")
			}
			got, want := n.samples(), n.d.agent.Links()[0].Stats().Repair
			wantSamples(t, got, map[string]float64{
				`kvferry_link_repair_covered_packets_total{peer="` + peer + `"}`:    float64(want.Packets),
				`kvferry_link_repair_parity_packets_total{peer="` + peer + `"}`:     float64(want.ParityPackets),
				`kvferry_link_repair_parity_bytes_total{peer="` + peer + `"}`:       float64(want.ParityBytes),
				`kvferry_link_repair_repaired_packets_total{peer="` + peer + `"}`:   float64(want.Repaired),
				`kvferry_link_repair_unrepaired_packets_total{peer="` + peer + `"}`: float64(want.Unrepaired),
				`kvferry_link_repair_rejected_packets_total{peer="` + peer + `"}`:   0,
			})
			links, err := n.region.ListLinks(context.Background(), &pb.ListLinksRequest{})
			if err != nil {
				t.Fatal(err)
			}
			all := n.d.agent.Links()[0].Stats()
			for _, l := range links.GetLinks() {
				if l.GetPacketsSent() != int64(all.PacketsSent) || l.GetParityPacketsSent() != int64(want.ParityPackets) ||
					l.GetParityBytesSent() != int64(want.ParityBytes) || l.GetPacketsRepaired() != int64(want.Repaired) {
					t.Errorf("%s lists %v, counted %+v", n.name, l, want)
				}
			}
			if want.Packets == 0 || want.ParityPackets == 0 || want.ParityBytes == 0 {
				t.Errorf("%s covers nothing: %+v", n.name, want)
			}
		}
		st := r.b.d.agent.Links()[0].Stats().Repair
		if st.Repaired == 0 {
			t.Errorf("nothing repaired: %+v", st)
		}
		wantSamples(t, r.b.samples(), map[string]float64{`kvferry_link_repair_symbols{peer="a"}`: float64(st.Symbols)})
	})
}

// With link.repair off at either end nothing is negotiated.
func TestRepairOff(t *testing.T) {
	for _, who := range []string{"a", "b"} {
		bubble(t, func(t *testing.T) {
			r := newRig(t, wan.Model{RTT: 20 * time.Millisecond, Rate: 2e8, Loss: 0.001, Seed: 5}, func(name string, c *Config, _ *Parts) {
				if name == who {
					c.Link.Repair = off
				}
			})
			r.ea.session("s", 50)
			r.b.begin(request("s")).end()
			r.settle()
			for _, n := range []*node{r.a, r.b} {
				if st := n.d.agent.Links()[0].Stats().Repair; st.Packets != 0 || st.ParityPackets != 0 || st.Symbols != 0 {
					t.Errorf("%s: %+v", n.name, st)
				}
			}
		})
	}
}
