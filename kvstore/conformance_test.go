package kvstore_test

import (
	"testing"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	kvstoretest.Run(t, func(t *testing.T, slots int) kvstoretest.Store {
		a := kvstoretest.OpenArena(t, slots, func(c *kvstore.ArenaConfig) { c.MaxLeases = 8 })
		t.Cleanup(func() {
			if err := a.CheckInvariants(); err != nil {
				t.Error(err)
			}
		})
		return a
	})
}
