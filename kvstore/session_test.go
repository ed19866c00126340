package kvstore_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

func session(n int, tokens int64) kvstore.Session {
	return kvstore.Session{ID: "s", Pin: kvstore.Pin{1}, Keys: kvstoretest.Keys("s", n), Tokens: tokens, BlockTokens: 16}
}

func openSessions(t *testing.T, path string, self kvstore.NodeID) *kvstore.Sessions {
	t.Helper()
	s, err := kvstore.OpenSessions(path, self)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// bothStores runs a test with a file and without.
func bothStores(t *testing.T, run func(t *testing.T, path string)) {
	t.Parallel()
	for name, path := range map[string]string{"memory": "", "file": filepath.Join(t.TempDir(), "sessions")} {
		t.Run(name, func(t *testing.T) { run(t, path) })
	}
}

func mustPublish(t *testing.T, s *kvstore.Sessions, in kvstore.Session) kvstore.Session {
	t.Helper()
	out, err := s.Publish(in)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func mustGet(t *testing.T, s *kvstore.Sessions, id kvstore.SessionID) kvstore.Session {
	t.Helper()
	out, err := s.Get("", id)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// handOver is a hand-over of a record as it was seen.
func handOver(seen kvstore.Session, migration string, to kvstore.NodeID) kvstore.HandOver {
	return kvstore.HandOver{
		Tenant: seen.Tenant, ID: seen.ID, Migration: migration, To: to, Epoch: seen.Epoch, Version: seen.Version,
		Tokens: seen.Tokens, RepinSeq: seen.RepinSeq,
	}
}

func mustHandOver(t *testing.T, s *kvstore.Sessions, h kvstore.HandOver) kvstore.HandOverResult {
	t.Helper()
	res, err := s.HandOver(h)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func wantFenced(t *testing.T, what string, err error, owner kvstore.NodeID, epoch, repin uint64) {
	t.Helper()
	fe, ok := errors.AsType[*kvstore.FencedError](err)
	if !ok || fe.Owner != owner || fe.Epoch != epoch || fe.RepinSeq != repin {
		t.Errorf("%s: %v, want fenced by %s at epoch %d, repin_seq %d", what, err, owner, epoch, repin)
	}
}

func TestPublish(t *testing.T) {
	bothStores(t, func(t *testing.T, path string) {
		s := openSessions(t, path, "a")
		in := session(2, 40)
		in.Owner, in.Version, in.RepinSeq = "ignored", 99, 3
		first := mustPublish(t, s, in)
		want := in
		want.Owner, want.Epoch, want.Version = "a", 1, 1
		if diff := cmp.Diff(want, first); diff != "" {
			t.Errorf("first (-want +got):\n%s", diff)
		}
		first.Keys[0] = "the caller's copy"
		in.Keys[0] = "the caller's argument"
		grown := session(3, 48)
		grown.RepinSeq = 1 // never goes back
		second := mustPublish(t, s, grown)
		want = grown
		want.Owner, want.Epoch, want.Version, want.RepinSeq = "a", 1, 2, 3
		if diff := cmp.Diff(want, second); diff != "" {
			t.Errorf("second (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, mustGet(t, s, "s")); diff != "" {
			t.Errorf("get (-want +got):\n%s", diff)
		}
		stale := session(3, 48)
		stale.Epoch = 7
		_, err := s.Publish(stale)
		wantFenced(t, "other epoch", err, "a", 1, 3)

		other := session(0, 0)
		other.Tenant, other.Keys = "t", nil
		mustPublish(t, s, other)
		if got := s.List(); len(got) != 2 || got[0].Tenant != "" || got[1].Tenant != "t" {
			t.Errorf("list: %+v", got)
		}
		if err := s.Forget("t", "s"); err != nil {
			t.Error(err)
		}
		for _, err := range []error{
			s.Forget("t", "s"),
			func() error { _, err := s.Get("t", "s"); return err }(),
			func() error { _, err := s.HandOver(handOver(other, "m", "b")); return err }(),
			func() error { _, err := s.Take("t", "s", 9); return err }(),
			s.Yield("t", "s", "b", 9, 9),
		} {
			if !errors.Is(err, kvstore.ErrSessionNotFound) {
				t.Errorf("got %v, want not found", err)
			}
		}
	})
}

func TestSessionValidate(t *testing.T) {
	t.Parallel()
	s := openSessions(t, "", "a")
	for _, tt := range []struct {
		name   string
		change func(*kvstore.Session)
		field  string
	}{
		{"no id", func(s *kvstore.Session) { s.ID = "" }, "session"},
		{"long id", func(s *kvstore.Session) { s.ID = kvstore.SessionID(strings.Repeat("x", 257)) }, "session"},
		{"tenant", func(s *kvstore.Session) { s.Tenant = "\xff" }, "tenant"},
		{"no pin", func(s *kvstore.Session) { s.Pin = kvstore.Pin{} }, "pin"},
		{"bad key", func(s *kvstore.Session) { s.Keys[1] = "short" }, "key"},
		{"repeated key", func(s *kvstore.Session) { s.Keys[1] = s.Keys[0] }, "key"},
		{"few tokens", func(s *kvstore.Session) { s.Tokens = 31 }, "tokens"},
		{"negative tokens", func(s *kvstore.Session) { s.Keys, s.Tokens = nil, -1 }, "tokens"},
		{"fewer tokens than blocks", func(s *kvstore.Session) { s.BlockTokens, s.Tokens = 0, 1 }, "tokens"},
		{"block tokens", func(s *kvstore.Session) { s.BlockTokens = -1 }, "block_tokens"},
		{"many block tokens", func(s *kvstore.Session) { s.BlockTokens = 1 << 20 }, "block_tokens"},
		{"fidelity", func(s *kvstore.Session) { s.Fidelity = 9 }, "fidelity"},
	} {
		in := session(2, 32)
		in.Epoch, in.Version = 1, 1
		tt.change(&in)
		_, err := s.Publish(in)
		for _, err := range []error{err, s.Adopt(in)} {
			if got := fields(err); len(got) != 1 || got[0] != tt.field {
				t.Errorf("%s: %v, want a FieldError of %s", tt.name, err, tt.field)
			}
		}
	}
	if len(s.List()) != 0 {
		t.Error("a refused session was recorded")
	}
	seen := mustPublish(t, s, session(2, 32))
	for field, change := range map[string]func(*kvstore.HandOver){
		"migration": func(h *kvstore.HandOver) { h.Migration = "" },
		"to":        func(h *kvstore.HandOver) { h.To = "" },
		"tokens":    func(h *kvstore.HandOver) { h.Tokens = -1 },
		"session":   func(h *kvstore.HandOver) { h.ID = "" },
		"version":   func(h *kvstore.HandOver) { h.Version++ },
	} {
		h := handOver(seen, "m", "b")
		change(&h)
		if _, err := s.HandOver(h); len(fields(err)) != 1 || fields(err)[0] != field {
			t.Errorf("hand-over: %v, want a FieldError of %s", err, field)
		}
	}
	if _, err := s.HandOver(handOver(seen, "m", "a")); len(fields(err)) != 1 {
		t.Errorf("hand-over to itself: %v", err)
	}
	if err := s.Yield("", "s", "a", 9, 9); len(fields(err)) != 1 {
		t.Errorf("yield to itself: %v", err)
	}
	if _, err := kvstore.OpenSessions("", ""); len(fields(err)) != 1 {
		t.Errorf("no node: %v", err)
	}
}

func TestHandOver(t *testing.T) {
	bothStores(t, func(t *testing.T, path string) {
		s := openSessions(t, path, "a")
		in := session(2, 40)
		in.RepinSeq = 5
		seen := mustPublish(t, s, in)

		h := handOver(seen, "m1", "b")
		h.RepinSeq = 4
		_, err := s.HandOver(h)
		wantFenced(t, "lower repin_seq", err, "a", 1, 5)
		h = handOver(seen, "m1", "b")
		h.Epoch = 2
		_, err = s.HandOver(h)
		wantFenced(t, "other epoch", err, "a", 1, 5)

		grown := mustPublish(t, s, session(3, 50))
		res := mustHandOver(t, s, handOver(seen, "m1", "b"))
		want := kvstore.HandOverResult{Outcome: kvstore.Grown, Epoch: 1, Version: 2, StaleTailTokens: 10, Session: grown}
		if diff := cmp.Diff(want, res); diff != "" {
			t.Errorf("grown (-want +got):\n%s", diff)
		}
		if got := mustGet(t, s, "s"); got.Owner != "a" || got.Epoch != 1 {
			t.Errorf("grown moved it: %+v", got)
		}

		h = handOver(grown, "m1", "b")
		h.RepinSeq = 6
		moved := kvstore.HandOverResult{Outcome: kvstore.Moved, Epoch: 2, Version: 2}
		for range 3 { // the same again has the same result
			if diff := cmp.Diff(moved, mustHandOver(t, s, h)); diff != "" {
				t.Errorf("moved (-want +got):\n%s", diff)
			}
		}
		want2 := grown
		want2.Owner, want2.Epoch, want2.RepinSeq = "b", 2, 6
		if diff := cmp.Diff(want2, mustGet(t, s, "s")); diff != "" {
			t.Errorf("forwarding record (-want +got):\n%s", diff)
		}
		other := h
		other.To = "c"
		_, err = s.HandOver(other)
		if ce, ok := errors.AsType[*kvstore.MigrationConflictError](err); !ok || ce.To != "b" || ce.Epoch != 2 {
			t.Errorf("same migration to another node: %v", err)
		}
		other.Migration = "m2"
		_, err = s.HandOver(other)
		wantFenced(t, "after the move", err, "b", 2, 6)
		_, err = s.Publish(session(3, 50))
		if ne, ok := errors.AsType[*kvstore.NotOwnerError](err); !ok || ne.Owner != "b" || ne.Epoch != 2 {
			t.Errorf("publish after the move: %v", err)
		}
	})
}

func TestHandOverAcceptStale(t *testing.T) {
	bothStores(t, func(t *testing.T, path string) {
		s := openSessions(t, path, "a")
		seen := mustPublish(t, s, session(2, 40))
		mustPublish(t, s, session(3, 61))
		h := handOver(seen, "m", "b")
		h.AcceptStale = true
		want := kvstore.HandOverResult{Outcome: kvstore.Moved, Epoch: 2, Version: 2, StaleTailTokens: 21}
		for range 2 {
			if diff := cmp.Diff(want, mustHandOver(t, s, h)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
	})
	t.Run("shrunk", func(t *testing.T) {
		s := openSessions(t, "", "a")
		seen := mustPublish(t, s, session(2, 40))
		mustPublish(t, s, session(1, 20))
		h := handOver(seen, "m", "b")
		h.AcceptStale = true
		if res := mustHandOver(t, s, h); res.StaleTailTokens != 0 {
			t.Errorf("%+v", res)
		}
	})
}

// A session goes to b and comes back; then an old retry of the first migration is fenced: who gets it could not record
// anything that is still so.
func TestHandOverThereAndBack(t *testing.T) {
	t.Parallel()
	a, b := openSessions(t, "", "a"), openSessions(t, "", "b")
	seen := mustPublish(t, a, session(2, 40))
	there := handOver(seen, "there", "b")
	res := mustHandOver(t, a, there)
	at := seen
	at.Epoch = res.Epoch
	for range 2 {
		if err := b.Adopt(at); err != nil {
			t.Fatal(err)
		}
	}
	grown := mustPublish(t, b, session(3, 60))
	if grown.Epoch != 2 || grown.Version != seen.Version+1 || grown.Owner != "b" {
		t.Errorf("published at b: %+v", grown)
	}
	wantFenced(t, "adopt of an older version", b.Adopt(at), "b", 2, 0)
	res = mustHandOver(t, b, handOver(grown, "back", "a"))
	home := grown
	home.Epoch = res.Epoch
	if err := a.Adopt(home); err != nil {
		t.Fatal(err)
	}
	_, err := a.HandOver(there)
	wantFenced(t, "old retry", err, "a", 3, 0)
	if got := mustGet(t, a, "s"); got.Owner != "a" || got.Epoch != 3 {
		t.Errorf("after the old retry: %+v", got)
	}
}

// Ownership is ordered by (repin_seq, epoch), in that order; at the same pair the greater name owns.
func TestAdoptYieldOrder(t *testing.T) {
	t.Parallel()
	rank := [][2]uint64{{1, 1}, {1, 2}, {1, 9}, {2, 1}, {2, 5}, {3, 2}} // ascending
	for i, mine := range rank {
		for j, theirs := range rank {
			s := openSessions(t, "", "a")
			have := session(1, 16)
			have.Version, have.RepinSeq, have.Epoch = 4, mine[0], mine[1]
			if err := s.Adopt(have); err != nil {
				t.Fatal(err)
			}
			wantFencedUnless(t, j > i, s.Yield("", "s", "Z", theirs[1], theirs[0]), "a", mine)
			if err := s.Adopt(have); j > i { // back again, at the rank that it had
				have.RepinSeq, have.Epoch = theirs[0], theirs[1]
				if err := s.Adopt(have); err != nil { // "a" is greater than "Z"
					t.Fatal(err)
				}
				s = openSessions(t, "", "a")
				have.RepinSeq, have.Epoch = mine[0], mine[1]
				if err := s.Adopt(have); err != nil {
					t.Fatal(err)
				}
			} else if err != nil {
				t.Errorf("adopt the same again: %v", err)
			}
			err := s.Yield("", "s", "b", theirs[1], theirs[0])
			if j >= i {
				if got := mustGet(t, s, "s"); err != nil || got.Owner != "b" || got.Epoch != theirs[1] || got.RepinSeq != theirs[0] {
					t.Errorf("yield %v to %v: %v, %+v", mine, theirs, err, got)
				}
				if err := s.Yield("", "s", "b", theirs[1], theirs[0]); err != nil {
					t.Errorf("yield again: %v", err)
				}
				in := have
				wantFenced(t, "adopt below the record", s.Adopt(in), "b", theirs[1], theirs[0])
				in.RepinSeq, in.Epoch = theirs[0], theirs[1]
				wantFenced(t, "adopt at another's rank", s.Adopt(in), "b", theirs[1], theirs[0])
				in.Epoch++
				if err := s.Adopt(in); err != nil {
					t.Errorf("adopt above the record: %v", err)
				}
			} else {
				wantFenced(t, fmt.Sprintf("yield %v to %v", mine, theirs), err, "a", mine[1], mine[0])
			}
		}
	}
}

// wantFencedUnless holds err to nil if ok, and else to a fence by owner at rank (repin_seq, epoch).
func wantFencedUnless(t *testing.T, ok bool, err error, owner kvstore.NodeID, rank [2]uint64) {
	t.Helper()
	if !ok {
		wantFenced(t, "yield to a lesser name", err, owner, rank[1], rank[0])
	} else if err != nil {
		t.Errorf("yield: %v", err)
	}
}

func TestTake(t *testing.T) {
	bothStores(t, func(t *testing.T, path string) {
		s := openSessions(t, path, "a")
		in := session(2, 40)
		in.RepinSeq = 5
		seen := mustPublish(t, s, in)
		mustHandOver(t, s, handOver(seen, "m", "b"))
		_, err := s.Take("", "s", 5)
		wantFenced(t, "not higher", err, "b", 2, 5)
		got, err := s.Take("", "s", 6)
		want := seen
		want.Owner, want.Epoch, want.RepinSeq = "a", 3, 6
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("take: %v (-want +got):\n%s", err, diff)
		}
		mustPublish(t, s, session(3, 60))
	})
}

// Concurrent hand-overs of one version: one wins, whoever asks again gets the winner's epoch or is fenced.
func TestHandOverOneWinner(t *testing.T) {
	bothStores(t, func(t *testing.T, path string) {
		s := openSessions(t, path, "a")
		seen := mustPublish(t, s, session(2, 40))
		var wg sync.WaitGroup
		results := make([]error, 16)
		for i := range results {
			wg.Go(func() {
				_, results[i] = s.HandOver(handOver(seen, fmt.Sprint("m", i%8), kvstore.NodeID(fmt.Sprint("n", i%8))))
				_, _ = s.Get("", "s")
				s.List()
			})
		}
		wg.Wait()
		winner := mustGet(t, s, "s").Owner
		for i, err := range results {
			if won := kvstore.NodeID(fmt.Sprint("n", i%8)) == winner; won != (err == nil) {
				t.Errorf("request %d of winner %s: %v", i, winner, err)
			}
		}
		if got := mustGet(t, s, "s"); got.Epoch != 2 {
			t.Errorf("epoch %d, want 2", got.Epoch)
		}
	})
}

// A hand-over's answer is lost, and before it is asked for again the session is taken over: the answer is not repeated, since the session
// would have two owners.
func TestHandOverOvertaken(t *testing.T) {
	t.Parallel()
	a := openSessions(t, "", "a")
	seen := mustPublish(t, a, session(2, 40))
	there := handOver(seen, "there", "b")
	there.RepinSeq = 1
	want := mustHandOver(t, a, there)
	if diff := cmp.Diff(want, mustHandOver(t, a, there)); diff != "" {
		t.Errorf("asked again (-want +got):\n%s", diff)
	}
	if _, err := a.Take("", "s", 2); err != nil {
		t.Fatal(err)
	}
	_, err := a.HandOver(there)
	wantFenced(t, "asked again after a takeover", err, "a", 3, 2)
	if err := a.Yield("", "s", "c", 4, 3); err != nil {
		t.Fatal(err)
	}
	_, err = a.HandOver(there)
	wantFenced(t, "asked again after another's takeover", err, "c", 4, 3)
}
