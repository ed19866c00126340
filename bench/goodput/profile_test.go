package goodput

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"math"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/kvferry/kvferry/bench/results"
)

// TestSplit burns known processor time under both labels and none.
func TestSplit(t *testing.T) {
	m := startCPU(true)
	if !m.profiling {
		t.Skip("the profiler is in use (-cpuprofile?)")
	}
	burn := func(seconds float64) {
		var x float64
		for end := results.ProcessCPU() + seconds; results.ProcessCPU() < end; {
			for i := range 100_000 {
				x += math.Sqrt(float64(i))
			}
		}
		_ = x
	}
	var wg sync.WaitGroup
	asEnd(t.Context(), endSource, func(context.Context) { wg.Go(func() { burn(0.6) }) }) // a goroutine inherits the label
	wg.Wait()
	asEnd(t.Context(), endDestination, func(context.Context) { burn(0.3) })
	burn(0.1)
	got := m.stop()
	if !got.split || got.total < 0.95 || got.total > 1.5 {
		t.Fatalf("split %+v", got)
	}
	for _, p := range []struct {
		name      string
		got, want float64
	}{{"source", got.source, 0.6}, {"destination", got.destination, 0.3}, {"shared", got.shared, 0.1}} {
		if math.Abs(p.got-p.want) > 0.15 {
			t.Errorf("%s %.3f s, want about %.1f", p.name, p.got, p.want)
		}
	}
	if math.Abs(got.source+got.destination+got.shared-got.total) > 1e-9 {
		t.Errorf("the parts of %+v do not make the total", got)
	}
}

// sample encodes a Sample of profile.proto with one label.
func sample(packed bool, key, text uint64, values ...uint64) []byte {
	var b, v []byte
	for _, x := range values {
		if packed {
			v = protowire.AppendVarint(v, x)
		} else {
			b = protowire.AppendVarint(protowire.AppendTag(b, sampleValue, protowire.VarintType), x)
		}
	}
	if packed {
		b = protowire.AppendBytes(protowire.AppendTag(b, sampleValue, protowire.BytesType), v)
	}
	var l []byte
	l = protowire.AppendVarint(protowire.AppendTag(l, labelKey, protowire.VarintType), key)
	l = protowire.AppendVarint(protowire.AppendTag(l, labelText, protowire.VarintType), text)
	return protowire.AppendBytes(protowire.AppendTag(b, sampleLabel, protowire.BytesType), l)
}

func encoded(samples ...[]byte) []byte {
	var b []byte
	for _, s := range samples {
		b = protowire.AppendBytes(protowire.AppendTag(b, profileSample, protowire.BytesType), s)
	}
	for _, s := range []string{"", "end", "source", "other"} { // the table comes after the samples, as in real profiles
		b = protowire.AppendString(protowire.AppendTag(b, profileStrings, protowire.BytesType), s)
	}
	return b
}

func TestLabelSums(t *testing.T) {
	raw := encoded(sample(true, 1, 2, 1, 10), sample(false, 1, 2, 1, 20), sample(true, 3, 2, 1, 5), sample(true, 1, 3, 1, 7))
	got, err := rawLabelSums(raw, "end")
	if err != nil || got["source"] != 30 || got[""] != 5 || got["other"] != 7 || len(got) != 3 {
		t.Errorf("sums %v, %v", got, err)
	}
	for name, bad := range map[string][]byte{
		"string out of range": encoded(sample(true, 1, 9, 1, 1)),
		"cut short":           raw[:len(raw)-3],
		"no tag":              {0xff},
	} {
		if _, err := rawLabelSums(bad, "end"); !errors.Is(err, errProfile) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := labelSums([]byte("no gzip"), "end"); !errors.Is(err, errProfile) {
		t.Errorf("no gzip: error %v", err)
	}
}

func FuzzLabelSums(f *testing.F) {
	var buf bytes.Buffer
	if pprof.StartCPUProfile(&buf) == nil {
		for end := time.Now().Add(30 * time.Millisecond); time.Now().Before(end); { // any sample will do
		}
		pprof.StopCPUProfile()
		if zr, err := gzip.NewReader(&buf); err == nil {
			var raw bytes.Buffer
			if _, err := raw.ReadFrom(zr); err == nil {
				f.Add(raw.Bytes())
			}
		}
	}
	f.Add(encoded(sample(true, 1, 2, 1, 10)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		sums, err := rawLabelSums(raw, "end")
		if err != nil && !errors.Is(err, errProfile) {
			t.Errorf("error %v", err)
		}
		if len(sums) > len(raw) {
			t.Errorf("%d sums of %d bytes", len(sums), len(raw))
		}
	})
}
