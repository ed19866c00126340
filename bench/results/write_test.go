package results

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := WriteFile(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func wantText(t *testing.T, path, text string) {
	t.Helper()
	if b, err := os.ReadFile(path); err != nil || string(b) != text {
		t.Errorf("%s holds %q (%v), want %q", path, b, err, text)
	}
}

// wantNames: nothing is left beside what is written.
func wantNames(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("%s holds %v, want %v", dir, got, names)
	}
}

func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	write(t, path, "one")
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o644 {
		t.Errorf("a new file: %v, %v", fi, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := os.Open(path) // a reader of the old file keeps it whole
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	write(t, path, "two")
	wantText(t, path, "two")
	if b, err := io.ReadAll(held); err != nil || string(b) != "one" {
		t.Errorf("who had it open reads %q, %v", b, err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode() != 0o600 {
		t.Errorf("a file that was there: %v, %v", fi, err)
	}
	wantNames(t, dir, "a")
	if err := WriteFile(dir, nil); err == nil || !strings.Contains(err.Error(), "is a folder") {
		t.Errorf("a folder: %v", err)
	}
	if err := WriteFile(filepath.Join(dir, "none", "a"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}

func TestWriteFileLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(os.MkdirAll(at("deep/in"), 0o755), os.Symlink("deep/in", at("folder")), os.Symlink("folder/../there", at("first")),
		os.Symlink("first", at("second")), os.Symlink("loop", at("loop"))); err != nil {
		t.Fatal(err)
	}
	target := at("deep/there") // ".." is that of the folder behind the link
	for _, text := range []string{"made", "replaced"} {
		write(t, at("second"), text)
		wantText(t, target, text)
	}
	for _, name := range []string{"first", "second"} {
		if fi, err := os.Lstat(at(name)); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("the link %s became %v, %v", name, fi, err)
		}
	}
	wantNames(t, at("deep"), "in", "there")
	if err := WriteFile(at("loop"), nil); err == nil {
		t.Error("a link to itself was written")
	}
	if fi, err := os.Lstat(at("loop")); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("a link to itself became %v, %v", fi, err)
	}
}
