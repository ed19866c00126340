//go:build e2e

package goodput

import (
	"bytes"
	"context"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/demo"
	"github.com/kvferry/kvferry/bench/refengine"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

// fleet is two kvferryd processes joined by a relay of 200 Mbit/s and 20 ms.
func fleet(t *testing.T) (f *demo.Fleet, kvferry string) {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir, "../../cmd/...")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		t.Fatal(err)
	}
	var err error
	kvferry = filepath.Join(dir, "kvferry")
	f, err = demo.Start(t.Context(), demo.Config{
		Shape: refengine.ModelConfig{Layers: 2, Hidden: 32, KVHeads: 2, HeadDim: 16, FFN: 64, Vocab: 64, MaxTokens: 256},
		WAN:   &wan.Model{RTT: 20 * time.Millisecond, Rate: 200e6}, Prefix: 32, Turns: 1,
		Kvferryd: filepath.Join(dir, "kvferryd"), Kvferry: kvferry,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f, kvferry
}

func socket(r *demo.Region) string { return strings.TrimPrefix(r.Addr(), "unix://") }

func TestDaemons(t *testing.T) {
	f, kvferry := fleet(t)
	cfg := DaemonsConfig{
		SourceSocket: socket(f.East), DestinationSocket: socket(f.West), Bytes: 16 << 20, PagesPerBlock: 16, Repeats: 2, LinkRate: 200e6, ArenaBytes: 8 << 20, Seed: 3,
	}
	t.Run("groups", func(t *testing.T) { // 8 MiB arenas hold half of it
		res, err := RunDaemons(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		o := res.Best()
		if o == nil || len(o.Runs) != 2 || o.Cold == nil || o.Bytes != 16<<20 || o.Blocks != 16 || o.Stripes < 4 { // more where the machine, not the path, holds them back
			t.Fatalf("outcome %+v", o)
		}
		if len(res.Warnings) != 0 {
			t.Errorf("warnings %v: bytes were not compared?", res.Warnings)
		}
		for _, m := range o.Runs {
			if m.Bytes != o.Bytes || math.Abs(m.EffectiveBps-float64(m.Bytes)*8/m.Seconds) > 1 || math.Abs(m.GoodputBps/m.EffectiveBps-float64(m.CodedBytes)/float64(m.Bytes)) > 1e-6 {
				t.Errorf("run %+v", m)
			}
		}
		// 200 Mbit/s are slower than any codec, and the pages are as caches have them.
		if r := o.EffectiveBps / o.GoodputBps; r < 1.4 || r > 1.55 {
			t.Errorf("%.0f bit/s travelled, %.0f landed", o.GoodputBps, o.EffectiveBps)
		}
		if o.LinkShare == nil || *o.LinkShare > 1 || *o.LinkShare <= 0.05 {
			t.Errorf("link share %v", text(o.LinkShare, "%v"))
		}
		if o.Loss == nil || o.ParityBytes == nil || o.Path == nil || o.Path.GoodputBps == nil || res.params["class"] != "background" {
			t.Errorf("loss %s, path %+v, parameters %v", text(o.Loss, "%v"), o.Path, res.params)
		}
		if file := checkFile(t, res); o.CPU.Source != nil {
			if _, ok := file.Metric("cpu_source"); !ok {
				t.Error("--diff leaves processor time out")
			}
		}
		if o.RTT == nil || o.RTT.Min < 0.019 || o.CPU.Source == nil || o.CPU.Destination == nil || *o.CPU.Source <= 0 {
			t.Errorf("rtt %v, cpu %+v", o.RTT, o.CPU)
		}
		here, there := res.machine, checkFile(t, res).Remote["destination"] // both on this machine
		if there.CPU != here.CPU || there.Cores != here.Cores || there.OS != here.OS || there.Kernel != here.Kernel || there.OS == "" {
			t.Errorf("the destination's machine is %+v, this is %+v", there, here)
		}
		t.Logf("goodput %.0f, cpu %s %s, loss %s", o.GoodputBps, text(o.CPU.Source, "%.2f"), text(o.CPU.Destination, "%.2f"), text(o.Loss, "%.2g"))
	})
	t.Run("max rate", func(t *testing.T) {
		c := cfg
		c.MaxRate, c.Bytes, c.Repeats, c.Warmup = 20e6, 6<<20, 1, -1
		res, err := RunDaemons(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if o := res.Best(); o.EffectiveBps > 20e6 || o.LimitedBy == LimitMaxRate != (o.EffectiveBps >= 16e6) {
			t.Errorf("goodput %.0f with a bound of 20e6, limit %s", o.GoodputBps, o.LimitedBy)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := cfg
		c.Warmup, c.Progress = -1, func(p Progress) {
			if p.Done > 0 {
				cancel()
			}
		}
		res, err := RunDaemons(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		if !res.Interrupted {
			t.Errorf("not interrupted: %+v", res)
		}
		noneLeft(t, f)
	})
	t.Run("command", func(t *testing.T) {
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), kvferry, "bench", "goodput", "--source-addr", f.East.Addr(), "--addr", f.West.Addr(), "--source", "east-1", "--bytes", "2MiB",
			"--pages-per-block", "8", "--warmup", "0", "--repeats", "1", "--yes", "-o", "json")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil || stderr.Len() > 0 {
			t.Fatalf("%v: %s", err, stderr.String())
		}
		file, err := results.Parse(stdout.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		var body Body
		if err := file.DecodeBody(&body); err != nil || body.Form != FormDaemons || body.GoodputBps <= 0 || body.LinkShare != nil || body.Runs[0].Bytes != 2<<20 {
			t.Errorf("body %+v, %v", body, err)
		}
	})
	t.Run("sizes in turn", func(t *testing.T) { // a run never meets the arena of another
		for _, bytes := range []int64{2 << 20, 16 << 20, 1 << 20} {
			c := cfg
			c.Bytes, c.Repeats, c.Warmup, c.ArenaBytes = bytes, 1, -1, 1<<30
			res, err := RunDaemons(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if o := res.Best(); o.Bytes != bytes || res.params["group_blocks"] != int(o.Blocks) {
				t.Errorf("%d bytes moved in groups of %v of %d blocks", o.Bytes, res.params["group_blocks"], o.Blocks)
			}
			noneLeft(t, f)
		}
	})
	t.Run("wrong node", func(t *testing.T) {
		c := cfg
		c.SourceNode = "nobody"
		if _, err := RunDaemons(t.Context(), c); !isNode(err) {
			t.Errorf("error %v", err)
		}
		c = cfg
		c.DestinationSocket = filepath.Join(filepath.Dir(c.SourceSocket), ".", "east.sock")
		if _, err := RunDaemons(t.Context(), c); err == nil {
			t.Error("the same daemon twice was taken")
		}
	})
}

// noneLeft holds that the daemons have no engine of ours.
func noneLeft(t *testing.T, f *demo.Fleet) {
	t.Helper()
	for _, r := range []*demo.Region{f.East, f.West} {
		st, err := r.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range st.GetArenas() {
			if strings.HasPrefix(a.GetEngineId(), "kvferry-bench") {
				t.Errorf("%s keeps the arena of %s", r.Name, a.GetEngineId())
			}
		}
	}
}

// A daemon that dies in the middle: what was measured is printed, then the error, with its exit status; the other daemon's arena is
// given back.
func TestDaemonDies(t *testing.T) {
	f, _ := fleet(t)
	var killed bool
	res, err := RunDaemons(t.Context(), DaemonsConfig{
		SourceSocket: socket(f.East), DestinationSocket: socket(f.West), Bytes: 8 << 20, PagesPerBlock: 16, Repeats: 3, Warmup: -1,
		Progress: func(p Progress) {
			if strings.HasPrefix(p.Stage, "repeat 2") && !killed {
				killed = true
				if err := syscall.Kill(int(findDaemon(socket(f.West))), syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		},
	})
	if err == nil || res == nil || res.Failure == "" {
		t.Fatalf("result %+v, error %v", res, err)
	}
	if o := res.Best(); o == nil || len(o.Runs) != 1 || o.Runs[0].Bytes != 8<<20 {
		t.Errorf("outcome %+v", o)
	}
	if file := checkFile(t, res); !file.Interrupted || len(file.Warnings) == 0 {
		t.Errorf("interrupted %v, warnings %v", file.Interrupted, file.Warnings)
	}
	t.Logf("warnings %v, error %v", res.Warnings, err)
}

func isNode(err error) bool {
	_, ok := errors.AsType[*NodeError](err)
	return ok
}
