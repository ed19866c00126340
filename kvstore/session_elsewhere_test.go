package kvstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/kvstore"
)

func wantElsewhere(t *testing.T, s *kvstore.Sessions, want kvstore.Elsewhere) {
	t.Helper()
	in := session(2, 40)
	_, err := s.Publish(in)
	e, ok := errors.AsType[*kvstore.ElsewhereError](err)
	if !ok {
		t.Fatalf("published: %v", err)
	}
	if diff := cmp.Diff(&kvstore.ElsewhereError{Tenant: in.Tenant, ID: in.ID, Elsewhere: want}, e); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A mark keeps a session from being published, over a reopened file too, until it is dropped, has expired, or the session has come.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	for name, end := range map[string]func(*kvstore.Sessions) error{
		"dropped": func(s *kvstore.Sessions) error { return s.DropElsewhere("", "s") },
		"expired": func(s *kvstore.Sessions) error {
			if n, err := s.ExpireElsewhere(at); n != 0 || err != nil {
				return fmt.Errorf("%d marks are older than themselves, %w", n, err)
			}
			if n, err := s.ExpireElsewhere(at.Add(time.Second)); n != 1 || err != nil {
				return fmt.Errorf("%d marks expired, %w", n, err)
			}
			return nil
		},
		"come": func(s *kvstore.Sessions) error {
			in := session(2, 40)
			in.Epoch, in.Version = 2, 1
			return s.Adopt(in)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "sessions")
			s := openSessions(t, path, "b")
			reopen := func() {
				t.Helper()
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				s = openSessions(t, path, "b")
			}
			if err := s.MarkElsewhere("", "s", kvstore.Elsewhere{Since: at.Add(time.Millisecond)}); err != nil {
				t.Fatal(err)
			}
			wantElsewhere(t, s, kvstore.Elsewhere{Since: at})
			reopen()
			wantElsewhere(t, s, kvstore.Elsewhere{Since: at})
			known := kvstore.Elsewhere{Owner: "a", Epoch: 7, Since: at}
			for _, e := range []kvstore.Elsewhere{known, {Owner: "a", Since: at.Add(time.Minute)}, {Since: at.Add(time.Minute)}} { // the later ones know less
				if err := s.MarkElsewhere("", "s", e); err != nil {
					t.Fatal(err)
				}
				wantElsewhere(t, s, known)
			}
			if _, err := s.Publish(kvstore.Session{Tenant: "other", ID: "s", Pin: session(1, 16).Pin}); err != nil {
				t.Errorf("another tenant's session of that name: %v", err)
			}
			reopen()
			wantElsewhere(t, s, known)
			if err := end(s); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if e, ok := s.ElsewhereOf("", "s"); ok {
					t.Errorf("still marked: %+v", e)
				}
				reopen()
			}
			mustPublish(t, s, session(2, 40))
			if err := s.MarkElsewhere("", "s", known); err != nil { // the record decides
				t.Fatal(err)
			}
			mustPublish(t, s, session(2, 40))
			if err := s.DropElsewhere("", "nobody"); err != nil {
				t.Error(err)
			}
		})
	}
}

// A disk that fails costs a mark no more than that it ends with the process.
func TestElsewhereDiskFailure(t *testing.T) {
	t.Parallel()
	s := openSessions(t, filepath.Join(t.TempDir(), "sessions"), "b")
	s.BreakDisk()
	if err := s.MarkElsewhere("", "s", kvstore.Elsewhere{Owner: "a", Since: time.Unix(1e9, 0)}); err == nil {
		t.Error("marked on a broken disk")
	}
	wantElsewhere(t, s, kvstore.Elsewhere{Owner: "a", Since: time.Unix(1e9, 0)})
	for _, bad := range []kvstore.SessionID{"", kvstore.SessionID(bytes.Repeat([]byte("x"), kvstore.MaxNameBytes+1))} {
		var fe *kvstore.FieldError
		if err := s.MarkElsewhere("", bad, kvstore.Elsewhere{}); !errors.As(err, &fe) {
			t.Errorf("a name of %d bytes: %v", len(bad), err)
		}
	}
}

// A mark whose time is yet to come, by a clock that was set back since, is made again: it does not stay until then.
func TestElsewhereAfterClockSetBack(t *testing.T) {
	t.Parallel()
	s := openSessions(t, "", "b")
	now := time.Unix(1e9, 0)
	for _, since := range []time.Time{now.Add(1000 * time.Hour), now} {
		if err := s.MarkElsewhere("", "s", kvstore.Elsewhere{Owner: "a", Since: since}); err != nil {
			t.Fatal(err)
		}
	}
	wantElsewhere(t, s, kvstore.Elsewhere{Owner: "a", Since: now})
}

// There are no more marks than MaxElsewhere, and the oldest go first.
func TestElsewhereBound(t *testing.T) {
	t.Parallel()
	s := openSessions(t, "", "b")
	mark := func(i int) {
		if err := s.MarkElsewhere("", kvstore.SessionID(fmt.Sprint(i)), kvstore.Elsewhere{Since: time.Unix(1e9+int64(i), 0)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range kvstore.MaxElsewhere {
		mark(i)
	}
	mark(kvstore.MaxElsewhere)
	for i, want := range map[int]bool{0: false, kvstore.MaxElsewhere/16 - 1: false, kvstore.MaxElsewhere / 16: true, kvstore.MaxElsewhere: true} {
		if _, ok := s.ElsewhereOf("", kvstore.SessionID(fmt.Sprint(i))); ok != want {
			t.Errorf("mark %d is there: %v", i, ok)
		}
	}
}

// Whatever is accepted encodes to itself.
func FuzzElsewhere(f *testing.F) {
	f.Add([]byte("\x00\x00s"), []byte("\x01\x00\x00\x00\x00\x3b\x9a\xca\x00\x00\x00\x00\x00\x00\x00\x00\x07a"))
	f.Add([]byte("\x00\x01ts"), []byte("\x01\x00\x00\x00\x00\x3b\x9a\xca\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\xff\xffs"), []byte{1})
	f.Fuzz(func(t *testing.T, k, v []byte) {
		k2, v2, err := kvstore.DecodeEncodeElsewhere(k, v)
		if err == nil && (!bytes.Equal(k, k2) || !bytes.Equal(v, v2)) {
			t.Errorf("accepted %x %x, which encodes to %x %x", k, v, k2, v2)
		}
	})
}
