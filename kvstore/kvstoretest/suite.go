package kvstoretest

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/kvferry/kvferry/kvstore"
)

// Run holds a store to its contract. Open returns an empty store of the given number of slots with Layout and at most
// 8 leases, closed when the test ends.
func Run(t *testing.T, open func(t *testing.T, slots int) Store) {
	for _, tt := range []struct {
		name string
		run  func(*testing.T, func(*testing.T, int) Store)
	}{
		{"commit by ranks", testCommitPart},
		{"commit by pages", testLanding},
		{"reserve", testReserve},
		{"reserve is all or nothing", testFull},
		{"abort", testAbort},
		{"generations", testGenerations},
		{"leases", testLeases},
		{"acquire prefix", testAcquirePrefix},
		{"read bounds", testReadBounds},
		{"tenants", testTenants},
		{"release owner", testReleaseOwner},
		{"invalidate", testInvalidate},
		{"verify and drop", testVerifyDrop},
		{"arguments", testArguments},
		{"close", testClose},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(t, open)
		})
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

func wantFieldError(t *testing.T, what string, err error, field string) {
	t.Helper()
	fe, ok := errors.AsType[*kvstore.FieldError](err)
	if !ok || fe.Field != field {
		t.Errorf("%s: got error %v, want a FieldError of %s", what, err, field)
	}
}

func wantState(t *testing.T, s Store, tenant kvstore.Tenant, k kvstore.BlockKey, want kvstore.BlockState) kvstore.SlotRef {
	t.Helper()
	got, ref := s.Lookup(tenant, k)
	if got != want {
		t.Errorf("lookup of %s: %v, want %v", k, got, want)
	}
	return ref
}

// wantSlots compares the slot gauges: free, reserved, committed, draining.
func wantSlots(t *testing.T, s Store, want [4]int) {
	t.Helper()
	st := s.Stats()
	got := [4]int{st.SlotsFree, st.SlotsReserved, st.SlotsCommitted, st.SlotsDraining}
	if got != want {
		t.Errorf("slots free, reserved, committed, draining: %v, want %v", got, want)
	}
	if got[0]+got[1]+got[2]+got[3] != st.SlotsTotal {
		t.Errorf("slots %v do not add up to %d", got, st.SlotsTotal)
	}
}

func mustReserve(t *testing.T, s Store, o kvstore.Owner, tenant kvstore.Tenant, keys []kvstore.BlockKey) []kvstore.Reservation {
	t.Helper()
	res, err := s.Reserve(o, tenant, keys)
	if err != nil {
		t.Fatalf("reserve: %v", err)
	}
	return res
}

func mustAcquire(t *testing.T, s Store, o kvstore.Owner, tenant kvstore.Tenant, keys []kvstore.BlockKey, ttl time.Duration) (kvstore.LeaseID, []kvstore.SlotRef) {
	t.Helper()
	id, refs, err := s.Acquire(o, tenant, keys, ttl)
	if err != nil {
		t.Fatalf("acquire: %v", err)
	}
	return id, refs
}

// wantBlock reads a leased block page by page and as a whole and compares bytes and sums.
func wantBlock(t *testing.T, s Store, id kvstore.LeaseID, ref kvstore.SlotRef, key kvstore.BlockKey) {
	t.Helper()
	l := s.Layout()
	n, size := l.PagesPerBlock(), l.PageBytes()
	whole, wholeSums := make([]byte, l.BlockBytes()), make([]uint32, n)
	if err := s.ReadPages(id, ref, 0, n, whole, wholeSums); err != nil {
		t.Errorf("read block: %v", err)
		return
	}
	for layer := range n {
		want := Page(l, key, layer)
		if !bytes.Equal(whole[int64(layer)*size:int64(layer+1)*size], want) {
			t.Errorf("page %d differs", layer)
		}
		if sum := kvstore.PageSum(s.Pin(), key, layer, want); wholeSums[layer] != sum {
			t.Errorf("page %d has sum %08x, want %08x", layer, wholeSums[layer], sum)
		}
		one := make([]byte, size)
		if err := s.ReadPages(id, ref, layer, 1, one, nil); err != nil || !bytes.Equal(one, want) {
			t.Errorf("page %d read alone: %v, equal %v", layer, err, bytes.Equal(one, want))
		}
	}
}

func testCommitPart(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 4)
	keys := Keys("a", 1)
	ref := mustReserve(t, s, "engine", "", keys)[0].Ref
	WriteAsEngine(t, s, keys[0], ref)
	const world = 70 // more than one word of the ranks' bitmap
	part := func(rank int) (bool, error) { return s.CommitPart("engine", ref, rank, world, kvstore.FidelityExact) }
	for rank := range world - 1 {
		for range 2 { // the same rank twice counts once
			if done, err := part(rank); done || err != nil {
				t.Fatalf("rank %d: %v, %v", rank, done, err)
			}
		}
	}
	wantState(t, s, "", keys[0], kvstore.BlockLanding)
	_, err := s.CommitPart("engine", ref, 0, 8, kvstore.FidelityExact)
	wantFieldError(t, "other world", err, "world")
	_, err = s.CommitPart("other", ref, 0, world, kvstore.FidelityExact)
	wantErr(t, "other owner", err, kvstore.ErrNotOwner)
	_, err = s.CommitPart("engine", ref, 0, world, kvstore.FidelityLossy)
	wantErr(t, "lossy", err, kvstore.ErrFidelityUnsupported)
	p := Page(s.Layout(), keys[0], 0)
	err = s.WritePage(ref, 0, p, kvstore.PageSum(s.Pin(), keys[0], 0, p))
	wantErr(t, "page into a slot filled by ranks", err, kvstore.ErrMixedFill)
	wantErr(t, "commit landed", s.CommitLanded("engine", ref), kvstore.ErrMixedFill)
	for range 2 {
		if done, err := part(world - 1); !done || err != nil {
			t.Fatalf("last rank: %v, %v", done, err)
		}
	}
	if got := wantState(t, s, "", keys[0], kvstore.BlockPresent); got != ref {
		t.Errorf("lookup: %v, want %v", got, ref)
	}
	id, refs := mustAcquire(t, s, "reader", "", keys, 0)
	wantBlock(t, s, id, refs[0], keys[0])
	if err := s.Release(id); err != nil {
		t.Error(err)
	}
}

func testLanding(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 4)
	l, keys := s.Layout(), Keys("a", 1)
	key := keys[0]
	ref := mustReserve(t, s, "m", "", keys)[0].Ref
	page := func(layer int) ([]byte, uint32) {
		p := Page(l, key, layer)
		return p, kvstore.PageSum(s.Pin(), key, layer, p)
	}
	p0, sum0 := page(0)
	err := s.WritePage(ref, 0, p0, sum0^1)
	wantErr(t, "wrong sum", err, kvstore.ErrChecksumMismatch)
	if pe, ok := errors.AsType[*kvstore.PageError](err); !ok || pe.Slot != ref.Slot || pe.Page != 0 || pe.Key != key {
		t.Errorf("wrong sum: %v is not a PageError of slot %d page 0", err, ref.Slot)
	}
	p1, sum1 := page(1)
	wantErr(t, "page and sum of another layer", s.WritePage(ref, 0, p1, sum1), kvstore.ErrChecksumMismatch)
	if n := s.Stats().SumFailures; n != 2 {
		t.Errorf("checksum failures: %d, want 2", n)
	}
	wantFieldError(t, "page past the end", s.WritePage(ref, l.Layers, p0, sum0), "page")
	wantFieldError(t, "negative page", s.WritePage(ref, -1, p0, sum0), "page")
	wantFieldError(t, "short page", s.WritePage(ref, 0, p0[1:], sum0), "page length")
	for _, layer := range []int{2, 0} {
		p, sum := page(layer)
		for range 2 { // landing twice is harmless
			if err := s.WritePage(ref, layer, p, sum); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := append([]byte{}, p0...)
	other[7] ^= 1
	wantErr(t, "other bytes for a landed page", s.WritePage(ref, 0, other, kvstore.PageSum(s.Pin(), key, 0, other)), kvstore.ErrPageConflict)
	if n, bits, err := s.PagesLanded(ref); n != 2 || err != nil || len(bits) != 1 || bits[0] != 0b101 {
		t.Errorf("pages landed: %d, %b, %v", n, bits, err)
	}
	wantErr(t, "commit of a part", s.CommitLanded("m", ref), kvstore.ErrIncomplete)
	_, err = s.CommitPart("m", ref, 0, 1, kvstore.FidelityExact)
	wantErr(t, "rank commit of a landing block", err, kvstore.ErrMixedFill)
	_, _, err = s.Acquire("r", "", keys, 0)
	wantErr(t, "acquire of a landing block", err, kvstore.ErrBlockNotFound)
	if err := s.WritePage(ref, 1, p1, sum1); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "commit by another owner", s.CommitLanded("x", ref), kvstore.ErrNotOwner)
	for range 2 {
		if err := s.CommitLanded("m", ref); err != nil {
			t.Fatal(err)
		}
	}
	wantErr(t, "page into a committed block", s.WritePage(ref, 1, p1, sum1), kvstore.ErrCommitted)
	wantErr(t, "abort of a committed block", s.Abort("m", ref), kvstore.ErrCommitted)
	id, refs := mustAcquire(t, s, "r", "", keys, 0)
	wantBlock(t, s, id, refs[0], key)
	if n, bits, err := s.PagesLanded(ref); n != 3 || err != nil || bits[0] != 0b111 {
		t.Errorf("pages landed of a committed block: %d, %b, %v", n, bits, err)
	}
}

func testReserve(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 8)
	keys := Keys("a", 4)
	refs := Publish(t, s, "e1", "", keys[:2])
	mine := mustReserve(t, s, "e1", "", keys[:3])
	for i, want := range []kvstore.ReservationState{kvstore.Present, kvstore.Present, kvstore.Reserved} {
		if mine[i].State != want || mine[i].Key != keys[i] || i < 2 && mine[i].Ref != refs[i] {
			t.Errorf("reservation %d: %+v, want %v", i, mine[i], want)
		}
	}
	again := mustReserve(t, s, "e1", "", keys[:3])
	if again[2] != mine[2] {
		t.Errorf("same owner again: %+v, want %+v", again[2], mine[2])
	}
	theirs := mustReserve(t, s, "e2", "", keys)
	if theirs[2].State != kvstore.Pending || theirs[2].Ref != mine[2].Ref || theirs[3].State != kvstore.Reserved {
		t.Errorf("other owner: %+v", theirs[2:])
	}
	wantSlots(t, s, [4]int{4, 2, 2, 0})
	if res := mustReserve(t, s, "e1", "", nil); len(res) != 0 {
		t.Errorf("no keys: %v", res)
	}
	_, err := s.Reserve("e1", "", []kvstore.BlockKey{keys[0], keys[1], keys[0]})
	if be, ok := errors.AsType[*kvstore.BlockError](err); !ok || be.Index != 2 {
		t.Errorf("repeated key: %v", err)
	}
}

func testFull(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 4)
	keys := Keys("a", 2)
	Publish(t, s, "e", "", keys)
	id, _ := mustAcquire(t, s, "r", "", keys[:1], -1)
	mustReserve(t, s, "e", "", Keys("b", 1))
	_, err := s.Reserve("e", "", Keys("c", 3))
	full, ok := errors.AsType[*kvstore.ArenaFullError](err)
	if !ok {
		t.Fatalf("got %v, want ArenaFullError", err)
	}
	if full.Needed != 3 || full.Free != 1 || full.Evictable != 1 || full.Leased != 1 || full.Reserved != 1 || full.Total != 4 {
		t.Errorf("error says %+v", full)
	}
	wantSlots(t, s, [4]int{1, 1, 2, 0})
	wantState(t, s, "", keys[1], kvstore.BlockPresent)
	_, err = s.Reserve("e", "", Keys("d", 5))
	if _, ok := errors.AsType[*kvstore.ArenaFullError](err); !ok {
		t.Errorf("more than the arena: %v", err)
	}
	mustReserve(t, s, "e", "", Keys("c", 2)) // takes the free slot and evicts the unleased block
	wantState(t, s, "", keys[0], kvstore.BlockPresent)
	wantState(t, s, "", keys[1], kvstore.BlockAbsent)
	if err := s.Release(id); err != nil {
		t.Error(err)
	}
	mustReserve(t, s, "e", "", Keys("d", 1))
	wantState(t, s, "", keys[0], kvstore.BlockAbsent)
	wantSlots(t, s, [4]int{0, 4, 0, 0})
	if n := s.Stats().Evictions; n != 2 {
		t.Errorf("evictions: %d, want 2", n)
	}
}

func testAbort(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 2)
	keys := Keys("a", 1)
	ref := mustReserve(t, s, "m", "", keys)[0].Ref
	wantErr(t, "other owner", s.Abort("x", ref), kvstore.ErrNotOwner)
	if err := s.Abort("m", ref); err != nil {
		t.Fatal(err)
	}
	wantState(t, s, "", keys[0], kvstore.BlockAbsent)
	wantErr(t, "second abort", s.Abort("m", ref), kvstore.ErrStaleGeneration)
	wantSlots(t, s, [4]int{2, 0, 0, 0})
	p := Page(s.Layout(), keys[0], 0)
	wantErr(t, "late page", s.WritePage(ref, 0, p, kvstore.PageSum(s.Pin(), keys[0], 0, p)), kvstore.ErrStaleGeneration)
}

func testGenerations(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 1)
	keys, others := Keys("a", 1), Keys("b", 1)
	old := Publish(t, s, "e", "", keys)[0]
	res := mustReserve(t, s, "e", "", others)[0] // evicts and reuses the only slot
	if res.Ref.Slot != old.Slot || res.Ref.Generation == old.Generation {
		t.Fatalf("reused %v after %v", res.Ref, old)
	}
	id, refs := func() (kvstore.LeaseID, []kvstore.SlotRef) {
		Land(t, s, "e", others[0], res.Ref)
		return mustAcquire(t, s, "r", "", others, 0)
	}()
	p := Page(s.Layout(), keys[0], 0)
	_, cerr := s.CommitPart("e", old, 0, 1, kvstore.FidelityExact)
	_, _, lerr := s.PagesLanded(old)
	for what, err := range map[string]error{
		"commit part": cerr, "pages landed": lerr,
		"write page": s.WritePage(old, 0, p, kvstore.PageSum(s.Pin(), keys[0], 0, p)),
		"landed":     s.CommitLanded("e", old),
		"abort":      s.Abort("e", old),
		"read":       s.ReadPages(id, old, 0, 1, p, nil),
		"verify":     s.VerifyBlock(old),
		"drop":       s.DropBlock(old),
	} {
		wantErr(t, what, err, kvstore.ErrStaleGeneration)
	}
	wantBlock(t, s, id, refs[0], others[0])
	bad := kvstore.SlotRef{Slot: 99, Generation: 1}
	wantFieldError(t, "no such slot", s.Abort("e", bad), "slot")
}

func testLeases(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 4)
	keys := Keys("a", 2)
	Publish(t, s, "e", "", keys)
	missing := []kvstore.BlockKey{keys[0], Keys("zz", 1)[0]}
	_, _, err := s.Acquire("r", "", missing, 0)
	wantErr(t, "missing block", err, kvstore.ErrBlockNotFound)
	if be, ok := errors.AsType[*kvstore.BlockError](err); !ok || be.Index != 1 || be.Key != missing[1] {
		t.Errorf("missing block: %v", err)
	}
	if n := s.Stats().Leases; n != 0 {
		t.Errorf("a failed acquire left %d leases", n)
	}
	id1, refs := mustAcquire(t, s, "r", "", keys, 0)
	id2, _ := mustAcquire(t, s, "r", "", append(keys[:1:1], keys[0]), -1) // a key may repeat
	if id1 == 0 || id2 == 0 || id1 == id2 {
		t.Errorf("lease ids %v, %v", id1, id2)
	}
	if st := s.Stats(); st.Leases != 2 || st.LeasedBlocks != 2 {
		t.Errorf("leases %d, blocks %d", st.Leases, st.LeasedBlocks)
	}
	if err := s.Release(id1); err != nil {
		t.Error(err)
	}
	wantErr(t, "second release", s.Release(id1), kvstore.ErrLeaseNotFound)
	wantErr(t, "renew after release", s.Renew(id1, 0), kvstore.ErrLeaseNotFound)
	err = s.ReadPages(id1, refs[0], 0, 1, make([]byte, s.Layout().PageBytes()), nil)
	wantErr(t, "read after release", err, kvstore.ErrLeaseNotFound)
	err = s.ReadPages(id2, refs[1], 0, 1, make([]byte, s.Layout().PageBytes()), nil)
	wantErr(t, "read of a block the lease does not hold", err, kvstore.ErrBlockNotFound)
	if got := s.ExpireLeases(time.Now().Add(1000 * time.Hour)); len(got) != 0 {
		t.Errorf("a lease without expiry expired: %v", got)
	}
	id3, _ := mustAcquire(t, s, "r", "", keys, time.Hour)
	if got := s.ExpireLeases(time.Now().Add(2 * time.Hour)); len(got) != 1 || got[0] != id3 {
		t.Errorf("expired: %v, want %v", got, id3)
	}
	wantErr(t, "renew after expiry", s.Renew(id3, 0), kvstore.ErrLeaseExpired)
	wantErr(t, "release after expiry", s.Release(id3), kvstore.ErrLeaseExpired)
	wantBlock(t, s, id2, refs[0], keys[0])
	if err := s.Release(id2); err != nil {
		t.Error(err)
	}
	for range 8 {
		mustAcquire(t, s, "r", "", keys, 0)
	}
	_, _, err = s.Acquire("r", "", keys, 0)
	wantErr(t, "ninth lease", err, kvstore.ErrLeaseLimit)
	if got := s.ReleaseOwner("r"); got.Leases != 8 || got.Blocks != 16 {
		t.Errorf("released %+v", got)
	}
	if st := s.Stats(); st.Leases != 0 || st.LeasedBlocks != 0 {
		t.Errorf("left: %+v", st)
	}
}

func testAcquirePrefix(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 8)
	keys := Keys("a", 5)
	Publish(t, s, "e", "", keys[:2])
	mustReserve(t, s, "e", "", keys[2:3]) // landing is not present
	Publish(t, s, "e", "", keys[3:4])     // beyond the gap
	id, refs, n, err := s.AcquirePrefix("r", "", keys, 0)
	if err != nil || n != 2 || len(refs) != 2 || id == 0 {
		t.Fatalf("prefix: %v, %v, %d, %v", id, refs, n, err)
	}
	for i, ref := range refs {
		wantBlock(t, s, id, ref, keys[i])
	}
	if id, refs, n, err := s.AcquirePrefix("r", "", keys[2:], 0); id != 0 || len(refs) != 0 || n != 0 || err != nil {
		t.Errorf("empty prefix: %v, %v, %d, %v", id, refs, n, err)
	}
	if n := s.Stats().Leases; n != 1 {
		t.Errorf("leases: %d, want 1", n)
	}
}

func testReadBounds(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 2)
	keys := Keys("a", 1)
	Publish(t, s, "e", "", keys)
	id, refs := mustAcquire(t, s, "r", "", keys, 0)
	page, pages := s.Layout().PageBytes(), s.Layout().PagesPerBlock()
	const maxInt = int(^uint(0) >> 1)
	for _, tt := range []struct {
		name     string
		first, n int
		dst      int64
		sums     []uint32
		field    string
	}{
		{"negative", -1, 1, page, nil, "pages"},
		{"none", 0, 0, 0, nil, "pages"},
		{"negative count", 0, -1, page, nil, "pages"},
		{"past the end", pages - 1, 2, 2 * page, nil, "pages"},
		{"overflow", maxInt, maxInt, page, nil, "pages"},
		{"short buffer", 0, 2, 2*page - 1, nil, "dst"},
		{"long buffer", 0, 1, 2 * page, nil, "dst"},
		{"short sums", 0, 2, 2 * page, make([]uint32, 1), "sums"},
	} {
		wantFieldError(t, tt.name, s.ReadPages(id, refs[0], tt.first, tt.n, make([]byte, tt.dst), tt.sums), tt.field)
	}
	wantErr(t, "unknown lease", s.ReadPages(id+1, refs[0], 0, 1, make([]byte, page), nil), kvstore.ErrLeaseNotFound)
}

func testTenants(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 4)
	keys := Keys("a", 1)
	r1 := Publish(t, s, "e", "one", keys)[0]
	wantState(t, s, "two", keys[0], kvstore.BlockAbsent)
	wantState(t, s, "", keys[0], kvstore.BlockAbsent)
	_, _, err := s.Acquire("r", "two", keys, 0)
	wantErr(t, "other tenant's block", err, kvstore.ErrBlockNotFound)
	if n := s.Invalidate("two", keys); n != 0 {
		t.Errorf("invalidated %d of another tenant", n)
	}
	r2 := Publish(t, s, "e", "two", keys)[0]
	if r1.Slot == r2.Slot {
		t.Error("two tenants share a slot")
	}
	if n := s.Invalidate("two", keys); n != 1 {
		t.Errorf("invalidated %d, want 1", n)
	}
	wantState(t, s, "one", keys[0], kvstore.BlockPresent)
}

func testReleaseOwner(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 8)
	keys := Keys("a", 4)
	Publish(t, s, "e", "", keys[:1])
	mustAcquire(t, s, "m", "", keys[:1], -1)
	res := mustReserve(t, s, "m", "", keys)
	other := mustReserve(t, s, "n", "", Keys("b", 1))
	l := s.Layout()
	for layer := range l.Layers { // block 1 is whole, block 2 has one page, block 3 none
		p := Page(l, keys[1], layer)
		if err := s.WritePage(res[1].Ref, layer, p, kvstore.PageSum(s.Pin(), keys[1], layer, p)); err != nil {
			t.Fatal(err)
		}
	}
	p := Page(l, keys[2], 0)
	if err := s.WritePage(res[2].Ref, 0, p, kvstore.PageSum(s.Pin(), keys[2], 0, p)); err != nil {
		t.Fatal(err)
	}
	want := kvstore.Released{Reservations: 2, Committed: 1, Leases: 1, Blocks: 1}
	if got := s.ReleaseOwner("m"); got != want {
		t.Errorf("released %+v, want %+v", got, want)
	}
	if got := s.ReleaseOwner("m"); got != (kvstore.Released{}) {
		t.Errorf("released again %+v", got)
	}
	wantState(t, s, "", keys[1], kvstore.BlockPresent)
	wantState(t, s, "", keys[2], kvstore.BlockAbsent)
	wantSlots(t, s, [4]int{5, 1, 2, 0})
	if err := s.Abort("n", other[0].Ref); err != nil {
		t.Errorf("the other owner's reservation is gone: %v", err)
	}
}

func testInvalidate(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 4)
	keys := Keys("a", 4)
	Publish(t, s, "e", "", keys[:2])
	id, refs := mustAcquire(t, s, "r", "", keys[:1], -1)
	landing := mustReserve(t, s, "m", "", keys[2:3])[0].Ref
	if n := s.Invalidate("", keys); n != 3 {
		t.Errorf("invalidated %d, want 3", n)
	}
	for _, k := range keys {
		wantState(t, s, "", k, kvstore.BlockAbsent)
	}
	wantSlots(t, s, [4]int{2, 1, 0, 1})
	wantBlock(t, s, id, refs[0], keys[0]) // a lease outlives the invalidation
	p := Page(s.Layout(), keys[2], 0)
	wantErr(t, "page of an invalidated block", s.WritePage(landing, 0, p, kvstore.PageSum(s.Pin(), keys[2], 0, p)), kvstore.ErrInvalidated)
	again := Publish(t, s, "e", "", keys[:1])[0]
	if again == refs[0] {
		t.Error("an invalidated block came back")
	}
	_, err := s.CommitPart("m", landing, 0, 1, kvstore.FidelityExact)
	wantErr(t, "commit of an invalidated block", err, kvstore.ErrInvalidated)
	wantSlots(t, s, [4]int{2, 0, 1, 1})
	if err := s.Release(id); err != nil {
		t.Error(err)
	}
	wantSlots(t, s, [4]int{3, 0, 1, 0})
}

func testVerifyDrop(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 4)
	keys := Keys("a", 2)
	refs := Publish(t, s, "e", "", keys)
	if err := s.VerifyBlock(refs[0]); err != nil {
		t.Errorf("verify: %v", err)
	}
	WriteAsEngine(t, s, keys[1], refs[0]) // somebody scribbles
	err := s.VerifyBlock(refs[0])
	wantErr(t, "verify", err, kvstore.ErrChecksumMismatch)
	if pe, ok := errors.AsType[*kvstore.PageError](err); !ok || pe.Page != 0 || pe.Key != keys[0] {
		t.Errorf("verify: %v", err)
	}
	if n := s.Stats().SumFailures; n != 1 {
		t.Errorf("checksum failures: %d, want 1", n)
	}
	if err := s.DropBlock(refs[0]); err != nil {
		t.Error(err)
	}
	wantErr(t, "second drop", s.DropBlock(refs[0]), kvstore.ErrStaleGeneration)
	wantState(t, s, "", keys[0], kvstore.BlockAbsent)
	wantState(t, s, "", keys[1], kvstore.BlockPresent)
	landing := mustReserve(t, s, "m", "", Keys("b", 1))[0].Ref
	wantErr(t, "drop of a landing block", s.DropBlock(landing), kvstore.ErrBlockNotFound)
	wantErr(t, "verify of a landing block", s.VerifyBlock(landing), kvstore.ErrBlockNotFound)
}

func testArguments(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 2)
	keys := Keys("a", 1)
	long := string(make([]byte, kvstore.MaxNameBytes+1))
	_, err := s.Reserve("", "", keys)
	wantFieldError(t, "no owner", err, "owner")
	_, err = s.Reserve(kvstore.Owner(long), "", keys)
	wantFieldError(t, "long owner", err, "owner")
	_, err = s.Reserve("e", kvstore.Tenant(long), keys)
	wantFieldError(t, "long tenant", err, "tenant")
	_, err = s.Reserve("e", "", []kvstore.BlockKey{"short"})
	wantFieldError(t, "short key", err, "key")
	_, _, err = s.Acquire("e", "", []kvstore.BlockKey{kvstore.BlockKey(long)}, 0)
	wantFieldError(t, "long key", err, "key")
	_, _, err = s.Acquire("e", "", nil, 0)
	wantFieldError(t, "no keys", err, "keys")
	ref := mustReserve(t, s, "e", "", keys)[0].Ref
	for _, tt := range []struct {
		rank, world int
		field       string
	}{{0, 0, "world"}, {0, kvstore.MaxRanks + 1, "world"}, {-1, 2, "rank"}, {2, 2, "rank"}} {
		_, err := s.CommitPart("e", ref, tt.rank, tt.world, kvstore.FidelityExact)
		wantFieldError(t, "rank", err, tt.field)
	}
	wantSlots(t, s, [4]int{1, 1, 0, 0})
}

func testClose(t *testing.T, open func(*testing.T, int) Store) {
	s := open(t, 2)
	keys := Keys("a", 1)
	refs := Publish(t, s, "e", "", keys)
	id, _ := mustAcquire(t, s, "e", "", keys, -1)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	wantState(t, s, "", keys[0], kvstore.BlockAbsent)
	p := Page(s.Layout(), keys[0], 0)
	_, rerr := s.Reserve("e", "", keys)
	_, _, aerr := s.Acquire("e", "", keys, 0)
	_, cerr := s.CommitPart("e", refs[0], 0, 1, kvstore.FidelityExact)
	for what, err := range map[string]error{
		"reserve": rerr, "acquire": aerr, "commit": cerr, "release": s.Release(id), "renew": s.Renew(id, 0),
		"read": s.ReadPages(id, refs[0], 0, 1, p, nil), "verify": s.VerifyBlock(refs[0]), "drop": s.DropBlock(refs[0]),
		"write": s.WritePage(refs[0], 0, p, kvstore.PageSum(s.Pin(), keys[0], 0, p)), "abort": s.Abort("e", refs[0]),
	} {
		wantErr(t, what, err, kvstore.ErrClosed)
	}
	if n := s.Invalidate("", keys); n != 0 {
		t.Errorf("invalidated %d after close", n)
	}
	if got := s.ReleaseOwner("e"); got != (kvstore.Released{}) {
		t.Errorf("released %+v after close", got)
	}
}
