package kvstore_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/kvstore"
)

// roomTest is a store that has room for a few records, and what is published to it.
type roomTest struct {
	t *testing.T
	*kvstore.Sessions
}

func newRoomTest(t *testing.T, path string, bytes int64) roomTest {
	s := openSessions(t, path, "a")
	s.SetMaxBytes(bytes)
	return roomTest{t, s}
}

func (r roomTest) publish(tenant kvstore.Tenant, id string, keys int) error {
	in := session(keys, int64(16*keys))
	in.Tenant, in.ID = tenant, kvstore.SessionID(id)
	_, err := r.Publish(in)
	return err
}

func (r roomTest) must(tenant kvstore.Tenant, id string, keys int) {
	r.t.Helper()
	if err := r.publish(tenant, id, keys); err != nil {
		r.t.Fatal(err)
	}
}

// wantStats holds the counts to a count of the records.
func (r roomTest) wantStats(owned, forwarded int, displaced int64) {
	r.t.Helper()
	want := kvstore.SessionStats{Displaced: displaced}
	for _, s := range r.List() {
		want.Bytes += 512 + int64(len(s.Tenant)+len(s.ID))
		for _, k := range s.Keys {
			want.Bytes += 16 + int64(len(k))
		}
		if s.Owner == "a" {
			want.Owned++
		} else {
			want.Forwarded++
		}
	}
	got := r.Stats()
	want.MaxBytes, want.Expired, want.Elsewhere = got.MaxBytes, got.Expired, got.Elsewhere
	if got != want || got.Owned != owned || got.Forwarded != forwarded || got.Bytes > got.MaxBytes {
		r.t.Errorf("counts are %+v, counted %+v, want %d owned and %d forwarded", got, want, owned, forwarded)
	}
}

func (r roomTest) ids() []string {
	var out []string
	for _, s := range r.List() {
		out = append(out, string(s.ID))
	}
	return out
}

// bytesOf is what the store reckons for a session of a tenant of one letter and an id of two.
func bytesOf(keys int) int64 {
	n := int64(512 + 1 + 2)
	for _, k := range session(keys, int64(16*keys)).Keys {
		n += 16 + int64(len(k))
	}
	return n
}

// A full store takes new sessions all the same: those that were left alone for longest go, and none that changed within an hour; if all did, the new one is
// refused and nothing goes.
func TestRoom(t *testing.T) {
	for _, name := range []string{"", "sessions"} {
		synctest.Test(t, func(t *testing.T) {
			path := name
			if name != "" {
				path = filepath.Join(t.TempDir(), name)
			}
			r := newRoomTest(t, path, 4*bytesOf(2))
			for i := range 4 {
				r.must("t", fmt.Sprint("s", i), 2)
				time.Sleep(time.Minute)
			}
			if err := r.publish("t", "s4", 2); !errors.Is(err, kvstore.ErrSessionLimit) {
				t.Fatalf("a fifth: %v", err)
			}
			if err := r.publish("t", "s3", 3); !errors.Is(err, kvstore.ErrSessionLimit) {
				t.Fatalf("one that has grown: %v", err)
			}
			r.must("t", "s0", 2) // it is none more
			in := session(2, 32)
			in.Tenant, in.ID, in.Epoch, in.Version = "t", "s4", 3, 1
			for _, err := range []error{r.Adopt(in), r.Writable(in)} {
				if !errors.Is(err, kvstore.ErrSessionLimit) {
					t.Errorf("one that would come: %v", err)
				}
			}
			r.wantStats(4, 0, 0)
			time.Sleep(time.Hour - 3*time.Minute) // s1 was published an hour ago
			r.must("t", "s4", 2)
			if got := r.ids(); !slices.Equal(got, []string{"s0", "s2", "s3", "s4"}) {
				t.Errorf("kept are %v", got)
			}
			if _, err := r.HandOver(kvstore.HandOver{Tenant: "t", ID: "s2", Migration: "m", To: "b", Epoch: 1, Version: 1, Incarnation: "i"}); err != nil {
				t.Fatal(err)
			}
			r.wantStats(3, 1, 1)
			time.Sleep(2 * time.Hour)
			in.ID = "s5"
			if err := errors.Join(r.Writable(in), r.Adopt(in)); err != nil {
				t.Fatal(err)
			}
			if got := r.ids(); !slices.Equal(got, []string{"s0", "s2", "s4", "s5"}) {
				t.Errorf("kept are %v", got)
			}
			if path == "" {
				return
			}
			want := r.List()
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r = newRoomTest(t, path, 4*bytesOf(2))
			if got := r.List(); len(got) != len(want) {
				t.Errorf("%d sessions after a restart, want %d", len(got), len(want))
			}
			r.wantStats(len(want)-1, 1, 0)
		})
	}
}

// A tenant that has more sessions than its part loses its own before anybody else's, however much older those are.
func TestRoomIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoomTest(t, "", 100*bytesOf(2))
		for i := range 10 {
			r.must("q", fmt.Sprintf("%02d", i), 2)
		}
		time.Sleep(time.Hour)
		flood := 0
		for range 1000 {
			r.must("f", fmt.Sprintf("%02d", flood%1000), 2)
			flood++
			time.Sleep(time.Minute)
		}
		st := r.Stats()
		quiet := 0
		for _, s := range r.List() {
			if s.Tenant == "q" {
				quiet++
			}
		}
		if quiet != 10 || st.Displaced < 900 || st.Displaced > 1010-90 {
			t.Errorf("%d of the 10 quiet sessions are left; %+v", quiet, st)
		}
		r.wantStats(st.Owned, 0, st.Displaced)
		// nobody else has anything old: then it is the quiet one's turn
		r = newRoomTest(t, "", 100*bytesOf(2))
		for i := range 10 {
			r.must("q", fmt.Sprintf("%02d", i), 2)
		}
		time.Sleep(time.Hour)
		for i := range 95 {
			r.must("f", fmt.Sprintf("%02d", i), 2)
		}
		r.wantStats(105-int(r.Stats().Displaced), 0, r.Stats().Displaced)
		if n := r.Stats().Displaced; n < 5 || n > 10 {
			t.Errorf("%d went, want 5 to 10", n)
		}
	})
}

// Who has the most gives way, however many others there are that have next to nothing: their parts do not make a tenant of a few sessions a greedy one.
func TestRoomIsOfWhoHasTheMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoomTest(t, "", 100*bytesOf(2))
		for i := range 40 {
			r.must(kvstore.Tenant(rune('A'+i)), "00", 1)
		}
		left := func(tenant kvstore.Tenant) (n int) {
			for _, s := range r.List() {
				if s.Tenant == tenant {
					n++
				}
			}
			return n
		}
		r.must("w", "00", 20) // few and great
		for i := range 10 {
			r.must("q", fmt.Sprintf("%02d", i), 2)
		}
		for i := range 500 {
			time.Sleep(2 * time.Minute)
			r.must("f", fmt.Sprintf("%03d", i), 2)
		}
		if left("q") != 10 || left("w") != 1 || left("A") != 1 {
			t.Errorf("left are %d, %d and %d sessions of the quiet", left("q"), left("w"), left("A"))
		}
		for i := range 500 { // two that want it all have the same
			time.Sleep(3 * time.Minute)
			r.must("q", fmt.Sprintf("1%03d", i), 2)
		}
		if f, q := left("f"), left("q"); f < q-3 || f > q+3 || left("w") != 1 || left("A") != 1 {
			t.Errorf("left are %d and %d sessions of the greedy, %d and %d of the quiet", f, q, left("w"), left("A"))
		}
	})
}

// What is in use stays, and the one that nobody uses goes.
func TestUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoomTest(t, "", 3*bytesOf(2))
		for _, id := range []string{"s0", "s1", "s2"} {
			r.must("t", id, 2)
			time.Sleep(time.Minute)
		}
		time.Sleep(2 * time.Hour)
		r.Use("t", "s0")
		r.Use("t", "none")
		r.must("t", "s3", 2)
		if got := r.ids(); !slices.Contains(got, "s0") || slices.Contains(got, "s1") {
			t.Errorf("kept are %v", got)
		}
		time.Sleep(30 * time.Minute)
		r.Use("t", "s0")
		if n, err := r.Expire(time.Now()); n != 2 || err != nil || !slices.Equal(r.ids(), []string{"s0"}) {
			t.Errorf("%d expired, %v: %v are left", n, err, r.ids())
		}
		r.wantStats(1, 0, r.Stats().Displaced)
	})
}

// A store that is full of young records looks at them once a second, not at every call.
func TestRoomIsLookedForSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoomTest(t, "", bytesOf(2))
		r.must("t", "s0", 2)
		time.Sleep(time.Hour - 500*time.Millisecond)
		for _, want := range []bool{false, false, true} {
			if err := r.publish("t", "s1", 2); (err == nil) != want || err != nil && !errors.Is(err, kvstore.ErrSessionLimit) {
				t.Errorf("%v: %v, want success %v", time.Now(), err, want)
			}
			time.Sleep(600 * time.Millisecond)
		}
		// a look that has found all that may go is not made again at once
		r = newRoomTest(t, "", 2*bytesOf(2))
		r.must("t", "s0", 2)
		time.Sleep(time.Second)
		r.must("t", "s1", 2)
		time.Sleep(time.Hour - 100*time.Millisecond)
		for i, want := range []bool{true, false, true} {
			if err := r.publish("t", fmt.Sprint("n", i), 2); (err == nil) != want {
				t.Errorf("%v: %v, want success %v", time.Now(), err, want)
			}
			time.Sleep(550 * time.Millisecond)
		}
	})
}

// A disk that fails while room is made loses nothing.
func TestRoomOnABrokenDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRoomTest(t, filepath.Join(t.TempDir(), "sessions"), 2*bytesOf(2))
		r.must("t", "s0", 2)
		r.must("t", "s1", 2)
		time.Sleep(2 * time.Hour)
		r.BreakDisk()
		if err := r.publish("t", "s2", 2); err == nil || errors.Is(err, kvstore.ErrSessionLimit) {
			t.Errorf("with a broken disk: %v", err)
		}
		r.wantStats(2, 0, 0)
	})
}
