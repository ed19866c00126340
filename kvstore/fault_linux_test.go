package kvstore_test

import (
	"errors"
	"os"
	"runtime/debug"
	"testing"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// The file is truncated under the mapping, as a rogue engine would: every way to touch the memory must say
// ErrArenaFault, leave the process alive and the arena broken, and still give back what is held.
func TestTruncatedFile(t *testing.T) {
	t.Parallel()
	keys := kvstoretest.Keys("a", 3)
	type fixture struct {
		a       *kvstore.Arena
		lease   kvstore.LeaseID
		present kvstore.SlotRef // leased
		landing kvstore.SlotRef
		ranks   kvstore.SlotRef // all but the last rank committed
	}
	for _, tt := range []struct {
		name  string
		touch func(*fixture) error
	}{
		{"read", func(f *fixture) error {
			return f.a.ReadPages(f.lease, f.present, 0, 1, make([]byte, f.a.Layout().PageBytes()), nil)
		}},
		{"write", func(f *fixture) error {
			p := kvstoretest.Page(f.a.Layout(), keys[1], 0)
			return f.a.WritePage(f.landing, 0, p, kvstore.PageSum(f.a.Pin(), keys[1], 0, p))
		}},
		{"seal", func(f *fixture) error {
			_, err := f.a.CommitPart("e", f.ranks, 1, 2, kvstore.FidelityExact)
			return err
		}},
		{"touch", func(f *fixture) error { return f.a.Touch(f.present) }},
		{"verify", func(f *fixture) error { return f.a.VerifyBlock(f.present) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := &fixture{a: kvstoretest.OpenArena(t, 4, nil)}
			a := f.a
			f.present = kvstoretest.Publish(t, a, "e", "", keys[:1])[0]
			var err error
			if f.lease, _, err = a.Acquire("e", "", keys[:1], -1); err != nil {
				t.Fatal(err)
			}
			res, err := a.Reserve("e", "", keys[1:])
			if err != nil {
				t.Fatal(err)
			}
			f.landing, f.ranks = res[0].Ref, res[1].Ref
			if _, err := a.CommitPart("e", f.ranks, 0, 2, kvstore.FidelityExact); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(a.Path(), 0); err != nil {
				t.Fatal(err)
			}
			if err := tt.touch(f); !errors.Is(err, kvstore.ErrArenaFault) {
				t.Fatalf("got %v, want ErrArenaFault", err)
			}
			if debug.SetPanicOnFault(false) {
				t.Error("the goroutine's setting was not restored")
			}
			if !a.Stats().Broken {
				t.Error("the arena is not marked broken")
			}
			if _, err := a.Reserve("e", "", keys); !errors.Is(err, kvstore.ErrArenaFault) {
				t.Errorf("reserve on a broken arena: %v", err)
			}
			if _, _, err := a.Acquire("e", "", keys, 0); !errors.Is(err, kvstore.ErrArenaFault) {
				t.Errorf("acquire on a broken arena: %v", err)
			}
			if state, _ := a.Lookup("", keys[0]); state != kvstore.BlockAbsent {
				t.Errorf("lookup on a broken arena: %v", state)
			}
			if got, want := a.ReleaseOwner("e"), (kvstore.Released{Reservations: 2, Leases: 1, Blocks: 1}); got != want {
				t.Errorf("released %+v, want %+v", got, want)
			}
			if st := a.Stats(); st.SlotsFree != 3 || st.SlotsCommitted != 1 || st.Leases != 0 {
				t.Errorf("left: %+v", st)
			}
			if err := a.CheckInvariants(); err != nil {
				t.Error(err)
			}
		})
	}
}
