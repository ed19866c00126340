package kvstore_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/kvstore"
)

// Records go when they have not changed for long, those of sessions that went elsewhere too, and the file remembers when they last did.
func TestExpire(t *testing.T) {
	for _, name := range []string{"", "sessions"} {
		synctest.Test(t, func(t *testing.T) {
			path := name
			if name != "" {
				path = filepath.Join(t.TempDir(), name)
			}
			s := openSessions(t, path, "a")
			publish := func(id kvstore.SessionID) {
				t.Helper()
				in := session(2, 40)
				in.ID = id
				if _, err := s.Publish(in); err != nil {
					t.Fatal(err)
				}
			}
			expire := func(want int) {
				t.Helper()
				if n, err := s.Expire(time.Now().Add(-7 * 24 * time.Hour)); n != want || err != nil {
					t.Errorf("%d expired, %v, want %d", n, err, want)
				}
			}
			left := func(want ...kvstore.SessionID) {
				t.Helper()
				var got []kvstore.SessionID
				for _, in := range s.List() {
					got = append(got, in.ID)
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("%v are left, want %v", got, want)
				}
			}
			for _, id := range []kvstore.SessionID{"idle", "moved", "published"} {
				publish(id)
			}
			time.Sleep(4 * 24 * time.Hour)
			if _, err := s.HandOver(kvstore.HandOver{ID: "moved", Migration: "m", To: "b", Epoch: 1, Version: 1, Incarnation: "i"}); err != nil {
				t.Fatal(err)
			}
			publish("published")
			time.Sleep(3 * 24 * time.Hour)
			expire(0) // a week to the second
			time.Sleep(time.Second)
			expire(1)
			left("moved", "published")
			if _, err := s.Get("", "idle"); !errors.Is(err, kvstore.ErrSessionNotFound) {
				t.Errorf("of one that has expired: %v", err)
			}
			if path != "" {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = openSessions(t, path, "a")
				left("moved", "published")
			}
			time.Sleep(3 * 24 * time.Hour)
			expire(0)
			publish("published")
			time.Sleep(24 * time.Hour)
			expire(1)
			left("published")
			if n := len(s.Unconfirmed()); n != 0 {
				t.Errorf("%d hand-overs of no record await confirmation", n)
			}
			publish("idle") // a new one
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Expire(time.Now()); !errors.Is(err, kvstore.ErrClosed) {
				t.Errorf("closed: %v", err)
			}
		})
	}
}

// More than go in one write all go; a disk that fails leaves the rest.
func TestExpireMany(t *testing.T) {
	const many = 2500
	s := openSessions(t, "", "a")
	for i := range many {
		in := session(1, 20)
		in.ID = kvstore.SessionID(fmt.Sprint("s", i))
		if _, err := s.Publish(in); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := s.Expire(time.Now().Add(time.Hour)); n != many || err != nil || len(s.List()) != 0 {
		t.Errorf("%d expired, %v, %d are left", n, err, len(s.List()))
	}
	broken := openSessions(t, filepath.Join(t.TempDir(), "sessions"), "a")
	if _, err := broken.Publish(session(1, 20)); err != nil {
		t.Fatal(err)
	}
	broken.BreakDisk()
	if n, err := broken.Expire(time.Now().Add(time.Hour)); n != 0 || err == nil || len(broken.List()) != 1 {
		t.Errorf("with a broken disk %d expired, %v, %d are left", n, err, len(broken.List()))
	}
}

// A record whose time is yet to come, by a clock that was set back since, counts from the opening of the file: it does not stay for ever.
func TestExpireAfterClockSetBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sessions")
	s := openSessions(t, path, "a") // today
	mustPublish(t, s, session(1, 20))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // the year 2000
		s := openSessions(t, path, "a")
		time.Sleep(time.Hour)
		if n, err := s.Expire(time.Now().Add(-time.Hour)); n != 0 || err != nil {
			t.Errorf("%d expired, %v", n, err)
		}
		time.Sleep(time.Second)
		if n, err := s.Expire(time.Now().Add(-time.Hour)); n != 1 || err != nil {
			t.Errorf("%d expired, %v", n, err)
		}
	})
}

// A migration to here keeps the record of where the session went, on disk too.
func TestMarkElsewhereKeepsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "sessions")
		s := openSessions(t, path, "a")
		mustPublish(t, s, session(1, 20))
		if _, err := s.HandOver(kvstore.HandOver{ID: "s", Migration: "m", To: "b", Epoch: 1, Version: 1, Incarnation: "i"}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * 24 * time.Hour)
		if err := s.MarkElsewhere("", "s", kvstore.Elsewhere{Owner: "b", Since: time.Now()}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24*time.Hour + time.Second)
		week := func() time.Time { return time.Now().Add(-7 * 24 * time.Hour) }
		for range 2 {
			if n, err := s.Expire(week()); n != 0 || err != nil || s.Stats().Forwarded != 1 || s.Stats().Elsewhere != 0 {
				t.Errorf("%d expired, %v, left is %+v", n, err, s.Stats())
			}
			if f := s.Unconfirmed(); len(f) != 1 || f[0].Migration != "m" {
				t.Errorf("unconfirmed: %v", f)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = openSessions(t, path, "a")
		}
		time.Sleep(6 * 24 * time.Hour)
		if n, err := s.Expire(week()); n != 1 || err != nil {
			t.Errorf("%d expired, %v", n, err)
		}
	})
}
