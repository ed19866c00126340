package kvstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// use acquires and releases blocks: a second use, for the policy.
func use(t *testing.T, a *kvstore.Arena, tenant kvstore.Tenant, keys []kvstore.BlockKey) {
	t.Helper()
	id, _, err := a.Acquire("reader", tenant, keys, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Release(id); err != nil {
		t.Fatal(err)
	}
}

// present returns the indices of keys that are committed.
func present(a *kvstore.Arena, tenant kvstore.Tenant, keys []kvstore.BlockKey) []int {
	out := []int{}
	for i, k := range keys {
		if s, _ := a.Lookup(tenant, k); s == kvstore.BlockPresent {
			out = append(out, i)
		}
	}
	return out
}

func push(t *testing.T, a *kvstore.Arena, seed string) {
	t.Helper()
	kvstoretest.Publish(t, a, "e", "", kvstoretest.Keys(seed, 1))
}

func wantPresent(t *testing.T, what string, a *kvstore.Arena, tenant kvstore.Tenant, keys []kvstore.BlockKey, want ...int) {
	t.Helper()
	if want == nil {
		want = []int{}
	}
	if diff := cmp.Diff(want, present(a, tenant, keys)); diff != "" {
		t.Errorf("%s: present (-want +got):\n%s", what, diff)
	}
}

func TestEvictTailBeforeHead(t *testing.T) {
	t.Parallel()
	keys := kvstoretest.Keys("a", 4)
	for _, tt := range []struct {
		name    string
		publish func(*testing.T, *kvstore.Arena)
	}{
		{"one reservation", func(t *testing.T, a *kvstore.Arena) { kvstoretest.Publish(t, a, "e", "", keys) }},
		{"as the sequence grows", func(t *testing.T, a *kvstore.Arena) {
			for n := range keys {
				kvstoretest.Publish(t, a, "e", "", keys[:n+1])
			}
		}},
		{"after a parent", func(t *testing.T, a *kvstore.Arena) {
			for n, k := range keys {
				parent := kvstore.BlockKey("")
				if n > 0 {
					parent = keys[n-1]
				}
				res, err := a.ReserveAfter("e", "", parent, []kvstore.BlockKey{k})
				if err != nil {
					t.Fatal(err)
				}
				kvstoretest.Land(t, a, "e", k, res[0].Ref)
			}
		}},
		{"tail landed first", func(t *testing.T, a *kvstore.Arena) {
			res, err := a.Reserve("e", "", keys)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range slices.Backward(res) {
				kvstoretest.Land(t, a, "e", r.Key, r.Ref)
			}
		}},
		{"tail used alone", func(t *testing.T, a *kvstore.Arena) {
			kvstoretest.Publish(t, a, "e", "", keys)
			use(t, a, "", keys[3:])
		}},
		{"head used alone", func(t *testing.T, a *kvstore.Arena) {
			kvstoretest.Publish(t, a, "e", "", keys)
			use(t, a, "", keys[:1])
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := kvstoretest.OpenArena(t, 4, nil)
			tt.publish(t, a)
			for n := 3; n >= 0; n-- {
				// Reservations do not become candidates, so each evicts one more of the sequence.
				if _, err := a.Reserve("other", "", kvstoretest.Keys(fmt.Sprint("x", n), 1)); err != nil {
					t.Fatal(err)
				}
				want := []int{0, 1, 2, 3}[:n]
				wantPresent(t, fmt.Sprintf("%d evicted", 4-n), a, "", keys, want...)
			}
			if err := a.CheckInvariants(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEvictSharedPrefixLast(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 5, nil)
	shared := kvstoretest.Keys("system prompt", 1)
	one, two := kvstoretest.Keys("one", 2), kvstoretest.Keys("two", 2)
	kvstoretest.Publish(t, a, "e", "", append(shared[:1:1], one...))
	kvstoretest.Publish(t, a, "e", "", append(shared[:1:1], two...))
	for n, want := range []struct{ shared, one, two []int }{
		{[]int{0}, []int{0}, []int{0, 1}},
		{[]int{0}, nil, []int{0, 1}},
		{[]int{0}, nil, []int{0}},
		{[]int{0}, nil, nil},
		{nil, nil, nil},
	} {
		if _, err := a.Reserve("other", "", kvstoretest.Keys(fmt.Sprint("x", n), 1)); err != nil {
			t.Fatal(err)
		}
		what := fmt.Sprintf("%d evicted", n+1)
		wantPresent(t, what, a, "", shared, want.shared...)
		wantPresent(t, what, a, "", one, want.one...)
		wantPresent(t, what, a, "", two, want.two...)
	}
}

func TestEvictLeastRecentlyUsed(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 4, nil)
	keys := make([]kvstore.BlockKey, 4)
	for i := range keys {
		keys[i] = kvstoretest.Keys(fmt.Sprint(i), 1)[0]
		kvstoretest.Publish(t, a, "e", "", keys[i:i+1])
	}
	for _, i := range []int{2, 0} {
		use(t, a, "", keys[i:i+1])
	}
	for _, want := range [][]int{{0, 2, 3}, {0, 2}, {0}, {}} {
		if _, err := a.Reserve("other", "", kvstoretest.Keys(fmt.Sprint("x", len(want)), 1)); err != nil {
			t.Fatal(err)
		}
		wantPresent(t, "used 2, then 0", a, "", keys, want...)
	}
}

// A scan of blocks used once does not push out blocks used twice.
func TestEvictResistsScan(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 10, nil)
	hot := kvstoretest.Keys("hot", 6)
	kvstoretest.Publish(t, a, "e", "", hot)
	use(t, a, "", hot)
	for i := range 50 {
		push(t, a, fmt.Sprint("scan", i))
	}
	wantPresent(t, "after the scan", a, "", hot, 0, 1, 2, 3, 4, 5)
	// Protection is not for ever: the segment holds 8 of 10 slots, so new twice-used blocks push out the old ones.
	for i := range 8 {
		k := kvstoretest.Keys(fmt.Sprint("new", i), 1)
		kvstoretest.Publish(t, a, "e", "", k)
		use(t, a, "", k)
	}
	for i := range 2 {
		push(t, a, fmt.Sprint("more", i))
	}
	wantPresent(t, "after newer uses", a, "", hot)
	if err := a.CheckInvariants(); err != nil {
		t.Error(err)
	}
}

// Where only blocks with successors are left, the one nearest the tail goes first.
func TestEvictBeforeLeasedTail(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 4, nil)
	keys := kvstoretest.Keys("a", 4)
	kvstoretest.Publish(t, a, "e", "", keys)
	use(t, a, "", keys)
	if _, _, err := a.Acquire("r", "", keys[3:], -1); err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]int{{0, 1, 3}, {0, 3}, {3}} {
		if _, err := a.Reserve("other", "", kvstoretest.Keys(fmt.Sprint("x", len(want)), 1)); err != nil {
			t.Fatal(err)
		}
		wantPresent(t, "tail leased", a, "", keys, want...)
	}
}

// A lease keeps its blocks and nothing else, and a reservation keeps the blocks it builds on.
func TestEvictNeverLeasedNorRequested(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 4, nil)
	keys := kvstoretest.Keys("a", 4)
	kvstoretest.Publish(t, a, "e", "", keys)
	id, _, err := a.Acquire("r", "", keys[3:], -1)
	if err != nil {
		t.Fatal(err)
	}
	more := kvstoretest.Keys("b", 1)
	if _, err := a.Reserve("e", "", append(keys[:2:2], more...)); err != nil {
		t.Fatal(err) // only block 2 may go
	}
	wantPresent(t, "block 3 leased, 0 and 1 requested", a, "", keys, 0, 1, 3)
	_, err = a.Reserve("e", "", append(keys[:2:2], kvstoretest.Keys("c", 1)...))
	if full, ok := errors.AsType[*kvstore.ArenaFullError](err); !ok || full.Evictable != 0 {
		t.Errorf("got %v", err)
	}
	wantPresent(t, "after the refusal", a, "", keys, 0, 1, 3)
	if err := a.Release(id); err != nil {
		t.Error(err)
	}
	if _, err := a.Reserve("e", "", append(keys[:2:2], kvstoretest.Keys("c", 1)...)); err != nil {
		t.Error(err)
	}
	wantPresent(t, "released", a, "", keys, 0, 1)
}

func TestTenantQuota(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 8, func(c *kvstore.ArenaConfig) {
		c.TenantSlots = func(t kvstore.Tenant) int { return map[kvstore.Tenant]int{"small": 3}[t] }
	})
	big, small := kvstoretest.Keys("big", 5), kvstoretest.Keys("small", 6)
	kvstoretest.Publish(t, a, "e", "big", big)
	kvstoretest.Publish(t, a, "e", "small", small[:3])
	kvstoretest.Publish(t, a, "e", "small", kvstoretest.Keys("small2", 1))
	wantPresent(t, "the tenant evicts its own tail", a, "small", small, 0, 1)
	wantPresent(t, "and nobody else's", a, "big", big, 0, 1, 2, 3, 4)
	use(t, a, "small", small[:2])
	id, _, err := a.Acquire("r", "small", small[:2], -1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.Reserve("e", "small", kvstoretest.Keys("small3", 2))
	full, ok := errors.AsType[*kvstore.ArenaFullError](err)
	if !ok || full.Quota != 3 || full.TenantUsed != 3 || full.Evictable != 1 || full.Needed != 2 || full.Tenant != "small" {
		t.Errorf("got %v", err)
	}
	if _, err := a.Reserve("e", "small", kvstoretest.Keys("small3", 4)); err == nil {
		t.Error("more than the quota")
	}
	wantPresent(t, "after the refusals", a, "small", small, 0, 1)
	if err := a.Release(id); err != nil {
		t.Error(err)
	}
	if _, err := a.Reserve("e", "small", kvstoretest.Keys("small3", 3)); err != nil {
		t.Error(err)
	}
	wantPresent(t, "others untouched", a, "big", big, 0, 1, 2, 3, 4)
	if err := a.CheckInvariants(); err != nil {
		t.Error(err)
	}
}

// The heaps choose what sorting all candidates chooses, over a random history of chains, uses and evictions.
func TestEvictionOrderAgainstSorting(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	a := kvstoretest.OpenArena(t, 24, nil)
	chains := make([][]kvstore.BlockKey, 8)
	for i := range chains {
		chains[i] = kvstoretest.Keys(fmt.Sprint(i), 8)
		if i%2 == 1 { // odd chains branch off their neighbour
			copy(chains[i], chains[i-1][:4])
		}
	}
	for step := range 3000 {
		chain := chains[rng.IntN(len(chains))]
		if rng.IntN(2) == 0 {
			id, _, n, err := a.AcquirePrefix("r", "", chain, -1)
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				_ = a.Release(id)
			}
			continue
		}
		// Extend the chain by one block; if that evicts one, it must be the first by sorting of those not requested.
		n := len(present(a, "", chain))
		if n == len(chain) {
			continue
		}
		request := []kvstore.BlockKey{}
		for _, k := range chain {
			request = append(request, k)
			if s, _ := a.Lookup("", k); s == kvstore.BlockAbsent {
				break
			}
		}
		var want kvstore.BlockKey
		for _, k := range a.EvictionOrder() {
			if !slices.Contains(request, k) {
				want = k
				break
			}
		}
		before := a.Stats()
		kvstoretest.Publish(t, a, "e", "", request)
		if a.Stats().Evictions > before.Evictions {
			if s, _ := a.Lookup("", want); s != kvstore.BlockAbsent {
				t.Fatalf("step %d: evicted another block than the one first by sorting", step)
			}
		} else if before.SlotsFree == 0 {
			t.Fatalf("step %d: nothing evicted", step)
		}
		if err := a.CheckInvariants(); err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
}
