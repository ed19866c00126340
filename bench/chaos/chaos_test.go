//go:build chaos

package chaos

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"
)

var (
	flagN    = flag.Int("chaos.n", 6, "runs of TestChaos")
	flagSeed = flag.Uint64("chaos.seed", 1, "seed of the first run")
	flagV    = flag.Bool("chaos.v", false, "print what happens in each run, the daemons' logs included")
)

// verbose has every run told in full.
var verbose bool

// shardEnv has this process be one of those that do the runs: first seed, step, and the seed to end before.
const shardEnv = "KVFERRY_CHAOS_SHARD"

// foldersEnv names the folder in which a shard makes its folders: who started it removes it, however the shard ends.
const foldersEnv = "KVFERRY_CHAOS_FOLDERS"

// Lines that a shard writes, each after a prefix.
const (
	lineBegin = "chaos-begin "
	lineEnd   = "chaos-end "
)

// TestShard does runs for TestChaos, which reads its lines.
func TestShard(t *testing.T) {
	text := os.Getenv(shardEnv)
	if text == "" {
		t.Skip("TestChaos runs it")
	}
	var first, step, end uint64
	if _, err := fmt.Sscanf(text, "%d %d %d", &first, &step, &end); err != nil || step == 0 {
		t.Fatalf("%s=%q: %v", shardEnv, text, err)
	}
	for seed := first; seed < end; seed += step {
		fmt.Printf("\n%s%d\n", lineBegin, seed)
		res := perform(t, plan(seed))
		b, err := json.Marshal(res)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("\n%s%s\n", lineEnd, b)
	}
}

// TestChaos has -chaos.n runs done, from seed -chaos.seed on, by as many processes as there are processors.
func TestChaos(t *testing.T) {
	if os.Getenv(shardEnv) != "" {
		t.Skip("this process is one of those that do the runs")
	}
	if *flagV || *flagN == 1 { // here, so that a debugger and a profile see it
		verbose = *flagV
		for seed := *flagSeed; seed < *flagSeed+uint64(*flagN); seed++ {
			res := perform(t, plan(seed))
			if t.Logf("%s", res.Text); len(res.Failures) > 0 {
				t.Errorf("seed %d: %s", seed, describe(res.Failures))
			}
			t.Logf("seed %d: %v of virtual time in %v, faults %v, ends %v", seed, res.Virtual, res.Took, res.Fired, res.Outcomes)
		}
		return
	}
	p := &parent{t: t, first: *flagSeed, end: *flagSeed + uint64(*flagN), workers: min(*flagN, runtime.GOMAXPROCS(0))}
	p.run()
	p.print()
}
