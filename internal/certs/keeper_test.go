package certs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// keeperFiles are files of a node a of us-east in a folder of their own.
func keeperFiles(t *testing.T) (Files, *CA, func(p *Pair)) {
	t.Helper()
	dir := t.TempDir()
	ca, err := NewCA("x", 0)
	if err != nil {
		t.Fatal(err)
	}
	f := Files{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "n.crt"), Key: filepath.Join(dir, "n.key")}
	if err := os.WriteFile(f.CA, ca.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	put := func(p *Pair) {
		t.Helper()
		key, err := p.KeyPEM()
		if err != nil {
			t.Fatal(err)
		}
		for path, data := range map[string][]byte{f.Cert: p.CertPEM(), f.Key: key} {
			// Renamed into place, as renewal tools do: another inode with perhaps the same time and size.
			if err := errors.Join(os.WriteFile(path+".new", data, 0o600), os.Rename(path+".new", path)); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(mustIssue(t, ca, "us-east", "a"))
	return f, ca, put
}

func mustIssue(t *testing.T, ca *CA, region, node string) *Pair {
	t.Helper()
	p, err := ca.Issue(region, node)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The keeper takes in what is new, and only then; what it hands out is whole: certificate, key and authorities of one reading.
func TestKeeper(t *testing.T) {
	files, ca, put := keeperFiles(t)
	k, err := OpenKeeper(files)
	if err != nil {
		t.Fatal(err)
	}
	first := k.TLS()
	if changed, err := k.Reload(false); changed || err != nil || k.TLS() != first {
		t.Errorf("without a change: %v, %v", changed, err)
	}
	next := mustIssue(t, ca, "us-east", "a")
	put(next)
	if changed, err := k.Reload(false); !changed || err != nil || k.Material().Certificate.Leaf.SerialNumber.Cmp(next.Cert.SerialNumber) != 0 {
		t.Errorf("after a change: %v, %v, serial %v, want %v", changed, err, k.Material().Certificate.Leaf.SerialNumber, next.Cert.SerialNumber)
	}
	if c, s := handshake(t, dial("localhost", k.Material().ClientConfig()), k.TLS()); c != nil || s != nil {
		t.Errorf("a handshake by what holds: %v, %v", c, s)
	}
	if changed, err := k.Reload(true); !changed || err != nil {
		t.Errorf("forced: %v, %v", changed, err)
	}
	// Time and size alone tell a file that was written in place.
	if err := os.Chtimes(files.CA, time.Time{}, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if changed, err := k.Reload(false); !changed || err != nil {
		t.Errorf("another time: %v, %v", changed, err)
	}
}

func TestKeeperRefuses(t *testing.T) {
	files, ca, put := keeperFiles(t)
	k, err := OpenKeeper(files)
	if err != nil {
		t.Fatal(err)
	}
	before := k.TLS()
	for _, tc := range []struct{ region, node string }{{"us-east", "b"}, {"eu-west", "a"}} {
		put(mustIssue(t, ca, tc.region, tc.node))
		changed, err := k.Reload(false)
		p, ok := errors.AsType[*PeerError](err)
		if changed || !ok || p.WantNode != "a" || p.GotNode != tc.node || p.GotRegion != tc.region || k.TLS() != before {
			t.Errorf("%v: %v, %v", tc, changed, err)
		}
		if Explain(err) == "" {
			t.Errorf("%v: %v has no fix", tc, err)
		}
		if changed, err := k.Reload(false); changed || err != nil {
			t.Errorf("%v, looked at again: %v, %v", tc, changed, err)
		}
	}
	if err := os.Remove(files.Key); err != nil {
		t.Fatal(err)
	}
	if changed, err := k.Reload(false); changed || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a key: %v, %v", changed, err)
	}
	if _, err := OpenKeeper(files); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opened without a key: %v", err)
	}
	if m := k.Material(); fmt.Sprint(m.Region, m.Node) != "us-easta" || len(m.Authorities) != 1 {
		t.Errorf("what holds is of %s, %s", m.Region, m.Node)
	}
}
