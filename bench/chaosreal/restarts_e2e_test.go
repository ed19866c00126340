//go:build e2e

package chaosreal

import (
	"testing"
	"time"
)

// A peer that is restarted on the same addresses, killed or not, poisons nothing: the next migration works, each time.
func TestRestarts(t *testing.T) {
	rep, err := Restarts(t.Context(), config(t), *restartsFlag)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kills and %d stops in %v; the next migration took %v in the middle, %v at most; %d sessions from before came with their blocks",
		rep.Kills, rep.Stops, rep.Took.Truncate(time.Millisecond), rep.Next[len(rep.Next)/2].Truncate(time.Millisecond), rep.Next[len(rep.Next)-1].Truncate(time.Millisecond), rep.Warm)
	if rep.Kills+rep.Stops != *restartsFlag {
		t.Errorf("%d restarts, want %d", rep.Kills+rep.Stops, *restartsFlag)
	}
}
