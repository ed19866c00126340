package kvstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// Many goroutines publish, land, abort, read and invalidate the same few blocks; every byte read under a lease is the
// block's own, and nothing is left over.
func TestArenaConcurrently(t *testing.T) {
	t.Parallel()
	a := kvstoretest.OpenArena(t, 8, nil)
	l := a.Layout()
	chains := [][]kvstore.BlockKey{kvstoretest.Keys("a", 4), kvstoretest.Keys("b", 4), kvstoretest.Keys("c", 4)}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(g), 3))
			o := kvstore.Owner(fmt.Sprint("owner ", g))
			for range 300 {
				chain := pick(rng, chains)
				switch rng.IntN(8) {
				case 0:
					a.Invalidate("", chain[:1])
				case 1:
					a.ReleaseOwner(o)
				case 2, 3, 4:
					fill(t, a, rng, o, chain)
				default:
					readPrefix(t, a, l, o, chain)
				}
			}
			a.ReleaseOwner(o)
		})
	}
	wg.Wait()
	if err := a.CheckInvariants(); err != nil {
		t.Error(err)
	}
	if st := a.Stats(); st.SlotsFree+st.SlotsCommitted != st.SlotsTotal || st.Leases != 0 || st.SumFailures != 0 {
		t.Errorf("left: %+v", st)
	}
	for _, chain := range chains {
		readPrefix(t, a, l, "last", chain)
	}
}

// fill reserves a chain and lands its pages with two writers, then commits or aborts.
func fill(t *testing.T, a *kvstore.Arena, rng *rand.Rand, o kvstore.Owner, chain []kvstore.BlockKey) {
	res, err := a.Reserve(o, "", chain)
	if err != nil {
		if _, ok := errors.AsType[*kvstore.ArenaFullError](err); !ok {
			t.Errorf("reserve: %v", err)
		}
		return
	}
	for _, r := range res {
		if r.State != kvstore.Reserved {
			continue
		}
		abort := rng.IntN(4) == 0
		var writers sync.WaitGroup
		for range 2 { // the second is the hedge: the same pages again
			writers.Go(func() {
				for p := range a.Layout().Layers {
					page := kvstoretest.Page(a.Layout(), r.Key, p)
					err := a.WritePage(r.Ref, p, page, kvstore.PageSum(a.Pin(), r.Key, p, page))
					if err != nil && !errors.Is(err, kvstore.ErrStaleGeneration) && !errors.Is(err, kvstore.ErrInvalidated) {
						t.Errorf("write: %v", err)
					}
				}
			})
		}
		if abort {
			_ = a.Abort(o, r.Ref)
		}
		writers.Wait()
		if err := a.CommitLanded(o, r.Ref); err != nil && !errors.Is(err, kvstore.ErrStaleGeneration) && !errors.Is(err, kvstore.ErrInvalidated) {
			t.Errorf("commit: %v", err)
		}
	}
}

func readPrefix(t *testing.T, a *kvstore.Arena, l kvstore.Layout, o kvstore.Owner, chain []kvstore.BlockKey) {
	id, refs, n, err := a.AcquirePrefix(o, "", chain, -1)
	if err != nil {
		t.Errorf("acquire: %v", err)
	}
	dst, sums := make([]byte, l.BlockBytes()), make([]uint32, l.Layers)
	for i := range n {
		if err := a.ReadPages(id, refs[i], 0, l.Layers, dst, sums); err != nil {
			t.Errorf("read: %v", err)
		}
		if err := a.VerifyBlock(refs[i]); err != nil && !errors.Is(err, kvstore.ErrBlockNotFound) { // invalidated meanwhile
			t.Errorf("verify: %v", err)
		}
		for p := range l.Layers {
			page := dst[int64(p)*l.PageBytes() : int64(p+1)*l.PageBytes()]
			if kvstore.PageSum(a.Pin(), chain[i], p, page) != sums[p] {
				t.Errorf("page %d of block %d does not match its sum", p, i)
			}
		}
	}
	if n > 0 {
		if err := a.Release(id); err != nil {
			t.Errorf("release: %v", err)
		}
	}
}
