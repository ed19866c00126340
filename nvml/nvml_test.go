package nvml

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOpenSaysWhyThereIsNothing(t *testing.T) {
	t.Parallel()
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	snap, err := s.Sample(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := Snapshot{State: StateUnavailable, Reason: "built without a driver binding"}
	if diff := cmp.Diff(want, snap); diff != "" {
		t.Errorf("snapshot (-want +got):\n%s", diff)
	}
	if got, want := snap.String(), "unavailable: built without a driver binding"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := s.Sample(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("after close: %v, want ErrClosed", err)
	}
}

func TestSampleReturnsTheCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("region is draining")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if _, err := Unavailable("off").Sample(ctx); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

func TestReading(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		r      Reading[uint64]
		value  uint64
		ok     bool
		reason string
		text   string
	}{
		{"zero value", Reading[uint64]{}, 0, false, "not sampled", "unavailable: not sampled"},
		{"an observed zero", Available[uint64](0), 0, true, "", "0"},
		{"a value", Available[uint64](1 << 30), 1 << 30, true, "", "1073741824"},
		{"missing", Missing[uint64]("not supported by this GPU"), 0, false, "not supported by this GPU", "unavailable: not supported by this GPU"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			v, ok := tc.r.Get()
			if v != tc.value || ok != tc.ok || tc.r.Reason() != tc.reason || tc.r.String() != tc.text {
				t.Errorf("%v, %v, %q, %q", v, ok, tc.r.Reason(), tc.r)
			}
			if (tc.r.State() == StateAvailable) != tc.ok {
				t.Errorf("state %v", tc.r.State())
			}
		})
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ got, want string }{
		{Snapshot{}.String(), "unavailable: not sampled"},
		{Snapshot{State: StateAvailable, Driver: "580.1", GPUs: make([]GPU, 8)}.String(), "available: 8 GPU(s), driver 580.1"},
		{GPU{}.Utilization.String(), "unavailable: not sampled"},
		{StateUnavailable.String(), "unavailable"},
		{StateAvailable.String(), "available"},
		{State(7).String(), "state(7)"},
		{Throttle(0).String(), "none"},
		{(ThrottlePower | ThrottleThermal).String(), "power|thermal"},
		{(ThrottleOther | 1<<30).String(), "other|0x40000000"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}
