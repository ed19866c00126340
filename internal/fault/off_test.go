//go:build !chaos

package fault

import (
	"os/exec"
	"strings"
	"testing"
)

// Without the tag nothing is looked up, nothing is allocated, and nothing can be planted, whatever the environment says.
func TestOff(t *testing.T) {
	t.Setenv("KVFERRY_FAULTS", "commit:1-100:error,nonsense")
	t.Setenv("KVFERRY_PLANTED", "salt-dropped")
	page := []byte{1, 2, 3}
	if n := testing.AllocsPerRun(100, func() {
		for _, bug := range [...]Bug{VerificationSkipped, SaltDropped} {
			if Planted(bug) || Enabled {
				t.Error("planted")
			}
		}
		if At(Commit, "x") != nil || Page(Read, "x", page) != nil || FromEnv() != nil {
			t.Error("struck")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if page[0] != 1 || page[1] != 2 || page[2] != 3 {
		t.Errorf("page %v", page)
	}
}

// The compiler puts the constants in place of the calls.
func TestInlined(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-m", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, f := range []string{"At", "Page", "Planted", "FromEnv"} {
		if !strings.Contains(string(out), "can inline "+f+"\n") {
			t.Errorf("%s is not inlined: %s", f, out)
		}
	}
}

func BenchmarkAt(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if At(Read, "x") != nil {
			b.Fatal("struck")
		}
	}
}
