package kvstore_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/kvstore"
)

// given hands s to b's process i1 at a, and returns what awaits confirmation.
func given(t *testing.T, a *kvstore.Sessions) kvstore.Forwarded {
	t.Helper()
	in := session(2, 40)
	in.RepinSeq = 5
	h := handOver(mustPublish(t, a, in), "m", "b")
	h.Incarnation, h.RepinSeq = "i1", 6
	mustHandOver(t, a, h)
	want := kvstore.Forwarded{ID: "s", Migration: "m", To: "b", Incarnation: "i1", Epoch: 2, RepinSeq: 6}
	if diff := cmp.Diff([]kvstore.Forwarded{want}, a.Unconfirmed()); diff != "" {
		t.Fatalf("unconfirmed (-want +got):\n%s", diff)
	}
	return want
}

// A hand-over is unconfirmed, over a reopened file too, until the new owner or somebody after it has been heard of.
func TestUnconfirmed(t *testing.T) {
	for name, confirm := range map[string]func(*kvstore.Sessions, kvstore.Forwarded) error{
		"confirm":       func(s *kvstore.Sessions, f kvstore.Forwarded) error { return s.Confirm([]kvstore.Forwarded{f}) },
		"a later owner": func(s *kvstore.Sessions, f kvstore.Forwarded) error { return s.Yield("", "s", "c", 3, 6) },
		"takeover":      func(s *kvstore.Sessions, f kvstore.Forwarded) error { _, err := s.Take("", "s", 7); return err },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sessions.db")
			s := openSessions(t, path, "a")
			f := given(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openSessions(t, path, "a")
			if diff := cmp.Diff([]kvstore.Forwarded{f}, s.Unconfirmed()); diff != "" {
				t.Fatalf("after reopening (-want +got):\n%s", diff)
			}
			for range 2 {
				if err := confirm(s, f); err != nil && name != "takeover" {
					t.Fatal(err)
				}
			}
			if got := s.Unconfirmed(); len(got) != 0 {
				t.Errorf("still unconfirmed: %+v", got)
			}
			before := mustGet(t, s, "s")
			_, err := s.Reclaim(f)
			wantFenced(t, "reclaim", err, before.Owner, before.Epoch, before.RepinSeq)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openSessions(t, path, "a")
			if got := s.Unconfirmed(); len(got) != 0 {
				t.Errorf("unconfirmed after reopening: %+v", got)
			}
		})
	}
}

// A reclaimed session is this node's under the epoch after the lost one, durably; the lost migration, asked for again, is
// fenced, and the next one counts on.
func TestReclaim(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sessions.db")
	s := openSessions(t, path, "a")
	f := given(t, s)
	other := f
	other.Incarnation = "i2"
	_, err := s.Reclaim(other)
	wantFenced(t, "another process's", err, "b", 2, 6)
	got, err := s.Reclaim(f)
	if err != nil || got.Owner != "a" || got.Epoch != 3 || got.RepinSeq != 6 || got.Version != 1 {
		t.Fatalf("reclaim: %+v, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openSessions(t, path, "a")
	if diff := cmp.Diff(got, mustGet(t, s, "s")); diff != "" {
		t.Errorf("after reopening (-want +got):\n%s", diff)
	}
	_, err = s.Reclaim(f)
	wantFenced(t, "reclaim twice", err, "a", 3, 6)
	late := kvstore.HandOver{ID: "s", Migration: "m", To: "b", Incarnation: "i1", Epoch: 1, Version: 1, Tokens: 40, RepinSeq: 6}
	_, err = s.HandOver(late)
	wantFenced(t, "late retry", err, "a", 3, 6)
	wantFenced(t, "late claim", s.Yield("", "s", "b", 2, 6), "a", 3, 6)
	next := handOver(got, "m2", "b")
	next.RepinSeq = 6
	if res := mustHandOver(t, s, next); res.Epoch != 4 {
		t.Errorf("epoch %d after the next hand-over, want 4", res.Epoch)
	}
	if _, err := s.Reclaim(kvstore.Forwarded{ID: "nobody"}); !errors.Is(err, kvstore.ErrSessionNotFound) {
		t.Errorf("reclaim of nothing: %v", err)
	}
}

// The recorded owner may ask again, for it may have lost the answer: under its own epoch, and not when the session has been
// reclaimed meanwhile.
func TestHandOverToRecordedOwner(t *testing.T) {
	t.Parallel()
	s := openSessions(t, "", "a")
	f := given(t, s)
	again := kvstore.HandOver{ID: "s", Migration: "m2", To: "b", Incarnation: "i2", Epoch: 2, Version: 1, Tokens: 40, RepinSeq: 6}
	for range 2 {
		if res := mustHandOver(t, s, again); res.Outcome != kvstore.Moved || res.Epoch != 2 {
			t.Fatalf("asked again: %+v", res)
		}
	}
	_, err := s.Reclaim(f)
	wantFenced(t, "reclaim from the process before", err, "b", 2, 6)
	for _, wrong := range []uint64{1, 3} {
		h := again
		h.Migration, h.Epoch = fmt.Sprint("wrong", wrong), wrong
		_, err := s.HandOver(h)
		wantFenced(t, "another epoch", err, "b", 2, 6)
	}
	if _, err := s.Reclaim(s.Unconfirmed()[0]); err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"m", "m2", "m3"} {
		again.Migration = m
		_, err = s.HandOver(again)
		wantFenced(t, "asked again after the reclaim", err, "a", 3, 6)
	}
}
