package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
)

// The command that a report shows for a section is one that the program takes, and the section's own. What it measures is what
// that command measures, since it is made by parsing it.
func TestReportCommands(t *testing.T) {
	for _, quick := range []bool{false, true} {
		a := &app{}
		r := &reportFlags{link: "rtt=30ms,rate=500Mbps", model: "llama-3.1-8b", usPerToken: 1234.5, quick: quick}
		steps, err := a.steps(r)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range steps {
			names = append(names, s.name)
			if s.command[2] != s.name || slices.Contains(s.command, "report") {
				t.Errorf("%s is measured again by %q", s.name, s.command)
			}
			if onLink := strings.Contains(strings.Join(s.command, " "), "--wan=rtt=30ms,rate=500Mbps"); onLink != (s.name != "queue") {
				t.Errorf("%s: the report's link is in %q: %v", s.name, s.command, onLink)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // a command that is understood is interrupted before it measures
			var stdout, stderr bytes.Buffer
			if code := (&app{stdout: &stdout, stderr: &stderr}).run(ctx, s.command[1:]); code != exitCancelled {
				t.Errorf("%q exits with %d: %s", s.command, code, stderr.String())
			}
		}
		if !slices.Equal(names, []string{"goodput", "crossover", "queue"}) {
			t.Errorf("steps %v", names)
		}
		if c := strings.Join(steps[1].command, " "); !strings.Contains(c, "--prefill-us-per-token=1234.5") || !strings.Contains(c, "--model=llama-3.1-8b") || strings.Contains(c, "--quick") != quick {
			t.Errorf("crossover by %q", c)
		}
	}
}
