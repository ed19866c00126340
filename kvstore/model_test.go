package kvstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// model is an arena written as plainly as possible: maps, scans, no slots. Which block is evicted is the arena's to
// choose; the model checks only that it was allowed to.
type model struct {
	t      *testing.T
	a      *kvstore.Arena
	slots  int
	blocks map[modelKey]*modelBlock // indexed: landing or present
	hidden []*modelBlock            // invalidated, and held by a lease or a reservation
	leases map[kvstore.LeaseID]*modelLease
}

type modelKey struct {
	tenant kvstore.Tenant
	key    kvstore.BlockKey
}

type modelBlock struct {
	key     modelKey
	ref     kvstore.SlotRef
	owner   kvstore.Owner
	present bool
	landed  map[int]bool
	ranks   map[int]bool
	leases  int
}

type modelLease struct {
	owner  kvstore.Owner
	blocks []*modelBlock
	expiry time.Time
}

var (
	modelOwners  = []kvstore.Owner{"engine", "migration", "peer"}
	modelTenants = []kvstore.Tenant{"", "t"}
)

const modelWorld = 2

func pick[T any](rng *rand.Rand, s []T) T { return s[rng.IntN(len(s))] }

func (m *model) reservations() []*modelBlock {
	var out []*modelBlock
	for _, b := range m.all() {
		if !b.present {
			out = append(out, b)
		}
	}
	return out
}

// all returns every block in a fixed order.
func (m *model) all() []*modelBlock {
	out := append(slices.Collect(maps.Values(m.blocks)), m.hidden...)
	slices.SortFunc(out, func(a, b *modelBlock) int { return int(a.ref.Slot) - int(b.ref.Slot) })
	return out
}

func (m *model) leaseIDs() []kvstore.LeaseID { return slices.Sorted(maps.Keys(m.leases)) }

func (m *model) unhide(b *modelBlock) {
	if i := slices.Index(m.hidden, b); i >= 0 && b.leases == 0 {
		m.hidden = slices.Delete(m.hidden, i, i+1)
	}
}

func (m *model) endLease(id kvstore.LeaseID) {
	for _, b := range m.leases[id].blocks {
		b.leases--
		m.unhide(b)
	}
	delete(m.leases, id)
}

func (m *model) expire() {
	for _, id := range m.leaseIDs() {
		if l := m.leases[id]; !l.expiry.IsZero() && !time.Now().Before(l.expiry) {
			m.endLease(id)
		}
	}
}

func (m *model) reserve(o kvstore.Owner, tenant kvstore.Tenant, keys []kvstore.BlockKey) {
	wanted := map[modelKey]bool{}
	need, evictable := 0, 0
	for _, k := range keys {
		wanted[modelKey{tenant, k}] = true
		if m.blocks[modelKey{tenant, k}] == nil {
			need++
		}
	}
	count := func() (n int) {
		for k, b := range m.blocks {
			if b.present && b.leases == 0 && !wanted[k] {
				n++
			}
		}
		return n
	}
	free := func() int { return m.slots - len(m.blocks) - len(m.hidden) }
	if evictable = count(); need > free()+evictable {
		m.expire() // the arena looks at the clock only when it must
		evictable = count()
	}
	res, err := m.a.Reserve(o, tenant, keys)
	if full, ok := errors.AsType[*kvstore.ArenaFullError](err); ok {
		if need <= free()+evictable {
			m.t.Fatalf("refused %d with %d free and %d evictable: %v", need, free(), evictable, full)
		}
		return
	}
	if err != nil || need > free()+evictable {
		m.t.Fatalf("reserve %d with %d free and %d evictable: %v", need, free(), evictable, err)
	}
	evicted := 0
	for k, b := range m.blocks {
		if s, _ := m.a.Lookup(k.tenant, k.key); s == kvstore.BlockAbsent {
			if !b.present || b.leases > 0 || wanted[k] {
				m.t.Fatalf("evicted block %+v", b)
			}
			evicted++
			delete(m.blocks, k)
		}
	}
	if over := need - (free() - evicted); evicted != max(0, over) {
		m.t.Fatalf("evicted %d blocks for %d with %d free", evicted, need, free()-evicted)
	}
	for i, r := range res {
		k := modelKey{tenant, keys[i]}
		b := m.blocks[k]
		want := kvstore.Pending
		switch {
		case b == nil:
			b = &modelBlock{key: k, ref: r.Ref, owner: o, landed: map[int]bool{}, ranks: map[int]bool{}}
			m.blocks[k] = b
			want = kvstore.Reserved
		case b.present:
			want = kvstore.Present
		case b.owner == o:
			want = kvstore.Reserved
		}
		if r.State != want || r.Ref != b.ref || r.Key != keys[i] {
			m.t.Fatalf("reservation %+v, want %v of %v", r, want, b.ref)
		}
	}
}

// hiddenBlock reports whether b was invalidated while it was reserved, and drops it when its owner learns of it.
func (m *model) hiddenBlock(b *modelBlock, drop bool) bool {
	i := slices.Index(m.hidden, b)
	if i >= 0 && drop {
		m.hidden = slices.Delete(m.hidden, i, i+1)
	}
	return i >= 0
}

func (m *model) writePage(b *modelBlock, page int) {
	p := kvstoretest.Page(m.a.Layout(), b.key.key, page)
	err := m.a.WritePage(b.ref, page, p, kvstore.PageSum(m.a.Pin(), b.key.key, page, p))
	switch {
	case m.hiddenBlock(b, false):
		wantIs(m.t, "write", err, kvstore.ErrInvalidated)
	case len(b.ranks) > 0:
		wantIs(m.t, "write", err, kvstore.ErrMixedFill)
	default:
		wantIs(m.t, "write", err, nil)
		b.landed[page] = true
	}
}

func (m *model) commitLanded(b *modelBlock) {
	err := m.a.CommitLanded(b.owner, b.ref)
	switch {
	case len(b.ranks) > 0:
		wantIs(m.t, "commit landed", err, kvstore.ErrMixedFill)
	case m.hiddenBlock(b, true):
		wantIs(m.t, "commit landed", err, kvstore.ErrInvalidated)
	case len(b.landed) < m.a.Layout().Layers:
		wantIs(m.t, "commit landed", err, kvstore.ErrIncomplete)
	default:
		wantIs(m.t, "commit landed", err, nil)
		b.present = true
	}
}

func (m *model) commitPart(b *modelBlock, rank int) {
	if len(b.ranks) == 0 && len(b.landed) == 0 && !m.hiddenBlock(b, false) {
		kvstoretest.WriteAsEngine(m.t, m.a, b.key.key, b.ref)
	}
	done, err := m.a.CommitPart(b.owner, b.ref, rank, modelWorld, kvstore.FidelityExact)
	switch {
	case len(b.landed) > 0:
		wantIs(m.t, "commit part", err, kvstore.ErrMixedFill)
	case m.hiddenBlock(b, true):
		wantIs(m.t, "commit part", err, kvstore.ErrInvalidated)
	default:
		wantIs(m.t, "commit part", err, nil)
		b.ranks[rank] = true
		if b.present = len(b.ranks) == modelWorld; done != b.present {
			m.t.Fatalf("commit part says %v with %d of %d ranks", done, len(b.ranks), modelWorld)
		}
	}
}

func (m *model) acquire(o kvstore.Owner, tenant kvstore.Tenant, keys []kvstore.BlockKey, ttl time.Duration, prefix bool) {
	var want []*modelBlock
	for _, k := range keys {
		b := m.blocks[modelKey{tenant, k}]
		if b == nil || !b.present {
			break
		}
		want = append(want, b)
	}
	var (
		id   kvstore.LeaseID
		refs []kvstore.SlotRef
		err  error
	)
	if prefix {
		id, refs, _, err = m.a.AcquirePrefix(o, tenant, keys, ttl)
		wantIs(m.t, "acquire prefix", err, nil)
	} else if id, refs, err = m.a.Acquire(o, tenant, keys, ttl); len(want) < len(keys) {
		be, ok := errors.AsType[*kvstore.BlockError](err)
		if !ok || be.Index != len(want) || !errors.Is(err, kvstore.ErrBlockNotFound) {
			m.t.Fatalf("acquire: %v, want block %d not found", err, len(want))
		}
		return
	} else {
		wantIs(m.t, "acquire", err, nil)
	}
	if len(refs) != len(want) || (id == 0) != (len(want) == 0) {
		m.t.Fatalf("acquired %d blocks, lease %v, want %d", len(refs), id, len(want))
	}
	if id == 0 {
		return
	}
	l := &modelLease{owner: o, blocks: want}
	if ttl > 0 {
		l.expiry = time.Now().Add(ttl)
	}
	for i, b := range want {
		b.leases++
		if refs[i] != b.ref {
			m.t.Fatalf("acquired %v, want %v", refs[i], b.ref)
		}
	}
	m.leases[id] = l
}

func (m *model) read(rng *rand.Rand, id kvstore.LeaseID) {
	l := m.leases[id]
	b := pick(rng, l.blocks)
	layout := m.a.Layout()
	first := rng.IntN(layout.Layers)
	n := 1 + rng.IntN(layout.Layers-first)
	dst := make([]byte, int64(n)*layout.PageBytes())
	err := m.a.ReadPages(id, b.ref, first, n, dst, nil)
	if !l.expiry.IsZero() && !time.Now().Before(l.expiry) {
		wantIs(m.t, "read", err, kvstore.ErrLeaseExpired)
		m.endLease(id)
		return
	}
	wantIs(m.t, "read", err, nil)
	var want []byte
	for p := first; p < first+n; p++ {
		want = append(want, kvstoretest.Page(layout, b.key.key, p)...)
	}
	if !bytes.Equal(dst, want) {
		m.t.Fatalf("read other bytes from %v", b.ref)
	}
}

func (m *model) release(id kvstore.LeaseID) {
	expired := !m.leases[id].expiry.IsZero() && !time.Now().Before(m.leases[id].expiry)
	err := m.a.Release(id)
	if expired {
		wantIs(m.t, "release", err, kvstore.ErrLeaseExpired)
	} else {
		wantIs(m.t, "release", err, nil)
	}
	m.endLease(id)
}

func (m *model) invalidate(tenant kvstore.Tenant, keys []kvstore.BlockKey) {
	want := 0
	for _, k := range keys {
		b := m.blocks[modelKey{tenant, k}]
		if b == nil {
			continue
		}
		want++
		delete(m.blocks, b.key)
		if !b.present || b.leases > 0 {
			m.hidden = append(m.hidden, b)
		}
	}
	if got := m.a.Invalidate(tenant, keys); got != want {
		m.t.Fatalf("invalidated %d, want %d", got, want)
	}
}

func (m *model) releaseOwner(o kvstore.Owner) {
	var want kvstore.Released
	for _, id := range m.leaseIDs() {
		if l := m.leases[id]; l.owner == o {
			want.Leases++
			want.Blocks += len(l.blocks)
			m.endLease(id)
		}
	}
	for _, b := range m.reservations() {
		switch {
		case b.owner != o:
		case m.hiddenBlock(b, true):
			want.Reservations++
		case len(b.landed) == m.a.Layout().Layers:
			b.present = true
			want.Committed++
		default:
			want.Reservations++
			delete(m.blocks, b.key)
		}
	}
	if got := m.a.ReleaseOwner(o); got != want {
		m.t.Fatalf("released %+v, want %+v", got, want)
	}
}

// check compares the gauges and every block's state.
func (m *model) check() {
	var reserved, committed, draining int
	leased := 0
	for _, b := range m.all() {
		switch {
		case !b.present:
			reserved++
		case slices.Contains(m.hidden, b):
			draining++
		default:
			committed++
		}
		if b.leases > 0 {
			leased++
		}
	}
	st := m.a.Stats()
	want := [7]int{m.slots - reserved - committed - draining, reserved, committed, draining, len(m.leases), leased, m.slots}
	got := [7]int{st.SlotsFree, st.SlotsReserved, st.SlotsCommitted, st.SlotsDraining, st.Leases, st.LeasedBlocks, st.SlotsTotal}
	if got != want {
		m.t.Fatalf("free, reserved, committed, draining, leases, leased, total: %v, want %v", got, want)
	}
	for k, b := range m.blocks {
		want := kvstore.BlockLanding
		if b.present {
			want = kvstore.BlockPresent
		}
		if s, ref := m.a.Lookup(k.tenant, k.key); s != want || ref != b.ref {
			m.t.Fatalf("lookup: %v %v, want %v %v", s, ref, want, b.ref)
		}
	}
	if err := m.a.CheckInvariants(); err != nil {
		m.t.Fatal(err)
	}
}

func wantIs(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("%s: %v, want %v", what, err, want)
	}
}

func (m *model) step(rng *rand.Rand, chains [][]kvstore.BlockKey) {
	chain, o, tenant := pick(rng, chains), pick(rng, modelOwners), pick(rng, modelTenants)
	first := rng.IntN(len(chain))
	run := chain[first : first+1+rng.IntN(len(chain)-first)]
	reserved, leases := m.reservations(), m.leaseIDs()
	switch op := rng.IntN(20); {
	case op < 4:
		m.reserve(o, tenant, run)
	case op < 9 && len(reserved) > 0:
		m.writePage(pick(rng, reserved), rng.IntN(m.a.Layout().Layers))
	case op < 11 && len(reserved) > 0:
		m.commitLanded(pick(rng, reserved))
	case op < 13 && len(reserved) > 0:
		m.commitPart(pick(rng, reserved), rng.IntN(modelWorld))
	case op < 14 && len(reserved) > 0:
		b := pick(rng, reserved)
		wantIs(m.t, "abort", m.a.Abort(b.owner, b.ref), nil)
		if !m.hiddenBlock(b, true) {
			delete(m.blocks, b.key)
		}
	case op < 16:
		m.acquire(o, tenant, run, []time.Duration{-1, time.Second, time.Minute}[rng.IntN(3)], rng.IntN(2) == 0)
	case op < 17 && len(leases) > 0:
		m.read(rng, pick(rng, leases))
	case op < 18 && len(leases) > 0:
		m.release(pick(rng, leases))
	case op < 19:
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
		m.a.ExpireLeases(time.Now())
		m.expire()
	case rng.IntN(3) == 0:
		m.releaseOwner(o)
	default:
		m.invalidate(tenant, run[:1])
	}
}

// Random operations against the model: the same answers, the same gauges, the right bytes; and when nobody holds
// anything, every slot can be had.
func TestArenaAgainstModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 7))
				a := kvstoretest.OpenArena(t, 9, nil)
				m := &model{t: t, a: a, slots: 9, blocks: map[modelKey]*modelBlock{}, leases: map[kvstore.LeaseID]*modelLease{}}
				chains := [][]kvstore.BlockKey{kvstoretest.Keys("a", 5), kvstoretest.Keys("b", 5), kvstoretest.Keys("c", 11)}
				for range 1500 {
					m.step(rng, chains)
					m.check()
				}
				for _, o := range modelOwners {
					m.releaseOwner(o)
				}
				m.check()
				if _, err := a.Reserve("last", "", kvstoretest.Keys("all", 9)); err != nil {
					t.Errorf("nobody holds anything: %v", err)
				}
			})
		})
	}
}
