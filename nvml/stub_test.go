//go:build linux && cgo

package nvml

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The scenarios run the real binding against a stand-in for the driver's library, testdata/stub.c. A process binds the
// library's functions once, and one that is absent ends it, so each scenario is a process of its own: this test binary,
// started with envScenario, runs TestScenarioChild alone.
const (
	envScenario = "KVFERRY_NVML_SCENARIO"
	envLibrary  = "KVFERRY_NVML_LIBRARY"
	envControl  = "KVFERRY_STUB_CONTROL"
	envHidden   = "KVFERRY_NVML_HIDDEN"
)

// stub is what a scenario's process has: the library and its control file.
type stub struct {
	library string
	control string
	hidden  []string // symbols that the library lacks
	lines   map[string]int64
}

// set changes lines of the control file in one step; a negative value of a "hang." line removes it.
func (s *stub) set(t *testing.T, lines map[string]int64) {
	t.Helper()
	maps.Copy(s.lines, lines)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.lines)) {
		fmt.Fprintf(&text, "%s %d\n", name, s.lines[name])
	}
	if err := os.WriteFile(s.control+".new", []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(s.control+".new", s.control); err != nil {
		t.Fatal(err)
	}
}

// unset removes lines.
func (s *stub) unset(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		delete(s.lines, name)
	}
	s.set(t, nil)
}

// calls counts the calls of a name in the stub's log.
func (s *stub) calls(t *testing.T, name string) int {
	t.Helper()
	n := 0
	for _, line := range s.log(t) {
		if line == name {
			n++
		}
	}
	return n
}

func (s *stub) log(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(s.control + ".log")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// open starts a sampler that is quick to notice.
func (s *stub) open(t *testing.T) Sampler {
	t.Helper()
	sampler, err := OpenWith(s.config())
	if err != nil {
		t.Fatal(err)
	}
	return sampler
}

func (s *stub) config() Config {
	return Config{Period: minPeriod, Timeout: 20 * time.Second, RetryMax: 40 * time.Millisecond, Library: s.library}
}

// until samples until the snapshot is as wanted.
func until(t *testing.T, s Sampler, what string, ok func(Snapshot) bool) Snapshot {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); ; <-tick.C {
		snap := mustSample(t, s)
		if ok(snap) {
			return snap
		}
		if time.Now().After(deadline) {
			t.Fatalf("not %s: %v\n%+v", what, snap, snap.GPUs)
		}
	}
}

func available(s Snapshot) bool { return s.State == StateAvailable }

// libraries builds variants of the stub.
type libraries struct {
	cc, dir, object string
}

func newLibraries(t *testing.T) libraries {
	t.Helper()
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: the stand-in for the driver's library cannot be built")
	}
	l := libraries{cc: cc, dir: t.TempDir()}
	l.object = filepath.Join(l.dir, "stub.o")
	l.run(t, "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-c", "testdata/stub.c", "-o", l.object)
	return l
}

func (l libraries) run(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), l.cc, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", l.cc, args, err, out)
	}
}

// link makes a library without the hidden symbols, and never with nvmlErrorString, which nothing may call.
func (l libraries) link(t *testing.T, hidden []string) string {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(dir, "map")
	text := "{ global: *; local: nvmlErrorString;"
	for _, name := range hidden {
		text += " " + name + ";"
	}
	if err := os.WriteFile(script, []byte(text+" };\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "libnvidia-ml.so.1")
	l.run(t, "-shared", "-Wl,--version-script="+script, "-o", library, l.object)
	return library
}

// child runs a scenario in a process of its own. That it ends at all is part of what is tested.
func child(t *testing.T, name, library string, hidden []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestScenarioChild$", "-test.count=1", "-test.timeout=60s", "-test.v")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"),
		envScenario+"="+name, envLibrary+"="+library,
		envControl+"="+filepath.Join(t.TempDir(), "control"), envHidden+"="+strings.Join(hidden, ","))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS: TestScenarioChild") {
		t.Fatalf("the scenario did not run:\n%s", out)
	}
}

// TestScenarioChild is what a scenario's process runs.
func TestScenarioChild(t *testing.T) {
	name := os.Getenv(envScenario)
	if name == "" {
		t.Skip("it is run by TestScenarios, in a process of its own")
	}
	s := &stub{library: os.Getenv(envLibrary), control: os.Getenv(envControl), lines: map[string]int64{}}
	if text := os.Getenv(envHidden); text != "" {
		s.hidden = strings.Split(text, ",")
	}
	s.set(t, nil)
	scenarios[name](t, s)
	known := map[string]bool{"HANG": true}
	for _, names := range symbols() {
		for _, symbol := range names {
			known[symbol] = true
		}
	}
	for _, call := range s.log(t) {
		if !known[call] {
			t.Errorf("%s was called and not looked up", call)
		}
		if slices.Contains(s.hidden, call) {
			t.Errorf("%s was called and is hidden", call)
		}
	}
}

func TestScenarios(t *testing.T) {
	t.Parallel()
	libs := newLibraries(t)
	whole := libs.link(t, nil)
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		if name == scenarioHidden {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child(t, name, whole, nil)
		})
	}
}

// A library that lacks a function: each one, and the newer ones of all of them together.
func TestMissingSymbols(t *testing.T) {
	t.Parallel()
	libs := newLibraries(t)
	var old, bare []string
	run := func(name string, hidden []string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			child(t, scenarioHidden, libs.link(t, hidden), hidden)
		})
	}
	for f, names := range symbols() {
		run(string(f), names)
		if len(names) > 1 {
			old = append(old, names[:len(names)-1]...)
		}
		if !slices.Contains([]fn{fnInit, fnShutdown, fnCount, fnHandle}, f) {
			bare = append(bare, names...)
		}
	}
	old = append(old, string(fnTemperatureV), string(fnMemoryV2), string(fnEventReasons))
	slices.Sort(old)
	slices.Sort(bare)
	run("an old driver", old)
	run("nothing but handles", bare)
}
