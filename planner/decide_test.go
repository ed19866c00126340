package planner

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestDecideScripts runs testdata/*.txt, which are the specification of decisions. The command decide takes key=value
// arguments over the defaults of newScript; -rewrite writes what it got.
func TestDecideScripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, td *datadriven.TestData) string {
			if td.Cmd != "decide" {
				td.Fatalf(t, "unknown command %q", td.Cmd)
			}
			s := newScript()
			for _, arg := range td.CmdArgs {
				value := ""
				if len(arg.Vals) > 0 {
					value = arg.Vals[0]
				}
				if err := s.set(arg.Key, value); err != nil {
					td.Fatalf(t, "%s=%s: %v", arg.Key, value, err)
				}
			}
			d, err := Decide(s.r, s.m, s.c, s.l)
			if err != nil {
				return err.Error() + "\n"
			}
			return inWords(d, s.all, s.r.Hybrid || s.r.Only == ModeHybrid)
		})
	})
}

// script is one decide command: a warm, measured link without caps, an idle H100 and Llama-3.1-70B.
type script struct {
	r Request
	m Model
	c Compute
	l Link
	// all shows the terms of 0 seconds too.
	all bool
}

func newScript() *script {
	return &script{
		r: Request{RoundTrips: 1},
		m: llama70B(),
		c: h100(),
		l: Link{RTT: 70 * ms, Goodput: 100e9, WindowPackets: -1, BacklogKnown: true},
	}
}

// set applies one argument. Rates are in Gbps, durations in Go's syntax, byte counts in MiB.
func (s *script) set(key, value string) (err error) {
	number := func() (v float64) { v, err = strconv.ParseFloat(value, 64); return v }
	span := func() (v time.Duration) { v, err = time.ParseDuration(value); return v }
	switch key {
	case "prefix":
		s.r.PrefixTokens = int64(number())
	case "present":
		s.r.PresentTokens = int64(number())
	case "n_rtt":
		s.r.RoundTrips = number()
	case "deadline":
		s.r.Deadline = span()
	case "only":
		s.r.Only, err = ParseMode(value)
	case "redirect_allowed":
		s.r.Redirect.Allowed = true
	case "turns":
		s.r.Redirect.ExpectedTurns = number()
	case "delta_rtt":
		s.r.Redirect.DeltaRTT = span()
	case "rtt":
		s.l.RTT = span()
	case "goodput":
		s.l.Goodput = Rate(1e9 * number())
	case "prior":
		s.l.Goodput, s.l.PriorGoodput = 0, Rate(1e9*number())
	case "age":
		s.l.Age = span()
	case "stripes":
		s.l.Stripes = int(number())
	case "window":
		s.l.WindowPackets = int(number())
	case "packet":
		s.l.PacketBytes = int(number())
	case "cold":
		s.l.Cold = true
	case "backlog":
		s.l.EgressBacklog = Bytes(number() * (1 << 20))
	case "fixed":
		s.l.FixedSeconds, s.l.FixedSource = number(), "median of 12 migrations"
	case "fetch_spread":
		s.l.Spread = number()
	case "compute_spread":
		s.c.Spread = number()
	case "backlog_unknown":
		s.l.BacklogKnown = false
	case "fetch_rho":
		s.l.Queue = &Queue{ServiceRate: 20, Utilization: number()}
	case "compute_rho":
		s.c.Queue = &Queue{ServiceRate: 20, Utilization: number()}
	case "queue":
		s.c.QueueSeconds = number()
	case "queue_unknown":
		s.c.QueueKnown = false
	case "peak":
		s.c.PeakFLOPS = number()
	case "mfu":
		s.c.MFU = number()
	case "us_per_token":
		s.c.SecondsPerToken, s.c.Source = number()/1e6, "64 prefills"
	case "prefill_unavailable":
		s.c.PrefillUnavailable = true
	case "hybrid":
		s.r.Hybrid = true
	case "previous":
		s.r.Previous, err = ParseMode(value)
	case "kappa":
		s.r.Kappa = number()
	case "max_age":
		s.l.MaxAge = span()
	case "compute_age":
		s.c.Age = span()
	case "all":
		s.all = true
	case "attention_off":
		s.m.AttentionOff = true
	default:
		err = fmt.Errorf("unknown argument")
	}
	return err
}

// inWords shows hybrid only where the script is about it.
func inWords(d Decision, all, hybrid bool) string {
	var b strings.Builder
	for _, p := range d.Modes {
		if p.Refusal == RefusalNotBuilt || p.Mode == ModeHybrid && !hybrid {
			continue
		}
		fmt.Fprintf(&b, "%-10v", p.Mode)
		if p.Priced {
			fmt.Fprintf(&b, "%.5f s", p.Seconds)
			if p.P95Seconds > 0 {
				fmt.Fprintf(&b, " (sigma %.5f, P95 %.5f)", p.SigmaSeconds, p.P95Seconds)
			}
		} else {
			b.WriteString("not priced")
		}
		if p.Bytes > 0 {
			fmt.Fprintf(&b, ", %v", p.Bytes)
		}
		if p.Tokens > 0 {
			fmt.Fprintf(&b, ", %d tokens to prefill", p.Tokens)
		}
		if p.Split.TailTokens > 0 {
			fmt.Fprintf(&b, ", %.1f tokens by %.5f s and %.1f by %.5f s", p.Split.FrontTokens, p.Split.FrontSeconds, p.Split.TailTokens, p.Split.TailSeconds)
		}
		if !p.Eligible {
			fmt.Fprintf(&b, "; refused (%v)", p.Refusal)
		}
		if p.Reason != "" {
			fmt.Fprintf(&b, ": %s", p.Reason)
		}
		b.WriteByte('\n')
		for _, t := range p.Terms {
			if t.Seconds == 0 && !all {
				continue
			}
			fmt.Fprintf(&b, "  %-18s%.5f  %s\n", t.Name, t.Seconds, t.Note)
		}
	}
	fmt.Fprintf(&b, "winner %v, runner-up %v, margin %.5f s, %.4f\n", d.Winner, d.RunnerUp, d.MarginSeconds, d.MarginRatio)
	if d.RankedByP95 {
		b.WriteString("ranked by P95\n")
	}
	if d.Confidence > 0 && (hybrid || d.Held) {
		fmt.Fprintf(&b, "confidence %.4f\n", d.Confidence)
	}
	if d.Held {
		b.WriteString("held\n")
	}
	if d.Unconfirmed {
		b.WriteString("unconfirmed\n")
	}
	if d.DeadlineMissed {
		b.WriteString("deadline missed\n")
	}
	fmt.Fprintf(&b, "link %s\n%s\n", d.LinkSource, d.Reason)
	return b.String()
}

// Ties go to what moves nothing: recompute, then redirect, then fetch.
func TestDecideTies(t *testing.T) {
	t.Parallel()
	// All three take exactly 1 s.
	r := Request{MissingBytes: 125_000_000, RoundTrips: -1, PrefixTokens: 1000, Redirect: Redirect{Allowed: true, ExpectedTurns: 1, DeltaRTT: time.Second}}
	c := Compute{SecondsPerToken: 1e-3}
	l := Link{RTT: ms, Goodput: 1e9, WindowPackets: -1}
	d, err := Decide(r, Model{}, c, l)
	if err != nil || d.Winner != ModeRecompute || d.RunnerUp != ModeRedirect || d.MarginSeconds != 0 || d.MarginRatio != 0 {
		t.Errorf("%v over %v by %v (%v), %v", d.Winner, d.RunnerUp, d.MarginSeconds, d.MarginRatio, err)
	}
	c.PrefillUnavailable = true
	d, err = Decide(r, Model{}, c, l)
	if err != nil || d.Winner != ModeRedirect || d.RunnerUp != ModeFetch {
		t.Errorf("%v over %v, %v", d.Winner, d.RunnerUp, err)
	}
}

func TestDecideShowsUnbuiltModes(t *testing.T) {
	t.Parallel()
	s := newScript()
	s.r.PrefixTokens = 1000
	for _, only := range []Mode{ModeNone, ModeHybrid, ModeBackground} {
		s.r.Only = only
		d, err := Decide(s.r, s.m, s.c, s.l)
		if err != nil {
			t.Fatal(err)
		}
		if len(d.Modes) != 5 {
			t.Fatalf("%d modes, want 5", len(d.Modes))
		}
		for i, p := range d.Modes {
			if p.Mode != Mode(i+1) {
				t.Errorf("plan %d is %v", i, p.Mode)
			}
			if p.Mode == ModeHybrid && (p.Eligible || !p.Priced || p.Refusal != RefusalUnsupported) {
				t.Errorf("%+v, want priced, and not for this engine", p)
			}
			if p.Mode == ModeBackground && (p.Eligible || p.Priced || p.Refusal != RefusalNotBuilt) {
				t.Errorf("%+v, want not built", p)
			}
		}
		if (only == ModeNone) != (d.Winner == ModeFetch) {
			t.Errorf("only %v: winner %v", only, d.Winner)
		}
	}
	if _, ok := (Decision{}).Plan(ModeFetch); ok {
		t.Error("the zero decision has a plan")
	}
	if _, ok := (ModePlan{}).Term(TermRTT); ok {
		t.Error("the zero plan has a term")
	}
}
