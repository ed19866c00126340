package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/bench/results"
)

// The test binary is its own end: Run starts it with this argument.
const endArgument = "-compare-end"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == endArgument {
		if err := ServeEnd(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func self(t *testing.T) []string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{path, endArgument}
}

// TestAllWays: every way moves the bytes, verified, and the result is whole; numbers are held loosely.
func TestAllWays(t *testing.T) {
	dir := t.TempDir()
	var stages []string
	res, err := Run(t.Context(), Config{Command: self(t), Bytes: 4 << 20, Repeats: 2, ProfileDir: dir, Progress: func(p Progress) {
		if len(stages) == 0 || stages[len(stages)-1] != p.Stage {
			stages = append(stages, p.Stage)
		}
		if p.Done > p.Total {
			panic("more done than there is")
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if res.Interrupted || res.Floor == nil || res.Floor.Name != nameMemory || res.Floor.CPU.Source != nil || res.Floor.CPU.Total <= 0 {
		t.Errorf("floor %+v", res.Floor)
	}
	var names []string
	for _, o := range res.Results {
		names = append(names, o.Name)
		if len(o.Runs) != 2 || o.GbpsMin <= 0 || o.GbpsMedian < o.GbpsMin || o.GbpsMax < o.GbpsMedian || o.GbpsMax > 1000 {
			t.Errorf("%s: %v..%v..%v Gbit/s of %d runs", o.Name, o.GbpsMin, o.GbpsMedian, o.GbpsMax, len(o.Runs))
		}
		if o.CPU.Source == nil || *o.CPU.Source < 0 || *o.CPU.Destination < 0 || o.CPU.Total <= 0 || o.CPU.Total > 1000 || o.LimitedBy == "" || o.Why == "" {
			t.Errorf("%s: cpu %+v, limit %q", o.Name, o.CPU, o.LimitedBy)
		}
	}
	if diff := cmp.Diff(Names(), names); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	// Rounds are interleaved and begin with another way each time.
	round := func(i int) []string {
		var out []string
		for _, s := range stages {
			if name, ok := strings.CutSuffix(s, fmt.Sprintf(", round %d of 2", i)); ok {
				out = append(out, name)
			}
		}
		return out
	}
	all := append(Names(), nameMemory)
	if diff := cmp.Diff([][]string{all, append(slices.Clone(all[1:]), all[0])}, [][]string{round(1), round(2)}); diff != "" {
		t.Errorf("rounds (-want +got):\n%s", diff)
	}
	for _, name := range []string{"kvferry-source-1", "tcp-tls-destination-2", nameMemory + "-both-1"} {
		if fi, err := os.Stat(filepath.Join(dir, name+".pprof")); err != nil || fi.Size() == 0 {
			t.Errorf("profile %s: %v", name, err)
		}
	}
	checkFile(t, res)
}

// checkFile holds the schema strictly: written flat, read back, decoded without a field to spare.
func checkFile(t *testing.T, res *Result) {
	t.Helper()
	f, err := res.File([]string{"kvferry", "bench", "compare"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := f.WriteFlat(&out); err != nil {
		t.Fatal(err)
	}
	f, err = results.Parse(out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var body Body
	if err := f.DecodeBody(&body); err != nil {
		t.Fatal(err)
	}
	for _, o := range res.Results {
		if m, ok := f.Metric("goodput/" + o.Name); !ok || m.Unit != "bps" || m.Better != results.Higher || len(m.Samples) != len(o.Runs) || math.Abs(m.Median/1e9/o.GbpsMedian-1) > 1e-9 {
			t.Errorf("metric goodput/%s: %+v", o.Name, m)
		}
		if m, ok := f.Metric("cpu/" + o.Name); !ok || m.Unit != "s/GB" || m.Better != results.Lower || math.Abs(m.Median/o.CPU.Total-1) > 1e-9 {
			t.Errorf("metric cpu/%s: %+v, total %v", o.Name, m, o.CPU.Total)
		}
	}
	// What scripts read.
	var script struct {
		Results []struct {
			Name       string   `json:"name"`
			GbpsMedian *float64 `json:"gbps_median"`
			GbpsMin    *float64 `json:"gbps_min"`
			GbpsMax    *float64 `json:"gbps_max"`
			CPU        struct {
				Source      *float64 `json:"source"`
				Destination *float64 `json:"destination"`
			} `json:"cpu_seconds_per_gb"`
		} `json:"results"`
		Ratios []Ratio `json:"ratios"`
	}
	if err := json.Unmarshal(out.Bytes(), &script); err != nil {
		t.Fatal(err)
	}
	for _, r := range script.Results {
		if r.Name == "" || r.GbpsMedian == nil || r.GbpsMin == nil || r.GbpsMax == nil || r.CPU.Source == nil || r.CPU.Destination == nil {
			t.Errorf("result %+v", r)
		}
	}
	if len(script.Results) != len(res.Results) || len(script.Ratios) != len(res.Ratios) {
		t.Errorf("%d results and %d ratios, want %d and %d", len(script.Results), len(script.Ratios), len(res.Results), len(res.Ratios))
	}
	for _, tab := range res.Tables() {
		if err := tab.Write(&out); err != nil {
			t.Error(err)
		}
	}
	if _, err := res.Plot().SVG(); err != nil {
		t.Error(err)
	}
}

// TestRatios: within rounds, against numbers by hand.
func TestRatios(t *testing.T) {
	b := &bench{cfg: Config{Bytes: 1e9}, cores: 2}
	turns := func(v ...[3]float64) (out []*Turn) {
		for i, x := range v {
			out = append(out, &Turn{Seconds: x[0], Gbps: 8 / x[0], CPUSource: x[1], CPUDestination: x[2], round: i})
		}
		return out
	}
	share := 0.5
	floor, err := findPeer(nameMemory)
	if err != nil {
		t.Fatal(err)
	}
	b.series = []*series{
		{peer: &peers[0], runs: turns([3]float64{1, 1, 0.5}, [3]float64{2, 2, 1}, [3]float64{4, 1, 0.5})},
		{peer: &peers[1], runs: turns([3]float64{2, 2, 1}, [3]float64{5, 2, 1}, [3]float64{10, 4, 2})},
		{peer: floor, runs: turns([3]float64{1, 1.5, 0}, [3]float64{1, 1.5, 0})},
	}
	b.series[1].runs[2].OthersShare = &share
	res := b.result(true)
	o := res.Results[0]
	if o.GbpsMedian != 4 || o.GbpsMin != 2 || o.GbpsMax != 8 || *o.CPU.Source != 1 || *o.CPU.Destination != 0.5 || o.CPU.Total != 1.5 || o.LimitedBy != LimitOneThread {
		t.Errorf("kvferry %+v, cpu %+v", o, o.CPU)
	}
	if res.Results[1].LimitedBy != LimitOthers || len(res.cautions()) == 0 {
		t.Errorf("quic-go-1 is limited by %s, cautions %v", res.Results[1].LimitedBy, res.cautions())
	}
	yes := true
	two, most := 2.0, 1.1
	want := []Ratio{
		{To: nameQUIC1, Quantity: QuantityGoodput, Median: 2.5, Min: 2, Max: 2.5, Aim: &two, Met: &yes, Answer: AnswerMet},
		{To: nameQUIC1, Quantity: QuantityCPU, Median: 0.5, Min: 0.25, Max: 1},
		{To: nameMemory, Quantity: QuantityCPU, Median: 1.5, Min: 1, Max: 2, Aim: &most, Answer: AnswerUnclear},
	}
	if diff := cmp.Diff(want, res.Ratios); diff != "" {
		t.Errorf("ratios (-want +got):\n%s", diff)
	}
}

// TestInterrupted: what was measured is returned; nothing is an error of File.
func TestInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name, at string
		results  int
	}{{"in the first round", nameTCP + ", round 1 of 3", 1}, {"in warm-up", nameTCP + ", warm-up 1 of 1", 0}, {"while connecting", nameTCP + ", connecting", 0}} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			res, err := Run(ctx, Config{Command: self(t), Peers: []string{NameKvferry, nameTCP}, Bytes: 1 << 20, Repeats: 3, Progress: func(p Progress) {
				if p.Stage == tc.at {
					cancel()
				}
			}})
			if err != nil {
				t.Fatal(err)
			}
			if !res.Interrupted || len(res.Results) != tc.results {
				t.Errorf("result %+v", res)
			}
			if _, err := res.File(nil); errors.Is(err, ErrNothing) != (tc.results == 0) {
				t.Errorf("file: %v", err)
			}
		})
	}
}

// TestEndFails: an end that is no end, or that cannot do what it is asked, is named.
func TestEndFails(t *testing.T) {
	_, err := Run(t.Context(), Config{Command: []string{"false"}, Peers: []string{NameKvferry}})
	if end, ok := errors.AsType[*EndError](err); !ok || end.Peer != NameKvferry || end.Role != roleSource {
		t.Errorf("error %v", err)
	}
	if _, err := Run(t.Context(), Config{Command: []string{filepath.Join(t.TempDir(), "none")}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	for name, tc := range map[string]struct{ in, want string }{
		"no way":         {`{"Role":"source","Peer":"pigeon","Bytes":1048576,"PageBytes":65536}`, "pigeon"},
		"no certificate": {`{"Role":"source","Peer":"tcp-tls","Host":"127.0.0.1","Bytes":1048576,"PageBytes":65536}`, "certificate"},
		"no JSON":        {`{`, ""},
	} {
		var out bytes.Buffer
		err := ServeEnd(strings.NewReader(tc.in), &out)
		if tc.want == "" && err == nil || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%s: answered %q, %v", name, out.String(), err)
		}
	}
}

// TestPages: a damaged page, one in another's place and one that comes twice are refused.
func TestPages(t *testing.T) {
	from, to := newMemory(2*chunkBytes, 64<<10), newMemory(2*chunkBytes, 64<<10)
	if err := from.fill(7, false); err != nil {
		t.Fatal(err)
	}
	frame := func(chunk int) []byte {
		var b bytes.Buffer
		if err := from.writeFrame(&b, chunk, make([]byte, from.frameHead())); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	land := func(b []byte) error { return newFrameReader(to).next(bytes.NewReader(b)) }
	damaged := frame(0)
	damaged[len(damaged)-1] ^= 1
	if err := land(damaged); err == nil || !strings.Contains(err.Error(), "page 15: checksum") {
		t.Errorf("a damaged page: %v", err)
	}
	to.reset()
	moved := frame(0)
	moved[3] = 1
	if err := land(moved); err == nil || !strings.Contains(err.Error(), "page 16: checksum") {
		t.Errorf("pages of another chunk: %v", err)
	}
	if err := land(frame(0)[:chunkBytes/2]); err == nil {
		t.Error("half a chunk is taken")
	}
	to.reset()
	beyond := frame(0)
	beyond[2] = 1
	if err := land(beyond); err == nil || !strings.Contains(err.Error(), "out of range") {
		t.Errorf("a chunk beyond the end: %v", err)
	}
	if err := errors.Join(land(frame(1)), land(frame(0))); err != nil {
		t.Fatal(err)
	}
	select {
	case <-to.all:
	default:
		t.Error("everything has landed, and nobody was told")
	}
	if err := land(frame(0)); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a chunk that comes again: %v", err)
	}
	if !bytes.Equal(from.b, to.b) || from.digest() != to.digest() {
		t.Error("the bytes differ")
	}
}

func TestParseStat(t *testing.T) {
	for line, want := range map[string]float64{
		"cpu  100 20 30 4000 500 6 7 8 9 10": 1.71,
		"cpu 1 2 3":                          -1, "cpu0 1 2 3 4 5 6 7 8": -1, "cpu a 2 3 4 5 6 7 8": -1, "": -1,
	} {
		got, ok := parseStat(line)
		if ok != (want >= 0) || ok && math.Abs(got-want) > 1e-12 {
			t.Errorf("%q is %v, %v; want %v", line, got, ok, want)
		}
	}
}

func TestValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*Config)
		want string // "" for none
	}{
		{"defaults", func(*Config) {}, ""},
		{"some peers", func(c *Config) { c.Peers = []string{nameHTTP2, NameKvferry} }, ""},
		{"no command", func(c *Config) { c.Command = nil }, "command empty: must be a program"},
		{"bytes", func(c *Config) { c.Bytes = -1 }, "bytes -1: must be 1 byte to 16 GiB"},
		{"page", func(c *Config) { c.PageBytes = 5000 }, "page 5000: must be 4 KiB to 1 MiB, a power of two"},
		{"warm-up", func(c *Config) { c.Warmup = 101 }, "warmup 101: must be at most 100"},
		{"repeats", func(c *Config) { c.Repeats = -1 }, "repeats -1: must be 1 to 1000"},
		{"peer", func(c *Config) { c.Peers = []string{NameKvferry, "pigeon"} }, `peer "pigeon": must be one of kvferry, quic-go-1`},
		{"peer twice", func(c *Config) { c.Peers = []string{NameKvferry, NameKvferry} }, `peer "kvferry": must be named once`},
		{"without kvferry", func(c *Config) { c.Peers = []string{nameTCP} }, `peers "tcp-tls": must be kvferry and what it is compared with`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Config{Command: []string{"x"}}
			tc.edit(&c)
			if err := c.Validate(); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}
