//go:build e2e

package chaosreal

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

var (
	runsFlag     = flag.Int("n", 2, "runs of TestChaosReal")
	seedFlag     = flag.Uint64("seed", 1, "the first run's seed")
	parallelFlag = flag.Int("parallel-runs", 0, "runs at a time (default 3)")
	explainFlag  = flag.Bool("explain", false, "tell every run's plan and events")
	keepFlag     = flag.Bool("keep", false, "keep the folder of a run that failed")
	restartsFlag = flag.Int("restarts", 8, "restarts of TestRestarts")
)

// binaries are built once from this tree, with the faults that only such a build has.
var binaries string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "kvferry-e2e-")
	if err != nil {
		panic(err)
	}
	build := exec.Command("go", "build", "-tags", "chaos", "-o", dir, "../../cmd/...")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	binaries = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func config(t *testing.T) Config {
	return Config{
		Kvferryd: filepath.Join(binaries, "kvferryd"), Kvferry: filepath.Join(binaries, "kvferry"), Out: os.Stdout, Keep: *keepFlag, Explain: *explainFlag,
	}
}

// Whatever breaks, no promise does.
func TestChaosReal(t *testing.T) {
	cfg := config(t)
	cfg.Runs, cfg.Seed, cfg.Parallel = *runsFlag, *seedFlag, *parallelFlag
	if _, err := Run(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
}
