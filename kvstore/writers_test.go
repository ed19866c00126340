package kvstore_test

import (
	"errors"
	"testing"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

func reserveAll(t *testing.T, a *kvstore.Arena, o kvstore.Owner, keys []kvstore.BlockKey) []kvstore.SlotRef {
	t.Helper()
	got, err := a.Reserve(o, "", keys)
	if err != nil {
		t.Fatal(err)
	}
	refs := make([]kvstore.SlotRef, len(got))
	for i, r := range got {
		if r.State != kvstore.Reserved {
			t.Fatalf("block %d is %v", i, r.State)
		}
		refs[i] = r.Ref
	}
	return refs
}

// A block whose part is lost is gone at once; its memory waits for those that may still write it, each by its own word
// or death, and for nobody else.
func TestAbortLost(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 5, nil)
	keys := kvstoretest.Keys("a", 5)
	refs := reserveAll(t, a, "engine", keys)
	part := func(i, rank int) {
		t.Helper()
		if _, err := a.CommitPart("engine", refs[i], rank, 3, kvstore.FidelityExact); err != nil {
			t.Fatal(err)
		}
	}
	// Block 0 has no part, 1 has rank 0's, 2 the parts of 0 and 1, 3 the part of the rank that dies, 4 all of them.
	part(1, 0)
	part(2, 0)
	part(2, 1)
	part(3, 2)
	for rank := range 3 {
		part(4, rank)
	}
	if !a.HasParts(refs[2], []int{0, 1}) || a.HasParts(refs[2], []int{0, 2}) || a.HasParts(refs[0], nil) || !a.HasParts(refs[4], []int{700}) {
		t.Error("parts are not as committed")
	}
	writers := []kvstore.Writer{{Name: "p0", Ranks: []int{0}}, {Name: "p1", Ranks: []int{1}}}
	if n := a.AbortLost("somebody", []int{2}, writers) + a.AbortLost("engine", nil, writers); n != 0 {
		t.Errorf("%d reservations of nobody were aborted", n)
	}
	if n := a.AbortLost("engine", []int{2}, writers); n != 3 {
		t.Fatalf("%d reservations aborted, want the three without the part of rank 2", n)
	}
	want := func(free, reserved, committed, draining int) {
		t.Helper()
		st := a.Stats()
		if st.SlotsFree != free || st.SlotsReserved != reserved || st.SlotsCommitted != committed || st.SlotsDraining != draining {
			t.Errorf("free %d, reserved %d, committed %d, draining %d; want %d, %d, %d, %d",
				st.SlotsFree, st.SlotsReserved, st.SlotsCommitted, st.SlotsDraining, free, reserved, committed, draining)
		}
		if err := a.CheckInvariants(); err != nil {
			t.Error(err)
		}
	}
	want(1, 1, 1, 2) // block 2 has nobody left that would write
	for i, state := range []kvstore.BlockState{kvstore.BlockAbsent, kvstore.BlockAbsent, kvstore.BlockAbsent, kvstore.BlockLanding, kvstore.BlockPresent} {
		if got, _ := a.Lookup("", keys[i]); got != state {
			t.Errorf("block %d is %v, want %v", i, got, state)
		}
	}
	if _, err := a.CommitPart("engine", refs[0], 0, 3, kvstore.FidelityExact); !errors.Is(err, kvstore.ErrStaleGeneration) {
		t.Errorf("commit after the abort: %v", err)
	}
	if err := a.Abort("engine", refs[0]); !errors.Is(err, kvstore.ErrStaleGeneration) {
		t.Errorf("abort after the abort: %v", err)
	}
	if a.HasParts(refs[1], []int{0}) {
		t.Error("an aborted block has parts")
	}
	// p0 is done with block 1 by its commit; p1 is not.
	if a.Quiet("p0", refs[1]) || a.Quiet("p2", refs[0]) || a.Quiet("p1", refs[3]) || a.Quiet("p1", kvstore.SlotRef{Slot: 99, Generation: 1}) {
		t.Error("waited for who does not write")
	}
	if !a.Quiet("p1", refs[1]) {
		t.Error("did not wait for p1")
	}
	want(2, 1, 1, 1)
	if !a.Quiet("p1", refs[0]) || a.Quiet("p1", refs[0]) {
		t.Error("p1 counts twice at block 0, or not at all")
	}
	want(2, 1, 1, 1)
	// The same keys are reserved again meanwhile, in other slots.
	again := reserveAll(t, a, "engine", keys[:2])
	if again[0] == refs[0] || again[0].Slot == refs[0].Slot {
		t.Errorf("slot %v is reused while p0 may write it", refs[0])
	}
	a.ReleaseOwner("p0")
	want(1, 3, 1, 0)
	a.ReleaseOwner("engine")
	want(4, 0, 1, 0)
	if refs := reserveAll(t, a, "engine", kvstoretest.Keys("b", 4)); len(refs) != 4 {
		t.Error("slots are lost")
	}
}

// Pages that a migration lands are nobody's parts.
func TestAbortLostLeavesLandings(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 2, nil)
	keys := kvstoretest.Keys("a", 1)
	refs := reserveAll(t, a, "m", keys)
	page := kvstoretest.Page(a.Layout(), keys[0], 0)
	if err := a.WritePage(refs[0], 0, page, kvstore.PageSum(a.Pin(), keys[0], 0, page)); err != nil {
		t.Fatal(err)
	}
	if n := a.AbortLost("m", []int{0}, nil); n != 0 {
		t.Errorf("%d landings aborted", n)
	}
}

// Leases of one block are as many as somebody takes, and cost each the same to end.
func TestManyLeasesOfOneBlock(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 1, nil)
	keys := kvstoretest.Keys("a", 1)
	kvstoretest.Publish(t, a, "e", "", keys)
	const n = 100_000
	for i := range n {
		if _, _, err := a.Acquire("r", "", keys, -1); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	if got := a.ReleaseOwner("r"); got.Leases != n {
		t.Errorf("released %+v", got)
	}
	if err := a.CheckInvariants(); err != nil {
		t.Error(err)
	}
}
