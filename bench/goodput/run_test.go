package goodput

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

func model(t *testing.T, s string) wan.Model {
	t.Helper()
	m, err := wan.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// inBubble runs in virtual time, where the machine's load changes nothing.
func inBubble(t *testing.T, cfg Config) (res *Result) {
	t.Helper()
	cfg.virtual = true
	synctest.Test(t, func(t *testing.T) {
		var err error
		if res, err = Run(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	})
	return res
}

func TestCleanLink(t *testing.T) {
	res := inBubble(t, Config{WAN: model(t, "rtt=10ms,rate=200Mbps,loss=0"), Bytes: 16 << 20, PagesPerBlock: 16, CutFor: 300 * time.Millisecond})
	o := res.Best()
	if res.Interrupted || o == nil || len(o.Runs) != 6 || o.Cold == nil || o.Bytes != 16<<20 || o.Blocks != 16 || o.BlockBytes != 1<<20 {
		t.Fatalf("result %+v, outcome %+v", res, o)
	}
	// Headers of QUIC, UDP and IP leave 0.957 of the rate at best (docs of package transfer), the request's round trip less.
	if *o.LinkShare < 0.6 || *o.LinkShare > 0.957 {
		t.Errorf("link share %.3f", *o.LinkShare)
	}
	if *o.LinkShare >= 0.75 && o.LimitedBy != LimitLink {
		t.Errorf("limited by %s: %s", o.LimitedBy, o.Why)
	}
	// Pages are BF16 values, which Huffman takes to a little over two thirds.
	if r := o.EffectiveBps / o.GoodputBps; r < 1.4 || r > 1.55 || o.RampSeconds == nil || *o.RampSeconds < 0.1 || *o.RampSeconds > 0.5 {
		t.Errorf("effective %v of %v, ramp %v", o.EffectiveBps, o.GoodputBps, text(o.RampSeconds, "%v"))
	}
	// A chunk of 1 MiB takes 42 ms at 200 Mbit/s, and half a round trip.
	if l := o.ChunkLatency; l == nil || l.P50 < 0.047 || l.P99 < l.P50 || l.P99 > o.Runs[0].Seconds*1.2 {
		t.Errorf("latency %+v", l)
	}
	if o.RTT == nil || o.RTT.Min < 0.010 || o.RTT.Smoothed < o.RTT.Min || o.RTT.Min > 0.030 {
		t.Errorf("rtt %+v", o.RTT)
	}
	for _, m := range o.Runs {
		if m.WireBytes <= m.CodedBytes || m.CodedBytes >= m.Bytes || !m.Complete || m.Bytes != o.Bytes || *m.PacketsSent < m.CodedBytes/1280 {
			t.Errorf("run %+v", m)
		}
	}
	if c := o.ResumeCost; c == nil || c.CutSeconds != 0.3 || c.Bytes < 0 || c.Bytes > o.Bytes || c.Seconds < -0.2 || c.Seconds > 3 {
		t.Errorf("resume cost %+v", c)
	}
	checkFile(t, res)
}

func TestLossyLinkInTurns(t *testing.T) {
	var stages []string
	res := inBubble(t, Config{
		WAN: model(t, "rtt=20ms,rate=200Mbps,loss=1e-3,seed=1"), Bytes: 8 << 20, PagesPerBlock: 16, Stripes: []int{1, 4}, Repeats: 2, Warmup: -1,
		Progress: func(p Progress) {
			if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
				stages = append(stages, p.Stage)
			}
			if p.Done > p.Total {
				panic("more done than there is")
			}
		},
	})
	want := []string{"1 stripe, repeat 1 of 2", "4 stripes, repeat 1 of 2", "4 stripes, repeat 2 of 2", "1 stripe, repeat 2 of 2"}
	if diff := cmp.Diff(want, stages); diff != "" {
		t.Errorf("turns (-want +got):\n%s", diff)
	}
	if len(res.Configurations) != 2 {
		t.Fatalf("configurations %+v", res.Configurations)
	}
	for _, o := range res.Configurations {
		if o.Cold != nil || *o.Loss < 1e-4 || *o.Loss > 0.1 || *o.RetransmittedPackets < 1 || *o.LinkShare > 0.957 {
			t.Errorf("%d stripes: loss %v, resent %v, share %v", o.Stripes, *o.Loss, *o.RetransmittedPackets, *o.LinkShare)
		}
		for _, m := range o.Runs {
			if !m.Complete || m.Bytes != 8<<20 {
				t.Errorf("run %+v", m)
			}
		}
	}
	f := checkFile(t, res)
	for _, name := range []string{"goodput/stripes=1", "goodput/stripes=4"} {
		if m, ok := f.Metric(name); !ok || len(m.Samples) != 2 || m.Better != results.Higher {
			t.Errorf("metric %s: %+v", name, m)
		}
	}
}

func TestColdAndWindowLimit(t *testing.T) {
	// One connection has at most 12.8 MB in flight: 1.02 Gbit/s at 100 ms. Nothing near it is reached in this short a transfer.
	res := inBubble(t, Config{WAN: model(t, "rtt=100ms,rate=2Gbps,loss=0"), Bytes: 4 << 20, PagesPerBlock: 16, Stripes: []int{1}, Repeats: 2, Cold: true})
	o := res.Best()
	if o.LimitedBy != LimitWindow {
		t.Errorf("limited by %s: %s", o.LimitedBy, o.Why)
	}
	for _, m := range o.Runs {
		if r := m.Seconds / o.Cold.Seconds; r < 0.8 || r > 1.25 { // all of them start alike
			t.Errorf("cold transfers took %v and %v s", m.Seconds, o.Cold.Seconds)
		}
	}
}

// A failure in the middle keeps the repeats that were finished: they come beside the error, marked as not all.
func TestFailureKeepsRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{
			WAN: model(t, "rtt=10ms,rate=100Mbps,loss=0"), Bytes: 1 << 20, PagesPerBlock: 4, Stripes: []int{2}, Repeats: 4, Cold: true, virtual: true,
		}.withDefaults()
		var r *rig
		cfg.Progress = func(p Progress) {
			if strings.Contains(p.Stage, "repeat 2") && p.Done >= 3<<20 { // the warm-up and two repeats
				_ = r.net.Close()
			}
		}
		var err error
		if r, err = newRig(cfg); err != nil {
			t.Fatal(err)
		}
		res, err := r.run(t.Context())
		if err == nil || res == nil || res.Failure == "" || !strings.Contains(err.Error(), res.Failure) || res.Interrupted {
			t.Fatalf("result %+v, error %v", res, err)
		}
		if o := res.Best(); o == nil || len(o.Runs) != 2 || !o.Runs[1].Complete {
			t.Errorf("outcome %+v", o)
		}
		f := checkFile(t, res)
		if !f.Interrupted || !strings.Contains(strings.Join(f.Warnings, " "), "repeats are missing") {
			t.Errorf("interrupted %v, warnings %v", f.Interrupted, f.Warnings)
		}
	})
	// With nothing measured there is nothing to keep.
	synctest.Test(t, func(t *testing.T) {
		r, err := newRig(Config{WAN: model(t, "rtt=10ms,rate=100Mbps,loss=0"), Bytes: 1 << 20, PagesPerBlock: 4, virtual: true}.withDefaults())
		if err != nil {
			t.Fatal(err)
		}
		_ = r.net.Close()
		if res, err := r.run(t.Context()); res != nil || err == nil {
			t.Errorf("result %+v, error %v", res, err)
		}
	})
}

func TestInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name   string
		at     string // stage whose progress ends it
		bytes  int64
		runs   int
		nobody bool
	}{
		{name: "before anything", nobody: true},
		{name: "in warm-up", at: "adaptive stripes, warm-up", bytes: 1, nobody: true},
		{name: "in the first repeat", at: "adaptive stripes, repeat 1 of 3", bytes: 1, runs: 1},
		{name: "in the second repeat", at: "adaptive stripes, repeat 2 of 3", bytes: 1, runs: 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tc.at == "" {
					cancel()
				}
				var base int64
				var stage string
				res, err := Run(ctx, Config{WAN: model(t, "rtt=10ms,rate=100Mbps,loss=0"), Bytes: 8 << 20, PagesPerBlock: 16, Repeats: 3, virtual: true, Progress: func(p Progress) {
					if p.Stage != stage {
						stage, base = p.Stage, p.Done
					}
					if p.Stage == tc.at && p.Done-base >= tc.bytes {
						cancel()
					}
				}})
				if err != nil {
					t.Fatal(err)
				}
				if !res.Interrupted || (res.Best() == nil) != tc.nobody {
					t.Fatalf("result %+v", res)
				}
				if tc.nobody {
					if _, err := res.File(nil); !errors.Is(err, ErrNothing) {
						t.Errorf("file of nothing: %v", err)
					}
					return
				}
				o := res.Best()
				if len(o.Runs) != tc.runs || o.GoodputBps <= 0 || *o.LinkShare > 0.957 {
					t.Errorf("outcome %+v", o)
				}
				if partial := !o.Runs[0].Complete; partial != strings.Contains(tc.name, "first") || partial && (o.Runs[0].Bytes >= o.Bytes || len(o.Warnings) == 0) {
					t.Errorf("run %+v, warnings %v", o.Runs[0], o.Warnings)
				}
				if f := checkFile(t, res); !f.Interrupted {
					t.Error("the file is not marked as interrupted")
				}
			})
		})
	}
}

// TestRealTime holds loosely what a loaded machine can hold: of a few runs one is not held up by it, or they all say that they are.
func TestRealTime(t *testing.T) {
	var res *Result
	var o *Outcome
	for range 3 {
		var err error
		res, err = Run(t.Context(), Config{WAN: model(t, "rtt=10ms,rate=200Mbps,loss=0"), Bytes: 16 << 20, PagesPerBlock: 16, Repeats: 2})
		if err != nil {
			t.Fatal(err)
		}
		if o = res.Best(); o.LimitedBy == LimitMachine || *o.LinkShare >= 0.6 {
			break
		}
		t.Logf("link share %.3f, limited by %s: %s", *o.LinkShare, o.LimitedBy, o.Why)
	}
	if *o.LinkShare > 0.957 || *o.LinkShare <= 0 || o.LimitedBy != LimitMachine && *o.LinkShare < 0.6 {
		t.Errorf("link share %.3f, limited by %s", *o.LinkShare, o.LimitedBy)
	}
	if o.Machine.LagP99 == nil || o.Machine.CPUShare == nil || *o.Machine.CPUShare <= 0 || *o.Machine.CPUShare > 1.2 {
		t.Errorf("machine %+v", o.Machine)
	}
	f := checkFile(t, res)
	path := filepath.Join(t.TempDir(), "g.json")
	if err := f.Save(path); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), `"cpu_seconds_per_gb"`) {
		t.Errorf("saved %d bytes, %v", len(b), err)
	}
	if o.CPU.Source == nil {
		t.Skip("the profiler is in use (-cpuprofile?): the split is not tested")
	}
	if *o.CPU.Source <= 0 || *o.CPU.Destination <= 0 || *o.CPU.Shared < 0 {
		t.Errorf("cpu %s, %s, %s", text(o.CPU.Source, "%v"), text(o.CPU.Destination, "%v"), text(o.CPU.Shared, "%v"))
	}
	var total, gb float64
	for _, m := range o.Runs {
		total, gb = total+m.cpu.total, gb+m.gb()
	}
	if sum := (*o.CPU.Source + *o.CPU.Destination + *o.CPU.Shared) * gb; math.Abs(sum/total-1) > 0.01 {
		t.Errorf("the parts make %.3f s of %.3f s", sum, total)
	}
}

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  Config
		want string // "" for none
	}{
		{"small", Config{Bytes: 1, PagesPerBlock: 1, Repeats: 1, Warmup: -1}, ""},
		{"bytes", Config{Bytes: -1}, "bytes -1: must be 1 byte to 64 GiB"},
		{"page", Config{PageBytes: 5000}, "page 5000: must be 4 KiB to 4 MiB"},
		{"pages", Config{PagesPerBlock: 2000}, "pages per block 2000: must be 1 to 1024"},
		{"stripes", Config{Stripes: []int{65}}, "stripes 65: must be 1 to 64"},
		{"stripes below 0", Config{Stripes: []int{-1}}, "stripes -1: must be 1 to 64 connections, or 0"},
		{"stripes twice", Config{Stripes: []int{4, 4}}, "stripes 4: must be numbers that differ"},
		{"warmup", Config{Warmup: 101}, "warmup 101: must be at most 100"},
		{"repeats", Config{Repeats: -1}, "repeats -1: must be 1 to 1000"},
		{"cut", Config{CutFor: time.Hour}, "cut 1h0m0s: must be 0 (no cut) to 20s"},
		{"wan", Config{WAN: wan.Model{Loss: 2}}, "loss"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.cfg.Validate()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if _, rerr := Run(t.Context(), tc.cfg); tc.want != "" && rerr == nil {
				t.Error("Run took it")
			}
		})
	}
	good := DaemonsConfig{SourceSocket: "/a", DestinationSocket: "/b"}
	for _, tc := range []struct {
		name string
		edit func(*DaemonsConfig)
		want string
	}{
		{"good", func(*DaemonsConfig) {}, ""},
		{"relative", func(c *DaemonsConfig) { c.SourceSocket = "a" }, "source a: must be the absolute path"},
		{"same", func(c *DaemonsConfig) { c.DestinationSocket = "/a" }, "destination /a: must be another daemon"},
		{"slow", func(c *DaemonsConfig) { c.MaxRate = 10 }, "max rate 10: must be 1 kbps"},
		{"arena", func(c *DaemonsConfig) { c.ArenaBytes = 4096 }, "arena 4096: must be room for a block"},
		{"class", func(c *DaemonsConfig) { c.Class = 9 }, "class 9: must be interactive"},
	} {
		t.Run("daemons "+tc.name, func(t *testing.T) {
			c := good
			tc.edit(&c)
			if err := c.Validate(); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
