package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// policyOf writes a policy of some rules, "region tenant decision" each, and the rest of the file as it is.
func policyOf(t *testing.T, path, rest string, rules ...string) {
	t.Helper()
	text := "version: 1\nrules:\n"
	for i, r := range rules {
		f := strings.Split(r, " ")
		text += "  - {name: r" + string(rune('0'+i)) + `, regions: ["` + f[0] + `"], tenants: ["` + f[1] + `"], decision: ` + f[2] + "}\n"
	}
	if len(rules) == 0 {
		text = "version: 1\n"
	}
	if err := os.WriteFile(path, []byte(text+rest), 0o600); err != nil {
		t.Fatal(err)
	}
}

// withPolicy gives one node a policy file.
func withPolicy(name, path string) func(string, *Config, *Parts) {
	return func(n string, c *Config, _ *Parts) {
		if n == name {
			c.Policy = path
		}
	}
}

// callOf names a peer's call.
func callOf(req *pb.PeerRequest) protoreflect.Name {
	m := req.ProtoReflect()
	return m.WhichOneof(m.Descriptor().Oneofs().Get(0)).Name()
}

// link dials another node, as this one's migrations do.
func (n *node) link(to transfer.PeerID) *transfer.Link {
	n.f.t.Helper()
	l, err := n.d.links.get(context.Background(), to)
	if err != nil {
		n.f.t.Fatal(err)
	}
	return l
}

// A source gives nothing to a region that its policy does not allow, and does not even say that it knows the session; others get it.
func TestPolicyAtSource(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "", "r-b * allow")
		f := newFleetEdited(t, fast, withPolicy("a", file), "a", "b", "c")
		ea := f.nodes["a"].register("e", testLayout(), 1<<20)
		eb, ec := f.nodes["b"].register("e", testLayout(), 1<<20), f.nodes["c"].register("e", testLayout(), 1<<20)
		keys := ea.session("s", 6)
		c := f.nodes["c"]
		// Who does not know of the session finds nobody who does.
		c.mustEnd(request("s"), failed, ReasonSessionNotFound, unmoved)
		for _, id := range []string{"s", "there-is-none"} {
			req := request(id)
			req.SourceHint = "a"
			rep := c.mustEnd(req, failed, ReasonPolicyDenied, unmoved)
			if want := `region "r-c" may not pull tenant "": no rule of the policy allows it`; !strings.Contains(rep.GetMessage(), want) {
				t.Errorf("message %q, want %q in it", rep.GetMessage(), want)
			}
		}
		// Ownership does not move either by having it computed there, nor by a takeover of an owner that answers.
		req := request("s")
		req.SourceHint, req.Mode = "a", pb.Mode_MODE_RECOMPUTE
		c.mustEnd(req, failed, ReasonPolicyDenied, unmoved)
		req = request("s")
		req.SourceHint, req.Mode, req.Takeover, req.RepinSeq = "a", pb.Mode_MODE_UNSPECIFIED, true, 7
		c.mustEnd(req, failed, ReasonPolicyDenied, unmoved)
		req = request("")
		req.SourceHint, req.Keys = "a", keys
		rep, _, err := c.migrate(req)
		if err != nil || rep.GetState() != failed || Reason(rep.GetCode()) != ReasonPolicyDenied {
			t.Errorf("named blocks: %v, %v", rep, err)
		}
		if n := ec.n.record("s"); n != nil {
			t.Errorf("c has a record: %v", n)
		}
		f.wantOwner("s", "a")
		f.nodes["b"].mustEnd(request("s"), committed, "", moved)
		eb.check("", keys)
		got := f.nodes["a"].samples()
		wantSamples(t, got, map[string]float64{
			`kvferry_policy_denials_total{call="offer"}`: 5, `kvferry_policy_denials_total{call="locate"}`: 1, `kvferry_policy_rules`: 1,
			`kvferry_audit_refusals_total{reason="POLICY_DENIED"}`: 6,
		})
		f.settle()
	})
}

// Every call of a peer that is about a session is held to the policy: the answer is that of the policy, whatever there is.
func TestPolicyDeniesEveryPeerCall(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "", "r-b open allow", "r-c * allow")
		f := newFleetEdited(t, fast, withPolicy("a", file), "a", "b", "c")
		a, b := f.nodes["a"], f.nodes["b"]
		ea := a.register("e", testLayout(), 1<<20)
		keys := chain("s", 2)
		ea.write("acme", keys)
		ea.publish("acme", "s", keys, 35)
		ref := func(id string) *pb.SessionRef { return &pb.SessionRef{Tenant: "acme", SessionId: id} }
		link := b.link("a")
		asked := map[string]bool{}
		// An offer of c's: b can do nothing with its id.
		resp, err := f.nodes["c"].d.callPeer(t.Context(), f.nodes["c"].link("a"), &pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: ref("s")}}})
		if err != nil {
			t.Fatal(err)
		}
		others := resp.GetOffer()
		for _, id := range []string{"s", "none"} {
			for name, call := range map[string]*pb.PeerRequest{
				"offer":         {Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: ref(id)}}},
				"dry offer":     {Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: ref(id), DryRun: true}}},
				"keys":          {Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: &pb.SessionRef{Tenant: "acme"}, Keys: keys}}},
				"hand-over":     {Call: &pb.PeerRequest_HandOver{HandOver: &pb.HandOverCall{Session: ref(id), MigrationId: "m", Epoch: 1, Version: 1}}},
				"yield":         {Call: &pb.PeerRequest_Yield{Yield: &pb.YieldCall{Session: ref(id), Epoch: 9, RepinSeq: 9}}},
				"part of other": {Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: ref(id), OfferId: others.GetOfferId()}}},
				"renew other":   {Call: &pb.PeerRequest_Renew{Renew: &pb.RenewCall{OfferId: others.GetOfferId()}}},
				"accuse other":  {Call: &pb.PeerRequest_Accuse{Accuse: &pb.AccuseCall{OfferId: others.GetOfferId(), Slot: others.GetSlots()[0]}}},
			} {
				asked[string(callOf(call))] = true
				want := ReasonPolicyDenied
				if strings.HasSuffix(name, "other") {
					want = ReasonLeaseExpired // as for an offer that there is not
				}
				_, err := b.d.callPeer(t.Context(), link, call)
				if f := classify(err); err == nil || f.Reason != want || strings.Contains(f.Error(), "epoch") {
					t.Errorf("%s of %q: %v, want %s", name, id, err, want)
				}
			}
			resp, err := b.d.callPeer(t.Context(), link, &pb.PeerRequest{Call: &pb.PeerRequest_Locate{Locate: &pb.LocateCall{Session: ref(id)}}})
			if err != nil || !proto.Equal(resp.GetLocate(), &pb.LocateAnswer{}) {
				t.Errorf("locate %q: %v, %v", id, resp, err)
			}
			// One that is told so takes nothing back, and does not learn whether it is true.
			resp, err = b.d.callPeer(t.Context(), link, &pb.PeerRequest{Call: &pb.PeerRequest_Confirm{Confirm: &pb.ConfirmCall{Session: ref(id), Epoch: 9}}})
			if err != nil || !proto.Equal(resp.GetConfirm(), &pb.ConfirmAnswer{Known: true}) {
				t.Errorf("confirm %q: %v, %v", id, resp, err)
			}
		}
		asked["locate"], asked["confirm"], asked["end_offer"] = true, true, true
		for fields, i := (&pb.PeerRequest{}).ProtoReflect().Descriptor().Oneofs().Get(0).Fields(), 0; i < fields.Len(); i++ {
			if name := string(fields.Get(i).Name()); !asked[name] {
				t.Errorf("call %q is not held to the policy here", name)
			}
		}
		if s, err := a.d.sessions.Get("acme", "s"); err != nil || s.Owner != "a" || s.Epoch != 1 {
			t.Errorf("record %+v, %v", s, err)
		}
		// Ending another's offer does nothing, and is no error, as for one that is gone.
		if _, err := b.d.callPeer(t.Context(), link, &pb.PeerRequest{Call: &pb.PeerRequest_EndOffer{EndOffer: &pb.EndOfferCall{OfferId: others.GetOfferId()}}}); err != nil {
			t.Error(err)
		}
		if a.d.offers.count() != 1 {
			t.Errorf("%d offers, want c's", a.d.offers.count())
		}
	})
}

// A peer that refuses to hear of an owner, and names another, is believed only where its region may have the session.
func TestPolicyAndWordOfOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "", "r-c * allow")
		f := newFleetEdited(t, fast, withPolicy("a", file), "a", "b", "c")
		ea, a := f.nodes["a"].register("e", testLayout(), 1<<20), f.nodes["a"].d
		ea.session("s", 2)
		word := &Failure{Reason: ReasonFenced, Meta: map[string]string{"owner_node_id": "b", "epoch": "7", "repin_seq": "7"}}
		for _, tc := range []struct {
			from transfer.PeerID
			want kvstore.NodeID
		}{{"b", "a"}, {"stranger", "a"}, {"c", "b"}} {
			s, err := a.sessions.Get("", "s")
			if err != nil {
				t.Fatal(err)
			}
			a.believe(t.Context(), tc.from, s, word)
			if s, err = a.sessions.Get("", "s"); err != nil || s.Owner != tc.want {
				t.Errorf("by the word of %q the owner is %q, %v; want %q", tc.from, s.Owner, err, tc.want)
			}
		}
	})
}

// Whoever learns an offer's id can't read by it: it is bound to the peer that it was made to.
func TestTokenOfAnotherPeer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b", "c")
		ea, ec := f.nodes["a"].register("e", testLayout(), 1<<20), f.nodes["c"].register("e", testLayout(), 1<<20)
		keys := ea.session("s", 1)
		f.nodes["b"].register("e", testLayout(), 1<<20)
		resp, err := f.nodes["b"].d.callPeer(t.Context(), f.nodes["b"].link("a"), &pb.PeerRequest{Call: &pb.PeerRequest_Offer{Offer: &pb.OfferCall{Session: &pb.SessionRef{SessionId: "s"}}}})
		if err != nil {
			t.Fatal(err)
		}
		of := resp.GetOffer()
		res, err := f.nodes["c"].engine.ReserveBlocks(t.Context(), &pb.ReserveBlocksRequest{EngineId: "e", Keys: keys})
		if err != nil {
			t.Fatal(err)
		}
		here, there := res.GetReservations()[0].GetSlot(), of.GetSlots()[0]
		e, err := f.nodes["c"].d.engines.get("e")
		if err != nil {
			t.Fatal(err)
		}
		read := func(token []byte) error {
			tr, err := f.nodes["c"].link("a").Prepare(transfer.Read,
				[]transfer.Desc{{Memory: e.memory, Offset: uint64(here.GetSlot()) * uint64(ec.reg.GetStrideBytes()), Generation: here.GetGeneration(), Pages: 4}},
				[]transfer.Desc{{Memory: transfer.MemoryID(of.GetMemoryId()), Offset: uint64(there.GetSlot()) * uint64(of.GetStrideBytes()), Generation: there.GetGeneration(), Pages: 4}},
				transfer.TransferOptions{Token: token})
			if err != nil {
				return err
			}
			defer tr.Release()
			if err := tr.Post(t.Context()); err != nil {
				return err
			}
			_, err = tr.Wait(t.Context())
			return err
		}
		if f := classify(read(of.GetOfferId())); f.Reason != ReasonPermission {
			t.Errorf("a read by another peer's offer: %v, want %s", f, ReasonPermission)
		}
		if f := classify(read(make([]byte, 16))); f.Reason != ReasonLeaseExpired {
			t.Errorf("a read by no offer: %v, want %s", f, ReasonLeaseExpired)
		}
		if f := classify(read(nil)); f.Reason == ReasonInternal {
			t.Errorf("a read without an offer: %v", f)
		}
		for region, want := range map[string]Reason{"r-b": "", "r-x": ReasonPermission} { // the same node, by another certificate
			err := f.nodes["a"].d.permitRead(transfer.Peer{ID: "b", Region: region}, of.GetOfferId())
			if want == "" && err != nil {
				t.Errorf("a read by the offer's own peer: %v", err)
			} else if want != "" {
				re, ok := errors.AsType[*transfer.RemoteError](err)
				if !ok || failureFromDetails(re).Reason != want {
					t.Errorf("a read by the peer with a certificate of region %s: %v, want %s", region, err, want)
				}
			}
		}
		wantSamples(t, f.nodes["a"].samples(), map[string]float64{`kvferry_audit_lines_total{decision="refused",event="read"}`: 2, `kvferry_egress_served_bytes_total{peer="c"}`: 0})
	})
}

// A node whose own region may not have a tenant's sessions refuses at once, whatever the source would say, a takeover too.
func TestPolicyAtDestination(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "", "r-b acme deny", "* * allow")
		r := newRig(t, fast, withPolicy("b", file))
		keys := chain("s", 2)
		r.ea.write("acme", keys)
		r.ea.publish("acme", "s", keys, 35)
		req := request("s")
		req.Session.Tenant = "acme"
		_, _, err := r.b.migrate(req)
		if f := wantError(t, err, ReasonPolicyDenied); f.Meta["rule"] != "r0" {
			t.Errorf("meta %v, want the rule's name", f.Meta)
		}
		_, err = r.b.mig.Plan(t.Context(), &pb.PlanRequest{Migrate: req})
		wantError(t, err, ReasonPolicyDenied)
		r.cut()
		req = request("s")
		req.Session.Tenant, req.Takeover, req.RepinSeq, req.Mode = "acme", true, 3, pb.Mode_MODE_UNSPECIFIED
		_, _, err = r.b.migrate(req)
		wantError(t, err, ReasonPolicyDenied)
		r.heal()
		r.wantOwner("s", "a")
		r.ea.session("free", 2)
		r.b.mustEnd(request("free"), committed, "", moved)
		wantSamples(t, r.b.samples(), map[string]float64{`kvferry_policy_denials_total{call="migrate"}`: 3})
		r.settle()
	})
}

// A policy that changes under a running transfer ends it, with its reason, and no other.
func TestPolicyRevokes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "", "r-b * allow")
		r := newRig(t, wan.Model{RTT: 20 * time.Millisecond, Rate: 5e5, Seed: 1}, withPolicy("a", file))
		for _, tenant := range []string{"acme", "free"} {
			keys := chain(tenant, 64)
			r.ea.write(tenant, keys)
			r.ea.publish(tenant, "s", keys, 64*16)
		}
		acme, free := request("s"), request("s")
		acme.Session.Tenant, free.Session.Tenant = "acme", "free"
		run, other := r.b.begin(acme), r.b.begin(free)
		run.landed(8 * 8192)
		began := time.Now()
		policyOf(t, file, "", "r-b acme deny", "r-b * allow") // nobody is told: it is found
		wantReport(t, run.end(), failed, ReasonPolicyDenied, unmoved)
		if took := time.Since(began); took > reloadEvery+15*time.Second { // calls wait for pages on the full path
			t.Errorf("it took %v, want the time until the file is looked at and a call's", took)
		}
		wantReport(t, other.end(), committed, "", moved)
		r.eb.check("free", chain("free", 64))
		if s, err := r.a.d.sessions.Get("acme", "s"); err != nil || s.Owner != "a" {
			t.Errorf("record %+v, %v", s, err)
		}
		time.Sleep(10 * time.Second) // what the slow link had taken in goes by
		r.settle()
	})
}

// The same at the destination: its migrations of what its region may not have any more end.
func TestPolicyRevokesAtDestination(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "", "* * allow")
		r := newRig(t, slow, withPolicy("b", file))
		r.ea.session("s", 64)
		run := r.b.begin(request("s"))
		run.landed(8192)
		policyOf(t, file, "", "r-b * deny")
		if err := r.b.d.Reload(); err != nil {
			t.Fatal(err)
		}
		wantReport(t, run.end(), failed, ReasonPolicyDenied, unmoved)
		r.wantOwner("s", "a")
		time.Sleep(10 * time.Second) // what the slow link had taken in goes by
		r.settle()
	})
}

// A file that can't be used leaves the one before in force, which is told once, shown and counted; so does one that is gone.
func TestPolicyReloadKeepsTheOld(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "", "r-b * allow")
		r := newRig(t, fast, withPolicy("a", file))
		refusals := func() float64 { return r.a.samples()[`kvferry_identity_reloads_total{file="policy",result="refused"}`] }
		for i, spoil := range []func() error{
			func() error { return os.WriteFile(file, []byte("version: 1\nrules: [{name: x}]"), 0o600) },
			func() error { return os.Remove(file) },
		} {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(3 * reloadEvery)
			if got := refusals(); got != float64(i+1) {
				t.Errorf("%v refusals are told of, want %d", got, i+1)
			}
			st, err := r.a.region.Status(t.Context(), &pb.StatusRequest{})
			if err != nil || st.GetPolicy().GetRefused() == "" || st.GetPolicy().GetRules() != 1 || st.GetPolicy().GetPath() != file {
				t.Errorf("status %v, %v", st.GetPolicy(), err)
			}
			id := []string{"s", "t"}[i]
			r.ea.session(id, 2)
			r.b.mustEnd(request(id), committed, "", moved)
		}
		wantSamples(t, r.a.samples(), map[string]float64{`kvferry_identity_reload_refused{file="policy"}`: 1})
		if err := r.a.d.Reload(); err == nil || !strings.Contains(err.Error(), "policy.yaml") {
			t.Errorf("Reload: %v, want an error that names the file", err)
		}
		policyOf(t, file, "", "r-b other allow")
		time.Sleep(2 * reloadEvery)
		st, err := r.a.region.Status(t.Context(), &pb.StatusRequest{})
		if err != nil || st.GetPolicy().GetRefused() != "" {
			t.Errorf("status %v, %v", st.GetPolicy(), err)
		}
		wantSamples(t, r.a.samples(), map[string]float64{`kvferry_identity_reload_refused{file="policy"}`: 0, `kvferry_identity_reloads_total{file="policy",result="taken"}`: 1})
		r.ea.session("u", 2)
		req := request("u")
		req.SourceHint = "a"
		r.b.mustEnd(req, failed, ReasonPolicyDenied, unmoved)
	})
}

// A daemon does not start without the policy that it was given.
func TestNoStartWithoutPolicy(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.yaml")
	if err := os.WriteFile(bad, []byte("version: 7"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{bad: "policy version = 7: must be 1", filepath.Join(dir, "none.yaml"): "no such file"} {
		if p, err := openPolicy(path); err == nil || !strings.Contains(err.Error(), want) || p.get() != nil {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// What a tenant may have at rest bounds it alone: it evicts its own, and never another's.
func TestPolicyQuota(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "limits:\n  - {name: small, tenants: [small], bytes_at_rest: 32768}\n", "* * allow")
		r := newRig(t, fast, withPolicy("a", file))
		r.ea.write("large", chain("l", 20))
		r.ea.write("small", chain("s", 4)) // 4 blocks of 8 KiB
		_, err := r.a.engine.ReserveBlocks(t.Context(), &pb.ReserveBlocksRequest{EngineId: "e", Tenant: "small", Keys: chain("more", 5)})
		wantError(t, err, ReasonArenaFull)
		r.ea.write("small", chain("t", 3))
		e, err := r.a.d.engines.get("e")
		if err != nil {
			t.Fatal(err)
		}
		count := func(tenant kvstore.Tenant, keys ...[]kvstore.BlockKey) (n int) {
			for _, list := range keys {
				n += len(list) - missingBlocks(e.arena, tenant, list)
			}
			return n
		}
		if n := count("small", keysOf(chain("s", 4)), keysOf(chain("t", 3))); n != 4 {
			t.Errorf("the tenant has %d blocks, want 4", n)
		}
		r.ea.check("large", chain("l", 20))
		// A lower bound binds what comes from there on.
		policyOf(t, file, "limits:\n  - {name: small, tenants: [small], bytes_at_rest: 1}\n", "* * allow")
		if err := r.a.d.Reload(); err != nil {
			t.Fatal(err)
		}
		_, err = r.a.engine.ReserveBlocks(t.Context(), &pb.ReserveBlocksRequest{EngineId: "e", Tenant: "small", Keys: chain("two", 2)})
		wantError(t, err, ReasonArenaFull)
	})
}

// What may leave for a tenant is bounded by the least of policy and configuration, and is told to the puller, whose plan counts it.
func TestPolicyRate(t *testing.T) {
	file := filepath.Join(t.TempDir(), "policy.yaml")
	bubble(t, func(t *testing.T) {
		policyOf(t, file, "limits:\n  - {name: slow, tenants: [slow], max_rate: 65536}\n", "* * allow")
		r := newRig(t, fast, withPolicy("a", file))
		for _, tenant := range []string{"slow", "quick"} {
			keys := chain(tenant, 16) // 128 KiB
			r.ea.write(tenant, keys)
			r.ea.publish(tenant, "s", keys, 16*16)
			req := request("s")
			req.Session.Tenant = tenant
			rep := r.b.mustEnd(req, committed, "", moved)
			took := rep.GetTransfer().AsDuration()
			// All but the last chunk, a block at most, is paid for: 15 blocks of 8 KiB at 64 KiB/s.
			if least := 15 * 125 * time.Millisecond; tenant == "slow" && (took < least-50*time.Millisecond || took > least+time.Second) {
				t.Errorf("slow took %v, want %v or a little more", took, least)
			} else if tenant == "quick" && took > time.Second {
				t.Errorf("quick took %v", took)
			}
		}
		if got := r.a.d.maxRate("slow"); got != 65536 {
			t.Errorf("the rate that pullers are told is %d", got)
		}
		r.settle()
	})
}
