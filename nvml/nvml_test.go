package nvml

import (
	"encoding/json"
	"errors"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestUnavailableSaysWhy(t *testing.T) {
	t.Parallel()
	off, err := OpenWith(Config{Period: -1})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		s    Sampler
		want string
	}{
		{Unavailable("GPU readings are off"), "unavailable: GPU readings are off"},
		{Unavailable(""), "unavailable: off"},
		{off, "unavailable: sampling is off (a negative Period)"},
	} {
		snap := mustSample(t, tc.s)
		if got := snap.String(); got != tc.want || snap.Cause != CauseOff || snap.State != StateUnavailable {
			t.Errorf("%q (%v), want %q", got, snap.Cause, tc.want)
		}
		for range 2 {
			if err := tc.s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		if _, err := tc.s.Sample(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("after close: %v, want ErrClosed", err)
		}
	}
}

func TestOpenNeedsNoGPU(t *testing.T) {
	t.Parallel()
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	snap := mustSample(t, s)
	if (snap.State == StateUnavailable) != (snap.Cause != CauseNone) || (snap.State == StateUnavailable) != (snap.Reason != "") {
		t.Errorf("%+v", snap)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		cfg  Config
		want []string // parts of the error; none: it is valid
	}{
		{"zero", Config{}, nil},
		{"off", Config{Period: -1, Timeout: -1}, nil},
		{"bounds", Config{Period: time.Hour, Timeout: 10 * time.Millisecond, RetryMax: 24 * time.Hour}, nil},
		{"all wrong", Config{Period: time.Millisecond, Timeout: 2 * time.Hour, RetryMax: 25 * time.Hour, Library: "a\x00b"}, []string{"Period is 1ms", "Timeout is 2h0m0s", "RetryMax is 25h0m0s", `Library is "a\x00b"`}},
		{"retry below period", Config{RetryMax: time.Millisecond}, []string{"RetryMax is 1ms: use Period (1s)"}},
		{"negative retry", Config{RetryMax: -1}, []string{"RetryMax is -1ns"}},
		{"long library", Config{Library: strings.Repeat("x", 5000)}, []string{"(5000 bytes)"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := tc.cfg.Validate()
			if (err == nil) != (tc.want == nil) {
				t.Fatalf("got %v", err)
			}
			for _, part := range tc.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in %q", part, err)
				}
			}
			if _, openErr := OpenWith(tc.cfg); err != nil && openErr == nil {
				t.Error("OpenWith took it")
			}
		})
	}
}

func TestReading(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		r      Reading[uint64]
		value  uint64
		cause  Cause
		reason string
		text   string
	}{
		{"zero value", Reading[uint64]{}, 0, CauseNotSampled, "not sampled", "unavailable: not sampled"},
		{"an observed zero", Available[uint64](0), 0, CauseNone, "", "0"},
		{"a value", Available[uint64](1 << 30), 1 << 30, CauseNone, "", "1073741824"},
		{"missing", Missing[uint64](CauseNotSupported, "no ECC"), 0, CauseNotSupported, "no ECC", "unavailable: no ECC"},
		{"missing without text", Missing[uint64](CauseLost, ""), 0, CauseLost, "lost", "unavailable: lost"},
		{"missing without cause", Missing[uint64](CauseNone, ""), 0, CauseNotSampled, "not sampled", "unavailable: not sampled"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v, ok := tc.r.Get()
			if v != tc.value || ok != (tc.cause == CauseNone) || tc.r.Cause() != tc.cause || tc.r.Reason() != tc.reason || tc.r.String() != tc.text {
				t.Errorf("%v, %v, %v, %q, %q", v, ok, tc.r.Cause(), tc.r.Reason(), tc.r)
			}
			if (tc.r.State() == StateAvailable) != ok {
				t.Errorf("state %v", tc.r.State())
			}
		})
	}
}

func TestReadingInJSON(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		v    any
		want string
	}{
		{Available[uint64](0), `0`},
		{Available(ThrottleIdle | ThrottleSoftwarePower), `["idle","software_power"]`},
		{Available(Throttle(0)), `[]`},
		{Missing[uint64](CauseNotSupported, "no ECC"), `{"unavailable":"not_supported","reason":"no ECC"}`},
		{Reading[[]Process]{}, `{"unavailable":"not_sampled","reason":"not sampled"}`},
		{struct {
			S State
			C Cause
		}{StateLost, CauseHung}, `{"S":"lost","C":"hung"}`},
	} {
		got, err := json.Marshal(tc.v)
		if err != nil || string(got) != tc.want {
			t.Errorf("%s, %v, want %s", got, err, tc.want)
		}
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	whole, lost, instance := GPU{State: StateAvailable}, GPU{State: StateLost}, GPU{Parent: "GPU-a", State: StateAvailable}
	for _, tc := range []struct{ got, want string }{
		{Snapshot{}.String(), "unavailable: not sampled"},
		{Snapshot{State: StateAvailable, Driver: "580.1"}.String(), "available: 0 GPU(s), driver 580.1"},
		{Snapshot{State: StateAvailable, Driver: "580.1", GPUs: []GPU{whole, whole}}.String(), "available: 2 GPU(s), driver 580.1"},
		{Snapshot{State: StateAvailable, Driver: "5", GPUs: []GPU{whole, instance, lost}}.String(), "available: 2 GPU(s) of which 1 not well, 1 MIG instance(s), driver 5"},
		{Snapshot{State: StateHung, Cause: CauseHung}.String(), "hung: hung"},
		{GPU{}.Utilization.GPU.String(), "unavailable: not sampled"},
		{StateUnavailable.String() + StateAvailable.String() + StateDegraded.String() + StateLost.String() + StateHung.String(), "unavailableavailabledegradedlosthung"},
		{State(7).String(), "state(7)"},
		{Cause(-1).String(), "cause(-1)"},
		{Cause(99).String(), "cause(99)"},
		{Throttle(0).String(), "none"},
		{ThrottlePower.String(), "software_power|hardware_power_brake"},
		{(ThrottleOther | 1<<30).String(), "other|0x40000000"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
	names := map[string]bool{}
	for c := range causes {
		name := c.String()
		if name == "" || names[name] || strings.ToLower(name) != name {
			t.Errorf("cause %d is named %q", int(c), name)
		}
		names[name] = true
	}
}

// Every mask of the driver becomes the bounded set: known bits as they are, any others as one.
func TestThrottleOf(t *testing.T) {
	t.Parallel()
	if len(throttleNames) != bits.TrailingZeros32(uint32(throttleEnd)) {
		t.Fatalf("%d names for %d reasons", len(throttleNames), bits.TrailingZeros32(uint32(throttleEnd)))
	}
	for bit := range 64 {
		mask := uint64(1) << bit
		got := throttleOf(mask | 1)
		want := Throttle(mask) | ThrottleIdle
		if bit > 10 {
			want = ThrottleOther | ThrottleIdle
		}
		if got != want || got.Slows() != (bit != 0) || len(got.Names()) != bits.OnesCount32(uint32(got)) {
			t.Errorf("bit %d: %v, want %v", bit, got, want)
		}
	}
	if got := throttleOf(1<<64 - 1).Names(); !cmp.Equal(got, ThrottleNames()) {
		t.Errorf("%v", got)
	}
}

func TestClockScale(t *testing.T) {
	t.Parallel()
	none, lost := Missing[uint64](CauseNotSupported, ""), Missing[Throttle](CauseLost, "lost")
	for _, tc := range []struct {
		name    string
		now, up Reading[uint64]
		reasons Reading[Throttle]
		want    Reading[float64]
	}{
		{"not throttled", Available[uint64](1000), Available[uint64](2000), Available(Throttle(0)), Available(1.0)},
		{"idle is not throttled", Available[uint64](345), Available[uint64](2000), Available(ThrottleIdle), Available(1.0)},
		{"not throttled, clocks unknown", none, none, Available(Throttle(0)), Available(1.0)},
		{"power", Available[uint64](1500), Available[uint64](2000), Available(ThrottleSoftwarePower), Available(0.75)},
		{"at the top", Available[uint64](2000), Available[uint64](2000), Available(ThrottleOther), Available(1.0)},
		{"above the top", Available[uint64](2100), Available[uint64](2000), Available(ThrottleSoftwareThermal), Available(1.0)},
		{"idle and limited", Available[uint64](345), Available[uint64](2000), Available(ThrottleIdle | ThrottleApplicationClocks), Missing[float64](CauseNoData, "the GPU idles: its clock does not show what it would be under load")},
		{"reasons unknown", Available[uint64](345), Available[uint64](2000), lost, Missing[float64](CauseLost, "lost")},
		{"clock unknown", none, Available[uint64](2000), Available(ThrottlePower), Missing[float64](CauseNotSupported, "")},
		{"highest unknown", Available[uint64](1), none, Available(ThrottlePower), Missing[float64](CauseNotSupported, "")},
		{"no clock", Available[uint64](0), Available[uint64](2000), Available(ThrottlePower), Missing[float64](CauseInvalid, "the driver says an SM clock of 0 of 2000 Hz")},
		{"no highest", Available[uint64](1), Available[uint64](0), Available(ThrottlePower), Missing[float64](CauseInvalid, "the driver says an SM clock of 1 of 0 Hz")},
		{"zero value", Reading[uint64]{}, Reading[uint64]{}, Reading[Throttle]{}, Missing[float64](CauseNotSampled, "")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := ClockScale(GPU{Clocks: Clocks{SM: tc.now, SMMax: tc.up, Throttling: tc.reasons}})
			if diff := cmp.Diff(tc.want, got, all); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestMemoryVetoAndSpread(t *testing.T) {
	t.Parallel()
	free := GPU{Memory: Memory{Free: Available[uint64](100)}}
	for _, tc := range []struct {
		g    GPU
		need uint64
		want Reading[bool]
	}{
		{free, 0, Available(false)},
		{free, 100, Available(false)},
		{free, 101, Available(true)},
		{free, 1<<64 - 1, Available(true)},
		{GPU{}, 0, Missing[bool](CauseNotSampled, "")},
		{GPU{}.bare(StateLost, CauseLost, "gone"), 1, Missing[bool](CauseLost, "gone")},
	} {
		if diff := cmp.Diff(tc.want, MemoryVeto(tc.g, tc.need), all); diff != "" {
			t.Errorf("need %d (-want +got):\n%s", tc.need, diff)
		}
	}
	last := 0.0
	for _, u := range []float64{0, 0.25, 1} {
		got, ok := SpreadFactor(GPU{Utilization: Utilization{GPU: Available(u)}}).Get()
		if !ok || got != 1+u || got < last {
			t.Errorf("utilization %v: %v, %v", u, got, ok)
		}
		last = got
	}
	if got := SpreadFactor(GPU{}); got.Cause() != CauseNotSampled {
		t.Errorf("unknown utilization: %v", got)
	}
}

func TestFresh(t *testing.T) {
	t.Parallel()
	gpus := []GPU{{Index: 1}}
	for _, tc := range []struct {
		s    Snapshot
		want int
	}{
		{Snapshot{State: StateAvailable, Age: time.Second, GPUs: gpus}, 1},
		{Snapshot{State: StateAvailable, Age: time.Second + 1, GPUs: gpus}, 0},
		{Snapshot{State: StateHung, GPUs: gpus}, 0},
		{Snapshot{}, 0},
	} {
		if got := len(tc.s.Fresh(time.Second)); got != tc.want {
			t.Errorf("%v, age %v: %d GPUs, want %d", tc.s.State, tc.s.Age, got, tc.want)
		}
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		h      Health
		state  State
		reason string
	}{
		{"nothing known", Health{}, StateAvailable, ""},
		{"well", Health{Uncorrected: Available[uint64](0), Corrected: Available[uint64](9), LastXid: Available(Xid{}), Rows: Available(Rows{Corrected: 2, Uncorrected: 1})}, StateAvailable, ""},
		{"a program's fault", Health{LastXid: Available(Xid{Code: 31, Count: 1})}, StateAvailable, ""},
		{
			"damage",
			Health{Uncorrected: Available[uint64](1), LastXid: Available(Xid{Code: 79}), Rows: Available(Rows{Pending: true, Failed: true})},
			StateDegraded,
			"uncorrected ECC errors, a row remapping failed, a row remapping waits for a reset, a hardware or driver fault (Xid 79)",
		},
	} {
		g := GPU{Health: tc.h}
		g.judge()
		if g.State != tc.state || g.Reason != tc.reason {
			t.Errorf("%s: %v, %q", tc.name, g.State, g.Reason)
		}
	}
}

// Every reading of a GPU without readings says why, whichever fields are added.
func TestBareCoversEveryReading(t *testing.T) {
	t.Parallel()
	missing := 0
	walk := func(p cmp.Path) bool {
		f, ok := p.Last().(cmp.StructField)
		if ok && f.Name() == "cause" {
			x, _ := f.Values()
			if Cause(x.Int()) != CauseLost {
				t.Errorf("%#v has cause %v", p, Cause(x.Int()))
			}
			missing++
		}
		return false
	}
	g := GPU{Temperature: Available(1.0)}.bare(StateLost, CauseLost, "gone")
	cmp.Equal(g, g, all, cmp.FilterPath(walk, cmp.Ignore()))
	readings := 0
	g.eachReading(func(func(Cause, string)) { readings++ })
	if missing != readings || missing < 25 {
		t.Errorf("%d readings found, %d filled", missing, readings)
	}
}
