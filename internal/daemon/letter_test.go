package daemon

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// This file and those it names hold the sentences of the hand-over's contract, each quoted above its test. Beside it:
// "one idempotent compare-and-set on (session, epoch, version, migration id)": TestHandOver of kvstore, TestTwoDestinations;
// "B retries until answered": TestHandOverAnswerLost, TestHandOverRequestLost;
// "at most three times, then commits with stale_tail_tokens": TestSessionGrows, TestSessionGrowsForEver;
// "ordered by (repin_seq, epoch)": TestAdoptYieldOrder and TestOneOwner of kvstore, TestStaleTakeoverYields;
// "takeover with a higher repin_seq, which wins; A yields when it returns": TestTakeover, TestTakeoverFenced, TestTakeoverSurvivesRestart;
// "only PublishSession is fenced": TestPublishIsFenced;
// "at most two forwarding hops": TestForwarding, TestRestartOfSource.

// crash stops a node of which nobody hears anything any more, and returns what its state directory held at that moment.
func (f *fleet) crash(name, dir string) (disk map[string][]byte) {
	f.t.Helper()
	disk = map[string][]byte{}
	files, err := os.ReadDir(filepath.Join(dir, name))
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range files {
		b, err := os.ReadFile(filepath.Join(dir, name, e.Name()))
		if err != nil {
			f.t.Fatal(err)
		}
		disk[e.Name()] = b
	}
	for other, n := range f.nodes {
		if other != name && n.d != nil {
			f.net.Cut(n.ip, f.nodes[name].ip)
		}
	}
	f.nodes[name].stop()
	return disk
}

// revive starts a crashed node from what its disk held, with the network healed.
func (f *fleet) revive(name, dir string, disk map[string][]byte) *node {
	f.t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
		f.t.Fatal(err)
	}
	for file, b := range disk {
		if err := os.WriteFile(filepath.Join(dir, name, file), b, 0o600); err != nil {
			f.t.Fatal(err)
		}
	}
	for other, n := range f.nodes {
		if other != name {
			f.net.Heal(n.ip, f.nodes[name].ip)
		}
	}
	for i, n := range f.names {
		if n == name {
			return f.addNode(i)
		}
	}
	return nil
}

// recorded waits until a node records an owner.
func (n *node) recorded(session, owner string) {
	n.f.t.Helper()
	for range 120_000 {
		if n.record(session).GetOwnerNodeId() == owner {
			return
		}
		time.Sleep(time.Millisecond)
	}
	n.f.t.Fatalf("%s records %v of %q, want owner %q", n.name, n.record(session), session, owner)
}

// handedOver begins a migration of a session from a to b whose hand-over a has made and b has not heard of.
func (r *rig) handedOver(req *pb.MigrateRequest) *running {
	r.t.Helper()
	m := r.b.begin(req)
	m.until(pb.MigrationState_MIGRATION_STATE_HANDING_OVER, nil)
	r.net.CutOneWay(r.a.ip, r.b.ip)
	r.a.recorded(req.GetSession().GetSessionId(), "b")
	return m
}

// "A persists the forwarding record before it replies": killed in between and started from its disk, it gives the same answer,
// by another process.
func TestLetterPersistedBeforeReply(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, onDisk(dir))
		keys := r.ea.session("s", 8)
		m := r.handedOver(request("s"))
		disk := r.crash("a", dir)
		r.a = r.revive("a", dir, disk)
		wantReport(t, m.end(), committed, "", moved)
		r.wantOwner("s", "b")
		if a, b := r.a.record("s"), r.b.record("s"); a.GetEpoch() != 2 || b.GetEpoch() != 2 {
			t.Errorf("epochs %d and %d after one hand-over", a.GetEpoch(), b.GetEpoch())
		}
		r.eb.check("", keys)
		r.settleCut()
	})
}

// "keeps the blocks leased until B's acknowledgement": for as long as the answer is on its way, and a round trip after B has
// adopted no longer.
func TestLetterLeasedUntilAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 8)
		m := r.handedOver(request("s"))
		time.Sleep(4 * time.Second)
		if got := r.a.idle(); got.LeasedBlocks != 8 || got.Offers != 1 {
			t.Errorf("the source holds %+v before it is acknowledged", got)
		}
		r.heal()
		wantReport(t, m.end(), committed, "", moved)
		r.a.within(time.Now().Add(time.Second), "the lease", func(i idle) bool { return i.LeasedBlocks == 0 && i.Offers == 0 })
		r.eb.check("", keys)
		r.settleCut()
	})
}

// "If B dies after the compare-and-set, A reclaims only on ... hearing from a new incarnation of B": then A owns under epoch+2,
// durably; nothing happens before. B that comes back later with an older state yields.
func TestLetterReclaim(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, onDisk(dir))
		keys := r.ea.session("s", 8)
		req := request("s")
		req.RepinSeq = 6
		m := r.handedOver(req)
		disk := r.crash("b", dir)
		<-m.done
		if rep := m.rep; rep.GetOwnership() == moved {
			t.Errorf("report %v", rep)
		}
		time.Sleep(5 * time.Minute)
		r.wantOwner("s", "") // a waits, however long
		if got := r.a.record("s"); got.GetOwnerNodeId() != "b" || got.GetEpoch() != 2 {
			t.Errorf("the source records %v while nothing is heard of b", got)
		}
		r.b = r.revive("b", dir, disk)
		r.a.recorded("s", "a")
		if got := r.a.record("s"); got.GetEpoch() != 3 || got.GetRepinSeq() != 6 {
			t.Errorf("reclaimed: %v", got)
		}
		r.wantOwner("s", "a")
		if v := r.a.samples()["kvferry_peer_reclaimed_sessions_total"]; v != 1 {
			t.Errorf("%v sessions counted as reclaimed", v)
		}
		r.ea.publish("", "s", keys, 8*16+5)

		// A late claim from before: b comes back with a state in which it had adopted.
		disk = r.crash("b", dir)
		r.b = r.revive("b", dir, adoptedOn(t, disk, r.a.record("s"), 2))
		if got := r.b.record("s"); got.GetOwnerNodeId() != "b" {
			t.Fatalf("b records %v", got)
		}
		r.b.recorded("s", "a")
		r.wantOwner("s", "a")

		r.a = r.revive("a", dir, r.crash("a", dir))
		r.wantOwner("s", "a")
		r.ea, r.eb = r.a.register("e", testLayout(), 4<<20), r.b.register("e", testLayout(), 4<<20)
		r.ea.write("", keys)
		next := request("s")
		next.RepinSeq = 6
		if rep := r.b.mustEnd(next, committed, "", moved); rep.GetEpoch() != 4 {
			t.Errorf("epoch %d after the next hand-over", rep.GetEpoch())
		}
		r.eb.check("", keys)
		r.wantOwner("s", "b")
		r.settleCut()
	})
}

// adoptedOn is a disk whose session store has adopted s as b's under epoch.
func adoptedOn(t *testing.T, disk map[string][]byte, s *pb.Session, epoch uint64) map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "sessions.db")
	if err := os.WriteFile(path, disk["sessions.db"], 0o600); err != nil {
		t.Fatal(err)
	}
	store, err := kvstore.OpenSessions(path, "b")
	if err != nil {
		t.Fatal(err)
	}
	in, err := sessionFromProto(s)
	if err != nil {
		t.Fatal(err)
	}
	in.Epoch = epoch
	if err := store.Adopt(in); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	out := maps.Clone(disk)
	if out["sessions.db"], err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	return out
}

// "A reclaims only on ...": not while the process that asked may still record it, which it says; from it, once it says that it does not have the session and
// no migration of it runs; not from a new one that has it, or that moves it on.
func TestLetterNoReclaim(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, onDisk(dir))
		keys := r.ea.session("s", 8)
		r.ea.session("t", 2)
		m := r.handedOver(request("s"))
		wantReport(t, m.end(), failed, ReasonPeerUnreachable, unknown)
		time.Sleep(3 * time.Minute)
		r.wantOwner("s", "")
		if got := r.a.record("s"); got.GetOwnerNodeId() != "b" || got.GetEpoch() != 2 {
			t.Errorf("the source records %v while it does not hear b", got)
		}
		if _, err := r.b.engine.PublishSession(t.Context(), publishRequest("s", keys)); err == nil {
			t.Error("published where it may have come or not")
		}
		r.heal()
		r.a.recorded("s", "a")
		if got := r.a.record("s"); got.GetEpoch() != 3 {
			t.Errorf("the source records %v after b has said that it does not have the session", got)
		}
		if rep := r.b.mustEnd(request("s"), committed, "", moved); rep.GetEpoch() != 4 {
			t.Errorf("report %v", rep)
		}
		r.b.mustEnd(request("t"), committed, "", moved)
		r.eb.check("", keys)
		r.b = r.revive("b", dir, r.crash("b", dir))
		time.Sleep(3 * time.Minute)
		r.wantOwner("s", "b")
		r.wantOwner("t", "b")
		if open := r.a.d.sessions.Unconfirmed(); len(open) != 0 {
			t.Errorf("not confirmed: %+v", open)
		}
		r.settleCut()
	})
}

// A new process at the new owner that is just fetching the session is not taken for one that knows nothing of it: the source waits for
// how that ends.
func TestLetterNoReclaimUnderMigration(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 64)
		// The hand-over that an earlier process of b's was given, and died with.
		s, err := r.a.d.sessions.Get("", "s")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.a.d.sessions.HandOver(kvstore.HandOver{ID: "s", Migration: "lost", To: "b", Incarnation: "dead", Epoch: s.Epoch, Version: s.Version}); err != nil {
			t.Fatal(err)
		}
		f, awaits := r.a.d.sessions.UnconfirmedOf("", "s")
		if !awaits {
			t.Fatal("the hand-over awaits no confirmation")
		}
		run := r.b.begin(request("s"))
		run.landed(8192)
		r.a.d.reclaims.add(f)
		wantReport(t, run.end(), committed, "", moved)
		time.Sleep(3 * time.Minute)
		r.wantOwner("s", "b")
		wantSamples(t, r.a.samples(), map[string]float64{"kvferry_peer_reclaimed_sessions_total": 0})
		r.eb.check("", keys)
		r.settle()
	})
}

// A new process that is asked for the session again gets it or leaves it to the source, and nobody ends up with two owners:
// the caller's report is what the directories say.
func TestLetterAskedAgainByNewProcess(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, onDisk(dir))
		keys := r.ea.session("s", 8)
		r.handedOver(request("s"))
		r.b = r.revive("b", dir, r.crash("b", dir))
		r.eb = r.b.register("e", testLayout(), 4<<20)
		rep, _, err := r.b.migrate(request("s")) // while a may be reclaiming
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		switch rep.GetState() {
		case committed:
			r.wantOwner("s", "b")
			r.eb.check("", keys)
		default:
			wantReport(t, rep, failed, ReasonFenced, unmoved)
			r.wantOwner("s", "a")
		}
		r.settleCut()
	})
}

// "... only on an explicit takeover": the source takes back what its recorded owner does not know, and any node takes what
// was asked for and not answered; the answer is ordered after both outcomes.
func TestLetterTakeoverOfTheLost(t *testing.T) {
	t.Run("at the source", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, fast, nil)
			keys := r.ea.session("s", 8)
			m := r.handedOver(request("s"))
			r.net.CutOneWay(r.b.ip, r.a.ip)
			wantReport(t, m.end(), failed, ReasonPeerUnreachable, unknown)
			back := auto("s")
			back.RepinSeq = 3
			r.a.mustEnd(back, recompute, ReasonPeerUnreachable, unmoved)
			back = auto("s")
			back.Takeover, back.RepinSeq = true, 3
			rep := r.a.mustEnd(back, recompute, ReasonPeerUnreachable, moved)
			if rep.GetEpoch() != 3 || rep.GetBlocksUsable() != 8 {
				t.Errorf("report %v", rep)
			}
			r.ea.publish("", "s", keys, 150)
			r.heal()
			time.Sleep(time.Minute)
			r.wantOwner("s", "a")
			r.settleCut()
		})
	})
	for _, done := range []bool{true, false} {
		t.Run(map[bool]string{true: "answer lost", false: "question lost"}[done], func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, fast, nil)
				keys := r.ea.session("s", 8)
				req := auto("s")
				req.Takeover, req.RepinSeq = true, 3
				var m *running
				if done {
					m = r.handedOver(req)
					r.cut()
				} else {
					m = r.b.begin(req)
					m.until(pb.MigrationState_MIGRATION_STATE_HANDING_OVER, nil)
					r.cut()
				}
				began := time.Now()
				rep := m.end()
				wantReport(t, rep, recompute, ReasonPeerUnreachable, moved)
				if d := time.Since(began); d > 12*time.Second {
					t.Errorf("took %v", d)
				}
				if got := r.b.record("s"); rep.GetEpoch() != 2 || got.GetRepinSeq() != 3 || got.GetEpoch() != 2 || len(got.GetBlockKeys()) != 8 {
					t.Errorf("report %v, record %v", rep, got)
				}
				r.heal()
				time.Sleep(time.Minute)
				r.wantOwner("s", "b")
				r.eb.check("", keys)
				r.settleCut()
			})
		})
	}
}

// A takeover by a node with an old record of the session counts on from what the source said last, not from that.
func TestLetterTakeoverCountsOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		r.ea.session("s", 2)
		r.b.mustEnd(request("s"), committed, "", moved)
		r.a.mustEnd(request("s"), committed, "", moved) // b keeps a record of two blocks at epoch 3
		keys := r.ea.session("s", 40)
		req := auto("s")
		req.Takeover, req.RepinSeq = true, 1
		m := r.b.begin(req)
		m.landed(8192)
		r.cut()
		rep := m.end()
		wantReport(t, rep, recompute, ReasonStalled, moved)
		if got := r.b.record("s"); got.GetEpoch() != 4 || got.GetRepinSeq() != 1 || len(got.GetBlockKeys()) != len(keys) {
			t.Errorf("record after the takeover: epoch %d, %d keys", got.GetEpoch(), len(got.GetBlockKeys()))
		}
		r.heal()
		time.Sleep(time.Minute)
		r.wantOwner("s", "b")
		r.settleCut()
	})
}

// "under a partition the check for one owner is made after it heals": the owner is cut off with its peer's hand-over, each side
// is asked, and after the heal the higher rank is the owner everywhere.
func TestLetterPartition(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b", "c")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 1<<20)
		}
		a, b, c := f.nodes["a"], f.nodes["b"], f.nodes["c"]
		engines["a"].session("s", 4)
		m := b.begin(request("s"))
		m.until(pb.MigrationState_MIGRATION_STATE_HANDING_OVER, nil)
		f.net.CutOneWay(a.ip, b.ip)
		a.recorded("s", "b")
		f.net.Cut(c.ip, a.ip)
		f.net.Cut(c.ip, b.ip)
		take := auto("s")
		take.Takeover, take.RepinSeq, take.SourceHint = true, 9, "a"
		mc := c.begin(take)
		time.Sleep(3 * time.Second)
		f.net.Heal(a.ip, b.ip)
		wantReport(t, m.end(), committed, "", moved)
		engines["b"].publish("", "s", chain("s", 4), 80)
		wantReport(t, mc.end(), recompute, ReasonPeerUnreachable, moved)
		f.net.Heal(c.ip, a.ip)
		f.net.Heal(c.ip, b.ip)
		time.Sleep(2 * time.Minute)
		f.wantOwner("s", "c")
		for _, n := range f.nodes {
			if got := n.record("s"); got.GetOwnerNodeId() != "c" || got.GetRepinSeq() != 9 {
				t.Errorf("%s records %v", n.name, got)
			}
		}
		f.settle()
	})
}

// Forwarding records that lead in a circle end a migration, typed; a takeover gives the session an owner again.
func TestLetterForwardingLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b", "c")
		engines := map[string]*testEngine{}
		for name, n := range f.nodes {
			engines[name] = n.register("e", testLayout(), 1<<20)
		}
		pin := kvstore.Pin(engines["a"].publish("", "s", nil, 3).GetLayoutPin())
		for name, next := range map[string]kvstore.NodeID{"a": "b", "b": "a"} {
			d := f.nodes[name].d
			s := kvstore.Session{ID: "s", Pin: pin, Epoch: 1, Version: 1, Tokens: 3}
			if err := d.sessions.Adopt(s); err != nil {
				t.Fatal(err)
			}
			if err := d.sessions.Yield("", "s", next, 5, 0); err != nil {
				t.Fatal(err)
			}
		}
		for _, hint := range []string{"", "a", "b"} {
			req := auto("s")
			req.SourceHint = hint
			f.nodes["c"].mustEnd(req, failed, ReasonTooManyHops, unmoved)
		}
		req := auto("s")
		req.Takeover, req.RepinSeq = true, 1
		f.nodes["c"].mustEnd(req, recompute, ReasonTooManyHops, moved)
		time.Sleep(5 * time.Second)
		f.wantOwner("s", "c")
		f.settle()
	})
}

// "RECOMPUTE moves ownership; REDIRECT does not; FAILED leaves it at A and says so."
func TestLetterOwnershipOfOutcomes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		for id, tc := range map[string]struct {
			edit  func(*pb.MigrateRequest)
			state pb.MigrationState
			code  Reason
			owner string
		}{
			"recompute": {func(q *pb.MigrateRequest) { q.Mode = pb.Mode_MODE_RECOMPUTE }, recompute, "", "b"},
			"redirect": {func(q *pb.MigrateRequest) {
				q.Mode, q.RedirectAllowed, q.ExpectedTurns = pb.Mode_MODE_REDIRECT, true, 1
			}, redirect, "", "a"},
			"fenced": {func(q *pb.MigrateRequest) { q.RepinSeq = 1 }, failed, ReasonFenced, "a"},
			"fetch":  {func(*pb.MigrateRequest) {}, committed, "", "b"},
		} {
			r.ea.session(id, 4)
			if id == "fenced" {
				if _, err := r.a.d.sessions.Take("", "fenced", 5); err != nil {
					t.Fatal(err)
				}
			}
			req := request(id)
			tc.edit(req)
			own := unmoved
			if tc.owner == "b" {
				own = moved
			}
			r.b.mustEnd(req, tc.state, tc.code, own)
			r.wantOwner(id, tc.owner)
		}
		r.settle()
	})
}

// A source that dies while it is asked ends the migration within the progress time-out, and another peer's go on.
func TestLetterDeadSourceEndsSoon(t *testing.T) {
	for _, mode := range []pb.Mode{pb.Mode_MODE_FETCH, pb.Mode_MODE_UNSPECIFIED} {
		t.Run(mode.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := newFleet(t, fast, "a", "b", "c")
				engines := map[string]*testEngine{}
				for name, n := range f.nodes {
					engines[name] = n.register("e", testLayout(), 4<<20)
				}
				engines["a"].session("s", 8)
				req := request("s")
				req.Mode, req.SourceHint = mode, "a"
				m := f.nodes["b"].begin(req)
				m.until(pb.MigrationState_MIGRATION_STATE_HANDING_OVER, nil)
				f.net.Cut(f.nodes["a"].ip, f.nodes["b"].ip)
				died := time.Now()
				for i := range 5 {
					id := "other-" + string(rune('0'+i))
					keys := engines["c"].session(id, 8)
					began := time.Now()
					other := request(id)
					other.SourceHint = "c"
					f.nodes["b"].mustEnd(other, committed, "", moved)
					if d := time.Since(began); d > time.Second {
						t.Errorf("another peer's migration took %v", d)
					}
					engines["b"].check("", keys)
					time.Sleep(time.Second)
				}
				want := failed
				if mode == pb.Mode_MODE_UNSPECIFIED {
					want = recompute
				}
				wantReport(t, m.end(), want, ReasonPeerUnreachable, unknown)
				if d := time.Since(died); d > 11*time.Second {
					t.Errorf("ended after %v, the progress time-out is 10s", d)
				}
			})
		})
	}
}

// What a peer's earlier process held is dropped when another one is heard of, not when it runs out: offers with their leases
// and tickets. Names of memories and capabilities from before are refused.
func TestIncarnationDropsOffers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 64)
		r.b.begin(request("s")).landed(4 * 8192)
		if got := r.a.idle(); got.Offers != 1 || got.LeasedBlocks != 64 || got.Backlog == 0 {
			t.Errorf("the source holds %+v during the transfer", got)
		}
		r.cut()
		r.b.stop()
		r.heal()
		r.b = r.addNode(1)
		r.eb = r.b.register("e", testLayout(), 4<<20)
		r.b.mustEnd(request("nobody"), failed, ReasonSessionNotFound, unmoved) // it is heard of
		if got := r.a.idle(); got.Offers != 0 || got.LeasedBlocks != 0 || got.Leases != 0 {
			t.Errorf("the source holds %+v of a process that is gone", got)
		}
		r.b.mustEnd(request("s"), committed, "", moved)
		r.eb.check("", keys)
		r.settleCut()
	})
}

// The other way round: an offer and a memory of the source's earlier process are worth nothing at the next one.
func TestIncarnationRefusesOldNames(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, onDisk(dir))
		keys := r.ea.session("s", 4)
		link, of := r.offerOf("s")
		r.a = r.revive("a", dir, r.crash("a", dir))
		r.ea = r.a.register("e", testLayout(), 4<<20)
		r.ea.write("", keys)
		ctx := context.Background()
		if _, err := link.Call(ctx, nil); !sourceGone(classify(err).Reason) {
			t.Errorf("a call over the old process's link: %v", err)
		}
		fresh, _, err := r.b.d.callNode(ctx, "a", &pb.PeerRequest{Call: &pb.PeerRequest_Locate{Locate: &pb.LocateCall{}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := classify(r.read(fresh, of, of.GetOfferId(), of.GetSlots()[0].GetGeneration())).Reason; got != ReasonLeaseExpired {
			t.Errorf("a read by an offer of the process before: %s", got)
		}
		for name, req := range map[string]*pb.PeerRequest{
			"renew":  {Call: &pb.PeerRequest_Renew{Renew: &pb.RenewCall{OfferId: of.GetOfferId()}}},
			"accuse": {Call: &pb.PeerRequest_Accuse{Accuse: &pb.AccuseCall{OfferId: of.GetOfferId(), Slot: of.GetSlots()[0]}}},
		} {
			if _, err := r.b.d.callPeer(ctx, fresh, req); classify(err).Reason != ReasonLeaseExpired {
				t.Errorf("%s of an offer of the process before: %v", name, err)
			}
		}
		r.b.mustEnd(request("s"), committed, "", moved)
		r.eb.check("", keys)
		r.settleCut()
	})
}
