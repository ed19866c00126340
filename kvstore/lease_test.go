package kvstore_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// at sleeps, in virtual time, until d after start.
func at(start time.Time, d time.Duration) { time.Sleep(d - time.Since(start)) }

func TestLeaseExpiryIsExact(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := kvstoretest.OpenArena(t, 4, nil)
		keys := kvstoretest.Keys("a", 1)
		kvstoretest.Publish(t, a, "e", "", keys)
		page := make([]byte, a.Layout().PageBytes())
		start := time.Now()
		acquire := func(ttl time.Duration) (kvstore.LeaseID, func() error) {
			id, refs, err := a.Acquire("r", "", keys, ttl)
			if err != nil {
				t.Fatal(err)
			}
			return id, func() error { return a.ReadPages(id, refs[0], 0, 1, page, nil) }
		}
		_, readDefault := acquire(0)
		short, readShort := acquire(10 * time.Second)
		renewed, readRenewed := acquire(10 * time.Second)
		_, readForever := acquire(-1)

		at(start, 10*time.Second-1)
		if err := readShort(); err != nil {
			t.Errorf("one nanosecond before: %v", err)
		}
		if err := a.Renew(renewed, 15*time.Second); err != nil {
			t.Error(err)
		}
		at(start, 10*time.Second)
		if err := readShort(); !errors.Is(err, kvstore.ErrLeaseExpired) {
			t.Errorf("at its expiry: %v", err)
		}
		if err := a.Renew(short, 0); !errors.Is(err, kvstore.ErrLeaseExpired) {
			t.Errorf("renew after expiry: %v", err)
		}
		if got := a.ExpireLeases(time.Now()); len(got) != 0 {
			t.Errorf("swept %v, although the read had noticed", got)
		}
		at(start, 25*time.Second-2)
		if err := readRenewed(); err != nil {
			t.Errorf("renewed: %v", err)
		}
		at(start, 25*time.Second-1)
		if got := a.ExpireLeases(time.Now()); !slices.Equal(got, []kvstore.LeaseID{renewed}) {
			t.Errorf("swept %v, want %v", got, renewed)
		}
		at(start, kvstore.DefaultLeaseTTL-1)
		if err := readDefault(); err != nil {
			t.Errorf("default, one nanosecond before: %v", err)
		}
		at(start, kvstore.DefaultLeaseTTL)
		if err := readDefault(); !errors.Is(err, kvstore.ErrLeaseExpired) {
			t.Errorf("default at its expiry: %v", err)
		}
		at(start, 1e6*time.Second)
		if err := readForever(); err != nil {
			t.Errorf("without expiry: %v", err)
		}
		if st := a.Stats(); st.Leases != 1 || st.LeasedBlocks != 1 {
			t.Errorf("left: %+v", st)
		}
	})
}

// A lease that ran out and was not swept yet stands in nobody's way.
func TestExpiredLeasesYield(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := kvstoretest.OpenArena(t, 1, func(c *kvstore.ArenaConfig) { c.MaxLeases = 1 })
		keys := kvstoretest.Keys("a", 1)
		kvstoretest.Publish(t, a, "e", "", keys)
		if _, _, err := a.Acquire("r", "", keys, time.Second); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Reserve("e", "", kvstoretest.Keys("b", 1)); err == nil {
			t.Error("evicted a leased block")
		}
		if _, _, err := a.Acquire("r", "", keys, time.Second); !errors.Is(err, kvstore.ErrLeaseLimit) {
			t.Errorf("second lease: %v", err)
		}
		time.Sleep(time.Second)
		if _, _, err := a.Acquire("r", "", keys, time.Second); err != nil {
			t.Errorf("after expiry: %v", err)
		}
		time.Sleep(time.Second)
		if _, err := a.Reserve("e", "", kvstoretest.Keys("b", 1)); err != nil {
			t.Errorf("reserve after expiry: %v", err)
		}
	})
}

// Expired ids are remembered for a while, not for ever: then they are as good as unknown.
func TestExpiredLeasesAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := kvstoretest.OpenArena(t, 1, nil)
		keys := kvstoretest.Keys("a", 1)
		kvstoretest.Publish(t, a, "e", "", keys)
		var ids []kvstore.LeaseID
		for range 4097 {
			id, _, err := a.Acquire("r", "", keys, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
			time.Sleep(time.Second)
			a.ExpireLeases(time.Now())
		}
		if err := a.Release(ids[0]); !errors.Is(err, kvstore.ErrLeaseNotFound) {
			t.Errorf("the oldest: %v", err)
		}
		if err := a.Release(ids[1]); !errors.Is(err, kvstore.ErrLeaseExpired) {
			t.Errorf("the second oldest: %v", err)
		}
	})
}
