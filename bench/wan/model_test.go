package wan

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	tests := []struct {
		in   string
		want Model
		out  string
	}{
		{"", Model{}, "rtt=0s,rate=unlimited,loss=0"},
		{"rtt=70ms,rate=100Mbps,loss=0", Model{RTT: 70 * time.Millisecond, Rate: 1e8}, "rtt=70ms,rate=100Mbps,loss=0"},
		{" loss=0.1% , rate = 1.5 gbps,rtt=1s", Model{RTT: time.Second, Rate: 1.5e9, Loss: 0.001}, "rtt=1s,rate=1.5Gbps,loss=0.001"},
		{"rate=64000", Model{Rate: 64000}, "rtt=0s,rate=64kbps,loss=0"},
		{"rate=unlimited,queue=unlimited,mtu=unlimited", Model{QueueBytes: -1, MTU: -1}, "rtt=0s,rate=unlimited,loss=0,queue=unlimited,mtu=unlimited"},
		{
			"jitter=1ms,queue=256KiB,burst=0.001/0.25/0.8,seed=7,mtu=1400",
			Model{Jitter: time.Millisecond, QueueBytes: 256 << 10, Burst: &GilbertElliott{0.001, 0.25, 0.8}, Seed: 7, MTU: 1400},
			"rtt=0s,rate=unlimited,loss=0,jitter=1ms,queue=256KiB,burst=0.001/0.25/0.8,seed=7,mtu=1400",
		},
		{"burst=0.1%/25%", Model{Burst: &GilbertElliott{PGoodToBad: 0.001, PBadToGood: 0.25}}, "rtt=0s,rate=unlimited,loss=0,burst=0.001/0.25"},
		{"burst=0.5/0.5/0", Model{Burst: &GilbertElliott{0.5, 0.5, -1}}, "rtt=0s,rate=unlimited,loss=0,burst=0.5/0.5/-1"},
		{"queue=1.5kB,mtu=9000", Model{QueueBytes: 1500, MTU: 9000}, "rtt=0s,rate=unlimited,loss=0,queue=1500,mtu=9000"},
	}
	for _, tt := range tests {
		got, err := Parse(tt.in)
		if err != nil {
			t.Errorf("Parse(%q): %v", tt.in, err)
			continue
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("Parse(%q) (-want +got):\n%s", tt.in, d)
		}
		if got.String() != tt.out {
			t.Errorf("Parse(%q).String() = %q, want %q", tt.in, got.String(), tt.out)
		}
		again, err := Parse(got.String())
		if d := cmp.Diff(got, again); err != nil || d != "" {
			t.Errorf("Parse(%q): %v\n%s", got.String(), err, d)
		}
	}
}

func TestParseErrors(t *testing.T) {
	tests := []struct{ in, want string }{
		{"rtt", `want key=value with a key among rtt, rate`},
		{"delay=3ms", `unknown key "delay": known keys are rtt, rate, loss, jitter, queue, burst, seed, mtu`},
		{"rtt=70", "want a duration such as 70ms"},
		{"rtt=-1ms", "rtt -1ms: want 0 to 1h"},
		{"rate=fast", "rate=fast: not a number; want a rate such as 100Mbps"},
		{"rate=-1", "rate -1: want 1 bps"},
		{"loss=2", "loss 2: want a probability"},
		{"loss=NaN", "not a number"},
		{"queue=1.5", "not a whole number of bytes"},
		{"queue=-1", "out of range"},
		{"burst=0.1", "want good-to-bad/bad-to-good"},
		{"burst=0/0.5", "good-to-bad probability 0: want above 0"},
		{"seed=-1", "want an unsigned number"},
		{"mtu=20", "mtu 20: want above 28"},
		{"rtt=1ms,rtt=2ms", `key "rtt" is given twice`},
		{strings.Repeat("x", 5000), "at most 1024"},
	}
	for _, tt := range tests {
		_, err := Parse(tt.in)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Parse(%.40q) = %v, want an error with %q", tt.in, err, tt.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("rtt=70ms,rate=100Mbps,loss=0")
	f.Add("jitter=1ms,queue=256KiB,burst=0.001/0.25/0.8,seed=7,mtu=1400")
	f.Add("rate=0.1Tbps,mtu=1024")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := Parse(s)
		if err != nil {
			return
		}
		if err := m.Validate(); err != nil {
			t.Fatalf("Parse(%q) is not valid: %v", s, err)
		}
		again, err := Parse(m.String())
		if err != nil {
			t.Fatalf("Parse(%q), which is %q: %v", m.String(), s, err)
		}
		if d := cmp.Diff(m, again); d != "" {
			t.Fatalf("%q -> %q:\n%s", s, m.String(), d)
		}
	})
}

func TestDefaults(t *testing.T) {
	tests := []struct {
		name      string
		in        Model
		queue     int64
		mtu       int
		lossInBad float64
	}{
		{"one BDP", Model{RTT: 70 * time.Millisecond, Rate: 1e8}, 875000, 1500, 0},
		{"twenty packets", Model{RTT: time.Millisecond, Rate: 1e6, MTU: 1000}, 20000, 1000, 0},
		{"unlimited", Model{Rate: 1, QueueBytes: -1, MTU: -1}, math.MaxInt64, math.MaxInt, 0},
		{"burst loses all", Model{Burst: &GilbertElliott{0.5, 0.5, 0}}, 30000, 1500, 1},
		{"burst loses none", Model{Burst: &GilbertElliott{0.5, 0.5, -1}}, 30000, 1500, 0},
	}
	for _, tt := range tests {
		got := tt.in.withDefaults()
		if got.QueueBytes != tt.queue || got.MTU != tt.mtu {
			t.Errorf("%s: queue %d mtu %d, want %d and %d", tt.name, got.QueueBytes, got.MTU, tt.queue, tt.mtu)
		}
		if got.Burst != nil && got.Burst.LossBad != tt.lossInBad {
			t.Errorf("%s: loss in the bad state %v, want %v", tt.name, got.Burst.LossBad, tt.lossInBad)
		}
	}
}
