package daemon

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

func publishRequest(id string, keys [][]byte) *pb.PublishSessionRequest {
	return &pb.PublishSessionRequest{EngineId: "e", Session: &pb.SessionRef{SessionId: id}, BlockKeys: keys, Tokens: int64(len(keys))*16 + 3}
}

// wantElsewhere holds a publication at n to a refusal that names the owner, if known, and says what to do.
func (n *node) wantElsewhere(id string, keys [][]byte, owner string) {
	n.f.t.Helper()
	_, err := n.engine.PublishSession(context.Background(), publishRequest(id, keys))
	f := wantError(n.f.t, err, ReasonNotOwner)
	if f.Meta["owner_node_id"] != owner || !strings.Contains(f.Fix, "takeover") || !strings.Contains(f.Fix, "again") {
		n.f.t.Errorf("refused with %+v; want owner %q and what to do", f, owner)
	}
}

// A session that was to come here and has not is not published here, whatever became of the migration, its source, or this daemon: it would have a second
// owner, of the rank of the first. It is as soon as it has come, has been taken over, or nobody has it.
func TestPublishWhatDidNotMove(t *testing.T) {
	dead := func(t *testing.T, r *rig, _ string) {
		r.cut()
		r.b.mustEnd(auto("s"), recompute, ReasonPeerUnreachable, unmoved)
	}
	for _, tc := range []struct {
		name  string
		leave func(t *testing.T, r *rig, dir string)
		owner string
	}{
		{"the source falls silent", func(t *testing.T, r *rig, _ string) {
			m := r.b.begin(auto("s"))
			m.until(pb.MigrationState_MIGRATION_STATE_TRANSFERRING, nil)
			r.cut()
			if rep := m.end(); rep.GetOwnership() != unmoved || rep.GetEpoch() != 1 {
				t.Fatalf("report %v", rep)
			}
		}, "a"},
		{"no offer ever came", dead, ""},
		{"no offer came from the hint", func(t *testing.T, r *rig, _ string) {
			r.cut()
			req := auto("s")
			req.SourceHint = "a"
			r.b.mustEnd(req, recompute, ReasonPeerUnreachable, unmoved)
		}, "a"},
		{"and the destination is restarted", func(t *testing.T, r *rig, dir string) {
			dead(t, r, dir)
			r.b = r.revive("b", dir, r.crash("b", dir))
		}, ""},
		{"the destination dies on the way", func(t *testing.T, r *rig, dir string) {
			m := r.b.begin(request("s"))
			m.landed(8192)
			r.b = r.revive("b", dir, r.crash("b", dir))
			r.cut()
		}, ""},
		{"cancelled", func(t *testing.T, r *rig, _ string) {
			m := r.b.begin(request("s"))
			m.landed(8192)
			if _, err := r.b.cancel(m.req.GetRequestId()); err != nil {
				t.Fatal(err)
			}
			wantReport(t, m.end(), cancelled, ReasonCancelled, unmoved)
			r.cut()
		}, "a"},
		{"it is on its way", func(_ *testing.T, r *rig, _ string) {
			r.b.begin(request("s")).landed(8192)
		}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, onDisk(dir))
				keys := r.ea.session("s", 24)
				tc.leave(t, r, dir)
				r.eb = r.b.register("e", testLayout(), 4<<20)
				r.b.wantElsewhere("s", keys, tc.owner)
				r.wantOwner("s", "a")
				r.heal()
				time.Sleep(time.Minute)
				r.b.mustEnd(request("s"), committed, "", moved)
				r.eb.publish("", "s", keys, 24*16+3)
				r.wantOwner("s", "b")
				r.settleCut()
			})
		})
	}
}

// Where the owner is gone for good, a takeover makes this node the owner, as the refusal says, and where there is none, the session is new.
func TestPublishAfterTakeoverOrForNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 8)
		r.cut()
		r.b.mustEnd(auto("s"), recompute, ReasonPeerUnreachable, unmoved)
		r.b.wantElsewhere("s", keys, "")
		req := auto("s")
		req.Takeover, req.RepinSeq = true, 1
		r.b.mustEnd(req, recompute, ReasonPeerUnreachable, moved)
		r.eb.write("", keys)
		r.eb.publish("", "s", keys, 8*16+3)

		fresh := chain("new", 4)
		r.b.mustEnd(auto("new"), recompute, ReasonPeerUnreachable, unmoved) // a might have it
		r.b.wantElsewhere("new", fresh, "")
		shadow := auto("shadow")
		shadow.Shadow = true
		if rep, _, err := r.b.migrate(shadow); err != nil || rep.GetOwnership() == moved {
			t.Fatalf("report %v, %v", rep, err)
		}
		r.eb.publish("", "shadow", nil, 3) // it was not to come here
		r.heal()
		time.Sleep(time.Minute)
		r.wantOwner("s", "b")
		r.b.mustEnd(auto("new"), failed, ReasonSessionNotFound, unmoved)
		r.eb.write("", fresh)
		r.eb.publish("", "new", fresh, 4*16+3)
		r.wantOwner("new", "b")
		r.settleCut()
	})
}

// A takeover for which no layout can be told says what it lacks, and the session is still not to be published here: its owner has not been asked. Neither is it where a
// source has lost it on the way, until every node has been asked.
func TestElsewhereUntilAllWereAsked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 24)
		r.b.register("other", testLayout(), 1<<20)
		r.cut()
		req := auto("s")
		req.Takeover, req.RepinSeq = true, 1
		rep := r.b.mustEnd(req, recompute, ReasonEngineAmbiguous, unmoved)
		if !strings.Contains(rep.GetMessage(), "engine_id") {
			t.Errorf("message %q", rep.GetMessage())
		}
		r.b.wantElsewhere("s", keys, "")
		r.heal()
		time.Sleep(time.Minute)
		req = request("s")
		req.EngineId = "e"
		m := r.b.begin(req)
		m.landed(8192)
		if err := r.a.d.sessions.Forget("", "s"); err != nil {
			t.Fatal(err)
		}
		wantReport(t, m.end(), failed, ReasonSessionNotFound, unmoved)
		r.b.wantElsewhere("s", keys, "a")
		r.b.mustEnd(auto("s"), failed, ReasonSessionNotFound, unmoved)
		r.eb.publish("", "s", keys, 24*16+3)
		r.settleCut()
	})
}

// A hint that names no node costs a session that is new nothing, once the nodes that there are have been asked.
func TestElsewhereHintOfNobody(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		req := func() *pb.MigrateRequest {
			q := auto("s")
			q.SourceHint = "nobody"
			return q
		}
		r.cut()
		r.b.mustEnd(req(), failed, ReasonNodeNotFound, unmoved)
		r.b.wantElsewhere("s", nil, "nobody")
		r.heal()
		time.Sleep(time.Minute)
		r.b.mustEnd(req(), failed, ReasonNodeNotFound, unmoved)
		r.eb.publish("", "s", nil, 3)
	})
}

// An owner that can't be asked is not taken for one that does not have the session, though the caller names it and this node's record does, too.
func TestHintIsTheOwnerAndDead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 4)
		r.b.mustEnd(request("s"), committed, "", moved)
		r.a.mustEnd(request("s"), committed, "", moved)
		r.cut()
		req := auto("s")
		req.SourceHint = "a"
		r.b.mustEnd(req, recompute, ReasonPeerUnreachable, unmoved)
		r.settleCut()
	})
}

// Status and the metrics tell what is known of sessions.
func TestSessionsCounted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		for _, id := range []string{"s", "t", "u"} {
			r.ea.session(id, 2)
		}
		r.b.mustEnd(request("s"), committed, "", moved)
		r.a.stop()
		r.b.mustEnd(auto("t"), recompute, ReasonPeerUnreachable, unmoved)
		want := kvstore.SessionStats{Owned: 1, Elsewhere: 1, MaxBytes: kvstore.MaxSessionsBytes}
		check := func() {
			t.Helper()
			resp, err := r.b.region.Status(t.Context(), &pb.StatusRequest{})
			if err != nil {
				t.Fatal(err)
			}
			s := resp.GetSessions()
			got := kvstore.SessionStats{
				Owned: int(s.GetOwned()), Forwarded: int(s.GetForwarded()), Elsewhere: int(s.GetElsewhere()), MaxBytes: s.GetMaxBytes(),
				Expired: s.GetExpired(), Displaced: s.GetDisplaced(),
			}
			if got != want || (s.GetBytes() > 0) != (want.Owned > 0) {
				t.Errorf("status counts %v, want %+v", s, want)
			}
			wantSamples(t, r.b.samples(), map[string]float64{
				`kvferry_session_records{state="owned"}`: float64(want.Owned), `kvferry_session_records{state="forwarded"}`: 0,
				`kvferry_session_records{state="elsewhere"}`: float64(want.Elsewhere), `kvferry_session_records_bytes`: float64(s.GetBytes()),
				`kvferry_session_records_limit_bytes`: 2 << 30, `kvferry_session_forgotten_total{why="expired"}`: float64(want.Expired),
				`kvferry_session_forgotten_total{why="displaced"}`: 0,
			})
		}
		check()
		r.b.d.expireSessions(time.Now().Add(sessionsKept + time.Minute))
		want.Owned, want.Elsewhere, want.Expired = 0, 0, 1
		check()
	})
}

// A mark that nobody has renewed for a week is forgotten: who publishes then begins.
func TestElsewhereExpires(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 1)
		r.a.stop()
		r.b.mustEnd(auto("s"), recompute, ReasonPeerUnreachable, unmoved)
		r.b.d.expireSessions(time.Now().Add(sessionsKept - time.Minute))
		r.b.wantElsewhere("s", nil, "")
		r.b.d.expireSessions(time.Now().Add(sessionsKept + time.Minute))
		r.eb.publish("", "s", nil, 3)
	})
}

// A session that nothing changed of for a week is forgotten, by its owner and where it came from: nobody says when one ends. Its blocks stay, and who publishes begins.
func TestSessionsExpire(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 3)
		r.b.mustEnd(request("s"), committed, "", moved)
		for _, n := range []*node{r.a, r.b} {
			n.d.expireSessions(time.Now().Add(sessionsKept - time.Minute))
		}
		r.wantOwner("s", "b")
		for _, n := range []*node{r.a, r.b} {
			n.d.expireSessions(time.Now().Add(sessionsKept + time.Minute))
			if n.record("s") != nil {
				t.Errorf("%s remembers the session", n.name)
			}
		}
		r.eb.check("", keys)
		r.b.mustEnd(request("s"), failed, ReasonSessionNotFound, unmoved)
		r.ea.publish("", "s", keys, 3*16)
		if rep := r.b.mustEnd(request("s"), committed, "", moved); rep.GetBlocksPresent() != 3 {
			t.Errorf("the blocks are here already: %v", rep)
		}
		r.settle()
	})
}

// A destination that is given the session and can't note it, because its disk has filled up in that moment, says so, and its source takes the session back
// by itself: nobody has to take it over, and it can be migrated again.
func TestGivenBackWhenItCannotBeNoted(t *testing.T) {
	state := tinyFS(t, "1m")
	bubble(t, func(t *testing.T) {
		const blocks = 1000 // a record of more pages than the file has to spare
		f := newFleetEdited(t, fast, func(name string, c *Config, p *Parts) {
			if name == "b" {
				c.StateDir, p.NoState = filepath.Join(state, "b"), false
			}
		}, "a", "b", "c")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 2*blocks*8192)
		}
		keys := engines["a"].session("s", blocks)
		m := f.nodes["b"].begin(request("s"))
		m.until(pb.MigrationState_MIGRATION_STATE_HANDING_OVER, nil)
		for {
			if s, err := f.nodes["a"].d.sessions.Get("", "s"); err == nil && s.Owner == "b" {
				break
			}
			time.Sleep(time.Millisecond)
		}
		free := fillUp(t, state) // while the answer is on its way
		wantReport(t, m.end(), failed, ReasonStorage, unknown)
		rep := f.nodes["c"].mustEnd(request("s"), failed, ReasonHandOverPending, unmoved)
		if !strings.Contains(rep.GetMessage(), `handed the session over to node "b"`) {
			t.Errorf("message %q", rep.GetMessage())
		}
		began := time.Now()
		f.nodes["a"].recorded("s", "a")
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("the source took it back after %v", d)
		}
		f.wantOwner("s", "a")
		engines["a"].check("", keys)
		engines["a"].publish("", "s", keys, blocks*16+5) // goes on
		free()
		if rep := f.nodes["b"].mustEnd(request("s"), committed, "", moved); rep.GetEpoch() != 4 {
			t.Errorf("report %v", rep)
		}
		f.wantOwner("s", "b")
		engines["b"].check("", keys)
		f.settle()
	})
}

// A migration to the recorded owner, whose source takes the session back meanwhile, is given it by that.
func TestTakenBackInBetween(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 64)
		lost := kvstore.HandOver{ID: "s", Migration: "lost", To: "b", Incarnation: "dead", Epoch: 1, Version: 1}
		if _, err := r.a.d.sessions.HandOver(lost); err != nil {
			t.Fatal(err)
		}
		f, awaits := r.a.d.sessions.UnconfirmedOf("", "s")
		if !awaits {
			t.Fatal("the hand-over awaits no confirmation")
		}
		run := r.b.begin(request("s"))
		run.landed(8192)
		r.a.d.reclaim(t.Context(), f, "another")
		r.wantOwner("s", "a")
		rep := run.end()
		wantReport(t, rep, committed, "", moved)
		if rep.GetEpoch() != 4 || rep.GetBlocksMoved() != 64 {
			t.Errorf("report %v", rep)
		}
		r.wantOwner("s", "b")
		r.eb.check("", keys)
		r.settle()
	})
}

// A hand-over to this node that an earlier migration asked for, and that the network kept until this one had its offer, is no reason to fail.
func TestHandedOverInBetween(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 64)
		run := r.b.begin(request("s"))
		run.landed(8192)
		late := kvstore.HandOver{ID: "s", Migration: "given up", To: "b", Incarnation: r.b.d.incarnation, Epoch: 1, Version: 1}
		if _, err := r.a.d.sessions.HandOver(late); err != nil {
			t.Fatal(err)
		}
		rep := run.end()
		wantReport(t, rep, committed, "", moved)
		if rep.GetEpoch() != 2 || rep.GetBlocksMoved() != 64 {
			t.Errorf("report %v", rep)
		}
		r.wantOwner("s", "b")
		r.eb.check("", keys)
		r.settle()
	})
}

// A node says that it has not got a session which by its record, of the rank of the hand-over that is asked for, is the asker's: the two have crossed.
func TestCrossedIsNotKnown(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 1)
		if err := r.a.d.sessions.Yield("", "s", "b", 2, 1); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			from         transfer.PeerID
			repin, epoch uint64
			known        bool
		}{{"b", 1, 2, false}, {"c", 1, 2, true}, {"b", 1, 1, true}, {"b", 0, 9, true}, {"b", 2, 1, false}, {"c", 1, 3, false}} {
			a, err := r.a.d.answerConfirm(transfer.Peer{ID: tc.from}, &pb.ConfirmCall{Session: &pb.SessionRef{SessionId: "s"}, Epoch: tc.epoch, RepinSeq: tc.repin})
			if err != nil || a.GetKnown() != tc.known || a.GetPending() {
				t.Errorf("%s asks for repin %d, epoch %d: %v, %v", tc.from, tc.repin, tc.epoch, a, err)
			}
		}
	})
}
