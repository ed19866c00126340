//go:build chaos

package chaos

import (
	"errors"
	"flag"
	"os"
	"runtime"
	"testing"

	"github.com/kvferry/kvferry/internal/fault"
)

var flagPlanted = flag.Int("chaos.planted", 400, "runs in which TestPlanted must find a planted bug")

// Every planted bug is found: some run is broken with it and whole without it.
func TestPlanted(t *testing.T) {
	if os.Getenv(shardEnv) != "" {
		t.Skip("this process is one of those that do the runs")
	}
	for _, bug := range fault.Bugs() {
		t.Run(string(bug), func(t *testing.T) {
			p := &parent{t: t, first: *flagSeed, end: *flagSeed + uint64(*flagPlanted), workers: runtime.GOMAXPROCS(0), planted: bug, quiet: true}
			p.run()
			if _, err := os.Lstat(p.folders); p.folders == "" || !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the runs leave %s: %v", p.folders, err)
			}
			if len(p.mu.bad) == 0 {
				t.Fatalf("not found in %d runs from seed %d on", *flagPlanted, *flagSeed)
			}
			res := p.mu.bad[0]
			sane := &parent{t: t, first: res.Seed, end: res.Seed + 1, workers: 1, quiet: true}
			sane.run()
			if len(sane.mu.bad) > 0 {
				t.Fatalf("seed %d is broken without the bug, too: %s", res.Seed, describe(sane.mu.bad[0].Failures))
			}
			t.Logf("found in run %d, seed %d, by: %s", p.mu.done, res.Seed, describe(res.Failures))
		})
	}
}
