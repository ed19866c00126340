package daemon

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// untouched holds the source of shadow migrations: it never leased, and no page left it.
func (n *node) untouched() {
	n.f.t.Helper()
	n.d.offers.mu.Lock()
	tickets := n.d.offers.mu.seq
	n.d.offers.mu.Unlock()
	if got := n.idle(); tickets != 0 || got != (idle{}) {
		n.f.t.Errorf("the source drew %d tickets and holds %+v", tickets, got)
	}
	wantSamples(n.f.t, n.samples(), map[string]float64{`kvferry_egress_served_bytes_total{peer="b"}`: 0})
}

// A shadow daemon plans for real traffic, in every mode, remembers the plan and moves nothing; sessions stay, and go on.
func TestShadow(t *testing.T) {
	var log bytes.Buffer
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, func(name string, c *Config, p *Parts) {
			if name == "b" {
				c.Shadow = true
				p.Log = slog.New(slog.NewTextHandler(&log, nil))
			}
		})
		keys := r.ea.session("s", 40)
		for _, tc := range []struct {
			mode, decided pb.Mode
		}{
			{pb.Mode_MODE_UNSPECIFIED, pb.Mode_MODE_FETCH}, // a token takes a second to prefill
			{pb.Mode_MODE_FETCH, pb.Mode_MODE_FETCH},
			{pb.Mode_MODE_RECOMPUTE, pb.Mode_MODE_RECOMPUTE},
			{pb.Mode_MODE_REDIRECT, pb.Mode_MODE_REDIRECT},
			{pb.Mode_MODE_HYBRID, pb.Mode_MODE_HYBRID},
		} {
			req := request("s")
			req.Mode = tc.mode
			rep := r.b.mustEnd(req, redirect, "", unmoved)
			rec := r.b.plan(req)
			if !rep.GetShadow() || rep.GetDecided() != tc.decided || rep.GetMode() != pb.Mode_MODE_REDIRECT || rep.GetBytes() != 0 || rep.GetSource().GetNodeId() != "a" ||
				rep.GetBlocksTotal() != 40 || tc.decided == pb.Mode_MODE_FETCH && rep.GetPredictedSeconds() <= 0 {
				t.Errorf("mode %v: report %v", tc.mode, rep)
			}
			if !rec.GetShadow() || rec.GetAsked() != tc.mode || rec.GetDecided() != tc.decided || rec.GetCarriedOut() != pb.Mode_MODE_REDIRECT || rec.ActualOverPredicted != nil ||
				len(rec.GetPlan().GetModes()) != 4 || rec.GetPredictedSeconds() != rep.GetPredictedSeconds() {
				t.Errorf("mode %v: record %v", tc.mode, rec)
			}
			r.wantOwner("s", "a")
		}
		r.a.untouched()
		st, err := r.b.region.Status(context.Background(), &pb.StatusRequest{})
		if err != nil || !st.GetShadow() || st.GetArenas()[0].GetSlotsFree() != 512 {
			t.Errorf("status %v, %v", st, err)
		}
		wantSamples(t, r.b.samples(), map[string]float64{
			`kvferry_migration_shadow_total{mode="fetch"}`: 2, `kvferry_migration_shadow_total{mode="recompute"}`: 1, `kvferry_migration_shadow_total{mode="redirect"}`: 1,
			`kvferry_migration_shadow_total{mode="hybrid"}`: 1, `kvferry_migration_ended_total{mode="redirect",state="redirect"}`: 5, "kvferry_daemon_shadow": 1,
			`kvferry_migration_predicted_seconds_count{mode="fetch"}`: 0, "kvferry_migration_raw_bytes_total": 0,
		})
		if n := len(r.b.plans(&pb.ListPlansRequest{ShadowOnly: true})); n != 5 {
			t.Errorf("%d plans of shadow mode", n)
		}
		if got := r.b.plans(&pb.ListPlansRequest{Worst: true}); len(got) != 0 {
			t.Errorf("shadow plans can't be compared: %v", got)
		}
		synctest.Wait() // the last one's line is written
		if n := strings.Count(log.String(), "shadow=true"); n != 5 || !strings.Contains(log.String(), "decided=recompute") {
			t.Errorf("the log names %d shadow migrations:\n%s", n, log.String())
		}

		// The session goes on where it is, and the shadow daemon is still a source.
		more := chain("s", 41)
		r.ea.write("", more[40:])
		if s := r.ea.publish("", "s", more, 41*16); s.GetVersion() < 2 {
			t.Errorf("session %v", s)
		}
		r.ea.check("", keys)
		r.eb.session("back", 8)
		r.a.mustEnd(request("back"), committed, "", moved)
		r.settle()
	})
}

// What can't be planned ends as it does otherwise, but nothing is taken over; named blocks are not brought; a session that is here is here.
func TestShadowEdges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, func(name string, c *Config, _ *Parts) { c.Shadow = name == "b" })
		r.ea.session("s", 8)
		r.eb.session("here", 8)
		r.b.mustEnd(request("nobody knows it"), failed, ReasonSessionNotFound, unmoved)
		if rep := r.b.mustEnd(request("here"), committed, "", moved); !rep.GetShadow() || rep.GetDecided() != pb.Mode_MODE_UNSPECIFIED {
			t.Errorf("report %v", rep)
		}
		keys := chain("s", 8)
		req := request("")
		req.Session, req.Keys, req.SourceHint = nil, keys, "a"
		if rep := r.b.mustEnd(req, redirect, "", nobody); rep.GetDecided() != pb.Mode_MODE_FETCH || rep.GetBlocksMoved() != 0 {
			t.Errorf("report %v", rep)
		}
		r.a.untouched()
		r.cut()
		gone := auto("s")
		gone.Takeover, gone.RepinSeq, gone.SourceHint = true, 9, "a"
		r.b.mustEnd(gone, recompute, ReasonPeerUnreachable, unmoved)
		if s := r.b.record("s"); s != nil {
			t.Errorf("b records %v", s)
		}
		r.heal()
		r.settle()
		r.wantOwner("s", "a")
	})
}

// One request alone may ask for it; the same id without it is another request.
func TestShadowRequest(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 8)
		req := request("s")
		req.Shadow = true
		if rep := r.b.mustEnd(req, redirect, "", unmoved); !rep.GetShadow() || rep.GetDecided() != pb.Mode_MODE_FETCH {
			t.Errorf("report %v", rep)
		}
		r.a.untouched()
		req.Shadow = false
		_, _, err := r.b.migrate(req)
		wantError(t, err, ReasonRequestMismatch)
		if rep := r.b.mustEnd(request("s"), committed, "", moved); rep.GetShadow() || rep.GetDecided() != rep.GetMode() {
			t.Errorf("report %v", rep)
		}
		r.eb.check("", keys)
		wantSamples(t, r.b.samples(), map[string]float64{"kvferry_daemon_shadow": 0, `kvferry_migration_shadow_total{mode="fetch"}`: 1})
		r.settle()
	})
}
