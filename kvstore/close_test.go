package kvstore_test

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// An arena that somebody else uses is not closed and loses nothing by the attempt; what the caller holds itself, and leases
// that have run out, do not keep it.
func TestCloseIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := kvstoretest.OpenArena(t, 4, nil)
		keys := kvstoretest.Keys("k", 3)
		kvstoretest.Publish(t, a, "me", "", keys[:1])
		busy := func(leases, filling int) {
			t.Helper()
			err := a.CloseIdle("me")
			if b, ok := errors.AsType[*kvstore.ArenaBusyError](err); !ok || b.Leases != leases || b.Filling != filling {
				t.Fatalf("got %v, want %d leases and %d blocks being filled", err, leases, filling)
			}
			if st, _ := a.Lookup("", keys[0]); st != kvstore.BlockPresent {
				t.Fatalf("the block is %v after a refusal", st)
			}
		}
		if _, _, err := a.Acquire("me", "", keys[:1], -1); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Reserve("me", "", keys[1:2]); err != nil {
			t.Fatal(err)
		}
		theirs, _, err := a.Acquire("they", "", keys[:1], time.Second)
		if err != nil {
			t.Fatal(err)
		}
		res, err := a.Reserve("they", "", keys[2:])
		if err != nil {
			t.Fatal(err)
		}
		busy(1, 1)
		if err := a.Renew(theirs, time.Second); err != nil {
			t.Errorf("their lease, after the refusal: %v", err)
		}
		if err := a.Abort("they", res[0].Ref); err != nil {
			t.Errorf("their reservation, after the refusal: %v", err)
		}
		busy(1, 0)
		time.Sleep(time.Second)
		path := a.Path()
		if err := a.CloseIdle("me"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the file: %v", err)
		}
		if err := a.CloseIdle(); err != nil {
			t.Errorf("closed twice: %v", err)
		}
	})
}
