package kvstore_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/kvstore"
)

func TestSessionsReopen(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sessions")
	s := openSessions(t, path, "a")
	seen := mustPublish(t, s, session(2, 40))
	kept := session(1, 20)
	kept.Tenant, kept.ID, kept.RepinSeq = "t", "kept", 4
	mustPublish(t, s, kept)
	h := handOver(seen, "m", "b")
	want := mustHandOver(t, s, h)
	list := s.List()

	// What a crash right after the reply leaves: the file as it is, never closed.
	crashed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(copied, crashed, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]string{"closed": path, "crashed": copied} {
		again := openSessions(t, p, "a")
		if diff := cmp.Diff(list, again.List()); diff != "" {
			t.Errorf("%s: list (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(want, mustHandOver(t, again, h)); diff != "" {
			t.Errorf("%s: retry (-want +got):\n%s", name, diff)
		}
		if got := mustGet(t, again, "s"); got.Owner != "b" || got.Epoch != 2 {
			t.Errorf("%s: forwarding record %+v", name, got)
		}
	}
	for what, err := range map[string]error{
		"get":     func() error { _, err := s.Get("", "s"); return err }(),
		"publish": func() error { _, err := s.Publish(kept); return err }(),
		"close":   s.Close(),
	} {
		if wantClosed := what != "close"; wantClosed != errors.Is(err, kvstore.ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
}

// When the disk fails nothing is handed over, and readers see the state before.
func TestHandOverDiskFailure(t *testing.T) {
	t.Parallel()
	s := openSessions(t, filepath.Join(t.TempDir(), "sessions"), "a")
	seen := mustPublish(t, s, session(2, 40))
	s.BreakDisk()
	if _, err := s.HandOver(handOver(seen, "m", "b")); err == nil || errors.Is(err, kvstore.ErrClosed) {
		t.Errorf("hand-over with a broken disk: %v", err)
	}
	if err := s.Forget("", "s"); err == nil {
		t.Error("forgot with a broken disk")
	}
	if diff := cmp.Diff(seen, mustGet(t, s, "s")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestOpenSessionsBadFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "sessions")
	s := openSessions(t, path, "a")
	if _, err := kvstore.OpenSessions(path, "a"); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second process: %v", err)
	}
	mustPublish(t, s, session(200, 16*200))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rest := slices.Clone(good)
	for i := 2 * os.Getpagesize(); i < len(rest); i++ { // both meta pages are well, everything else is not
		rest[i] ^= 0xa5
	}
	damaged := func(p string, fix string) {
		t.Helper()
		s, err := kvstore.OpenSessions(p, "a")
		if err == nil {
			t.Errorf("%s: opened", p)
			s.Close()
			return
		}
		var sf *kvstore.StateFileError
		if !errors.As(err, &sf) || sf.Path != p || !strings.Contains(err.Error(), p) || !strings.Contains(err.Error(), fix) {
			t.Errorf("%s: the error does not name the file and the fix: %v", p, err)
		}
	}
	files := map[string][]byte{
		"not a store": bytes.Repeat([]byte("x"), 65536),
		"cut":         good[:os.Getpagesize()],
		"pages":       rest,
	}
	for n := 2; n*os.Getpagesize() < len(good); n++ { // what the root page is beyond; where it is before the cut, the file may do
		cut := good[:n*os.Getpagesize()]
		p := filepath.Join(dir, "cut-"+strconv.Itoa(n))
		if err := os.WriteFile(p, cut, 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := kvstore.OpenSessions(p, "a"); err == nil {
			s.Close()
		} else if !strings.Contains(err.Error(), "move it away") {
			t.Errorf("cut to %d pages: %v", n, err)
		}
	}
	for name, b := range files {
		p := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		damaged(p, "move it away")
	}
	damaged(filepath.Join(dir, "missing", "sessions"), "let the daemon's user")
}

// Somebody truncates the file under a store that is in use: changes are refused, for good, what is known is still told, and the process lives.
func TestSessionsTruncatedInUse(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*kvstore.Sessions, kvstore.Session, kvstore.Forwarded) error{
		"hand over": func(s *kvstore.Sessions, seen kvstore.Session, _ kvstore.Forwarded) error {
			_, err := s.HandOver(handOver(seen, "m", "b"))
			return err
		},
		"confirm": func(s *kvstore.Sessions, _ kvstore.Session, f kvstore.Forwarded) error {
			return s.Confirm([]kvstore.Forwarded{f})
		},
		"reclaim": func(s *kvstore.Sessions, _ kvstore.Session, f kvstore.Forwarded) error {
			_, err := s.Reclaim(f)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "sessions")
			s := openSessions(t, path, "a")
			gone := session(200, 16*200)
			gone.ID = "gone"
			h := handOver(mustPublish(t, s, gone), "m0", "b")
			h.Incarnation = "before"
			if _, err := s.HandOver(h); err != nil {
				t.Fatal(err)
			}
			f, ok := s.UnconfirmedOf("", "gone")
			if !ok {
				t.Fatal("the hand-over awaits nothing")
			}
			seen := mustPublish(t, s, session(200, 16*200))
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				failed := 0
				for range 5 {
					if err := change(s, seen, f); err != nil {
						failed++
					}
				}
				if failed == 0 {
					t.Log("the store wrote its file anew") // all it needed was in its own memory
				} else if err := s.Writable(seen); err == nil {
					t.Error("it says that it can be written")
				}
				_, _ = s.Get("", "s")
				_ = s.Close()
			}()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("the store hangs")
			}
		})
	}
}

// Writable says no before anything is asked for, and yes again once there is room.
func TestSessionsWritable(t *testing.T) {
	t.Parallel()
	in := session(100, 1600)
	memory := openSessions(t, "", "a")
	if err := memory.Writable(in); err != nil {
		t.Errorf("in memory: %v", err)
	}
	s := openSessions(t, filepath.Join(t.TempDir(), "sessions"), "a")
	mustPublish(t, s, in)
	before := s.List()
	if err := s.Writable(in); err != nil {
		t.Error(err)
	}
	s.FailNext()
	if err := s.Writable(in); err != nil { // tries, and it works
		t.Error(err)
	}
	if diff := cmp.Diff(before, s.List()); diff != "" {
		t.Errorf("trying changed something:\n%s", diff)
	}
	s.BreakDisk()
	s.FailNext()
	if err := s.Writable(in); err == nil {
		t.Error("a broken disk is writable")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Writable(in); !errors.Is(err, kvstore.ErrClosed) {
		t.Errorf("after close: %v", err)
	}
}

// Whatever is accepted encodes to itself: there is one encoding of a record.
func FuzzSessionRecord(f *testing.F) {
	one := session(2, 40)
	one.Owner, one.Epoch, one.Version = "a", 1, 1
	empty := one
	empty.Keys = nil
	f.Add(kvstore.EncodeSession(one, 0))
	f.Add(kvstore.EncodeSession(one, 8))
	f.Add(kvstore.EncodeSession(empty, 1))
	f.Add([]byte{0xbf, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		again, err := kvstore.DecodeEncodeRecord(b)
		if err == nil && !bytes.Equal(b, again) {
			t.Errorf("accepted %x, which encodes to %x", b, again)
		}
	})
}

func TestSessionRecordDecodes(t *testing.T) {
	t.Parallel()
	one := session(2, 40)
	one.Owner, one.Epoch, one.Version = "a", 1, 1
	for moves, ok := range map[int]bool{0: true, 8: true, 9: false} {
		b := kvstore.EncodeSession(one, moves)
		if got, err := kvstore.DecodeEncodeRecord(b); (err == nil) != ok || ok && !bytes.Equal(got, b) {
			t.Errorf("%d moves: %v", moves, err)
		}
		if _, err := kvstore.DecodeEncodeRecord(append(b, 0)); err == nil {
			t.Error("accepted trailing data")
		}
		for n := range len(b) {
			if _, err := kvstore.DecodeEncodeRecord(b[:n]); err == nil {
				t.Errorf("accepted a record cut to %d bytes", n)
			}
		}
	}
	for what, change := range map[string]func(*kvstore.Session){
		"no owner":   func(s *kvstore.Session) { s.Owner = "" },
		"no epoch":   func(s *kvstore.Session) { s.Epoch = 0 },
		"no version": func(s *kvstore.Session) { s.Version = 0 },
		"no pin":     func(s *kvstore.Session) { s.Pin = kvstore.Pin{} },
	} {
		bad := one
		change(&bad)
		if _, err := kvstore.DecodeEncodeRecord(kvstore.EncodeSession(bad, 0)); err == nil {
			t.Errorf("%s: accepted", what)
		}
	}
}
