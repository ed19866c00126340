package crossover

import (
	"os"
	"testing"
	"time"
)

// A probe leaves no file, and its times count; where nothing can be written none do.
func TestProbeSync(t *testing.T) {
	var s strain
	if s.sync() != 0 || s.lag() != 0 {
		t.Error("times of no probe")
	}
	dir := t.TempDir()
	for range 3 {
		s.probeSync(dir)
	}
	s.probeSync(dir + "/missing")
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 || len(s.syncs) != 3 || s.sync() <= 0 {
		t.Errorf("%d files left, %v, %v", len(left), s.syncs, err)
	}
	s.syncs = nil
	for i := range 101 {
		s.syncs = append(s.syncs, time.Duration(100-i)*time.Millisecond)
	}
	if s.sync() != 90*time.Millisecond {
		t.Errorf("%v, want 90 ms of 0 to 100", s.sync())
	}
}
