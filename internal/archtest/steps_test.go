package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dryRun returns the commands that a make target would run.
func dryRun(t *testing.T, target string) string {
	t.Helper()
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("make is not installed: the steps can't be expanded")
	}
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "-n", target)
	cmd.Dir = root
	// Flags of an outer make, and what it was told, would change what is printed.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "FUZZTIME=") })
	cmd.Env = append(cmd.Env, "MAKEFLAGS=", "MFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make -n %s: %v\n%s", target, err, out)
	}
	return string(out)
}

// Each step does what its name says.
func TestSteps(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		target string
		want   []string // each must match
		never  []string
	}{
		{"build", []string{`go build .*-X main\.version=\S+.* -o bin/ \./cmd/\.\.\.`}, nil},
		{"test", []string{`(?m)^go test -shuffle=on .*\./\.\.\.$`, `(?m)^go test .*-tags e2e .*-count=1`}, []string{`-short`, `-run`}},
		{"race", []string{`go test .*-race .*\./\.\.\.`, `-tags invariants`, `-shuffle=on`}, []string{`-run`}},
		{"chaos", []string{`go test -tags chaos -count=1 .*-run '\^TestChaos\$' \./bench/chaos -args -chaos\.n 1000 -chaos\.seed 1`}, []string{`-short`, `\|\| true`}},
		{"chaos-planted", []string{`go test -tags chaos -count=1 .*-run '\^TestPlanted\$' \./bench/chaos`}, []string{`-short`, `\|\| true`}},
		{"fuzz", []string{`\.ci/fuzz`, `FUZZTIME=10s`}, nil},
		{"lint", []string{`gofumpt -l \.`, `go vet \./\.\.\.`, `go vet -tags e2e,netns,nvml,invariants,chaos \./\.\.\.`, `staticcheck .*\./\.\.\.`, `buf lint`}, []string{`\|\| true`}},
		{"proto", []string{`buf generate`}, nil},
		{"proto-check", []string{`\.ci/proto-check`}, nil},
		{"tidy-check", []string{`\.ci/tidy-check`}, nil},
		{"dep-check", []string{`go test .*\./internal/archtest/`}, nil},
		{"chaos-real", []string{`go test -tags e2e -count=1 .*ChaosReal.*Restarts.* \./bench/chaosreal -args -n 30 -seed 1 -restarts 100`}, []string{`-short`}},
		{"demo", []string{`(?m)^bin/kvferry demo$`}, nil},
		{"ci", []string{`\.ci/run`}, nil},
	} {
		t.Run(c.target, func(t *testing.T) {
			t.Parallel()
			got := dryRun(t, c.target)
			for _, w := range c.want {
				if !regexp.MustCompile(w).MatchString(got) {
					t.Errorf("make %s has no %q:\n%s", c.target, w, got)
				}
			}
			for _, w := range c.never {
				if regexp.MustCompile(w).MatchString(got) {
					t.Errorf("make %s has %q:\n%s", c.target, w, got)
				}
			}
		})
	}
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// CI runs every step, in the order in which a fault is cheapest to find, and none can fail silently.
func TestCIRunsEveryStep(t *testing.T) {
	t.Parallel()
	text := readFile(t, ".ci/run")
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^step ([a-z-]+) (.*)$`).FindAllStringSubmatch(text, -1) {
		target, isMake := strings.CutPrefix(m[2], "make --no-print-directory ")
		if isMake {
			target, _, _ = strings.Cut(target, " ")
			got = append(got, m[1]+"="+target)
		} else {
			got = append(got, m[1])
		}
	}
	want := []string{
		"tools", "download", "tidy=tidy-check", "gofmt", "build=build", "lint=lint", "import-table=dep-check",
		"proto-drift=proto-check", "test=test", "netns=netns", "race=race", "chaos=chaos", "chaos-real=chaos-real", "fuzz=fuzz", "demo=demo",
	}
	if !slices.Equal(got, want) {
		t.Errorf("steps of .ci/run:\n%q\nwant\n%q", got, want)
	}
	for _, path := range []string{".ci/run", ".ci/fuzz", ".ci/proto-check", ".ci/tidy-check"} {
		script := readFile(t, path)
		if !strings.Contains(script, "\nset -euo pipefail\n") {
			t.Errorf("%s does not set -euo pipefail", path)
		}
		if strings.Contains(script, "|| true") {
			t.Errorf("%s hides a failure with || true", path)
		}
		st, err := os.Stat(filepath.Join(root, path))
		if err != nil || st.Mode()&0o111 == 0 {
			t.Errorf("%s is not executable: %v, %v", path, st.Mode(), err)
		}
	}
	if !strings.Contains(readFile(t, ".ci/fuzz"), `go test -run '^$' -fuzz "^${name}\$" -fuzztime "$fuzztime" -fuzzminimizetime 1s "$dir"`) {
		t.Error(".ci/fuzz does not fuzz")
	}
}

// The fuzz step runs a target again when Go took the end of -fuzztime for a failure, and for nothing else.
func TestFuzzDeadline(t *testing.T) {
	t.Parallel()
	const flake = "fuzz: elapsed: 5s, execs: 85963 (17004/sec), new interesting: 0 (total: 11)\n--- FAIL: FuzzX (5.08s)\n" +
		"    context deadline exceeded\nFAIL\nexit status 1\nFAIL\texample.com/x\t5.083s\n"
	for name, c := range map[string]struct {
		log  string
		want bool
	}{
		"deadline":        {flake, true},
		"finding":         {"--- FAIL: FuzzX (0.03s)\n    --- FAIL: FuzzX (0.00s)\n        x_test.go:9: bad\n    Failing input written to testdata/fuzz/FuzzX/1\n", false},
		"finding at end":  {flake + "    Failing input written to testdata/fuzz/FuzzX/1\n", false},
		"test's own":      {"--- FAIL: FuzzX (5.08s)\n    x_test.go:9: got\n    context deadline exceeded\n", false},
		"panic":           {"panic: boom\n" + flake, false},
		"does not build":  {"# example.com/x\n./x.go:3:1: syntax error\nFAIL\texample.com/x [build failed]\n", false},
		"worker gone":     {"    fuzzing process hung or terminated unexpectedly: exit status 2\n" + flake, false},
		"word in passing": {"context deadline exceeded, says a log\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(log, []byte(c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			err := exec.Command(filepath.Join(root, ".ci/fuzz"), "--at-deadline", log).Run()
			if got := err == nil; got != c.want {
				t.Errorf("at deadline %v (%v), want %v, of\n%s", got, err, c.want, c.log)
			}
		})
	}
}

// make help names every target that people call.
func TestHelpIsComplete(t *testing.T) {
	t.Parallel()
	text := readFile(t, "Makefile")
	phony := regexp.MustCompile(`(?m)^\.PHONY: (.*)$`).FindStringSubmatch(text)
	if phony == nil {
		t.Fatal("no .PHONY")
	}
	for _, target := range strings.Fields(phony[1]) {
		if !regexp.MustCompile(`(?m)^` + target + `:.* ## .+$`).MatchString(text) {
			t.Errorf("target %s has no help", target)
		}
	}
	var lines int
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "\t") {
			if lines++; lines > 3 {
				t.Errorf("a target has more than three lines: %s", line)
			}
		} else {
			lines = 0
		}
	}
	if !strings.Contains(text, ".DEFAULT_GOAL := help") {
		t.Error("help is not the default")
	}
}
