package planner

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fields lists the fields of every InputError in a joined error.
func fields(err error) []string {
	if e, ok := err.(*InputError); ok { //nolint:errorlint // walks the tree itself
		return []string{e.Field}
	}
	var out []string
	if j, ok := err.(interface{ Unwrap() []error }); ok { //nolint:errorlint // walks the tree itself
		for _, e := range j.Unwrap() {
			out = append(out, fields(e)...)
		}
	}
	return out
}

func TestDecideJoinsEveryFault(t *testing.T) {
	t.Parallel()
	nan, inf := math.NaN(), math.Inf(1)
	r := Request{
		PrefixTokens: -1, PresentTokens: 5, MissingBytes: math.MinInt64, RoundTrips: nan,
		Redirect: Redirect{ExpectedTurns: inf}, Only: 17, Previous: -1, Kappa: nan,
	}
	m := Model{BytesPerToken: -1, BlockTokens: -1, ParamsActive: nan, Layers: -1, QueryHeads: -1, AttnHeadDim: inf}
	c := Compute{PeakFLOPS: 0.5, MFU: 1.5, SecondsPerToken: -1, FixedSeconds: nan, QueueSeconds: -1, Spread: -0.1, Age: -1, Queue: &Queue{Utilization: nan}}
	l := Link{
		RTT: -1, Goodput: Rate(nan), PriorGoodput: Rate(inf), Age: -time.Second, Stripes: -1, WindowPackets: math.MinInt64,
		PacketBytes: 1 << 20, InitialWindowPackets: -1, EgressBacklog: -1, Queue: &Queue{ServiceRate: -1}, FixedSeconds: inf, Spread: nan,
	}
	d, err := Decide(r, m, c, l)
	want := []string{
		"Request.PrefixTokens", "Request.PresentTokens", "Request.MissingBytes", "Request.RoundTrips",
		"Request.Redirect.ExpectedTurns", "Request.Only", "Request.Previous", "Request.Kappa",
		"Model.BytesPerToken", "Model.BlockTokens", "Model.ParamsActive", "Model.Layers", "Model.QueryHeads", "Model.AttnHeadDim",
		"Compute.PeakFLOPS", "Compute.MFU", "Compute.SecondsPerToken", "Compute.FixedSeconds", "Compute.QueueSeconds", "Compute.Spread", "Compute.Age",
		"Compute.Queue.ServiceRate", "Compute.Queue.Utilization",
		"Link.RTT", "Link.FixedSeconds", "Link.Spread", "Link.Goodput", "Link.PriorGoodput", "Link.Age", "Link.Stripes", "Link.WindowPackets", "Link.PacketBytes",
		"Link.InitialWindowPackets", "Link.EgressBacklog", "Link.Queue.ServiceRate",
	}
	if diff := cmp.Diff(want, fields(err)); diff != "" {
		t.Errorf("fields at fault (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Decision{}, d); diff != "" {
		t.Errorf("a decision beside an error:\n%s", diff)
	}
}

func TestEvaluateBaseJoinsEveryFault(t *testing.T) {
	t.Parallel()
	_, err := EvaluateBase(BasePreset{}, BaseInput{})
	want := []string{
		"BaseInput.BytesPerToken", "BaseInput.Params", "BaseInput.PeakFLOPS", "BaseInput.MFU", "BaseInput.RTT",
		"BaseInput.Goodput", "BaseInput.PrefixTokens",
	}
	if diff := cmp.Diff(want, fields(err)); diff != "" {
		t.Errorf("fields at fault (-want +got):\n%s", diff)
	}
	_, err = EvaluateBase(UtilizationPreset(), BaseInput{ComputeUtilization: 1, FetchServiceRate: math.NaN(), RTT: -1})
	want = []string{"BaseInput.RTT", "BaseInput.FetchServiceRate", "BaseInput.ComputeUtilization"}
	if diff := cmp.Diff(want, fields(err)); diff != "" {
		t.Errorf("fields at fault (-want +got):\n%s", diff)
	}
	if _, err = EvaluateBase(UtilizationPreset(), BaseInput{ComputeUtilization: -1}); err != nil {
		t.Errorf("an idle compute queue: %v", err)
	}
}

func TestInputErrorNamesValueAndFix(t *testing.T) {
	t.Parallel()
	_, err := Decide(Request{PrefixTokens: 10, PresentTokens: 11}, Model{}, Compute{}, Link{})
	e, ok := errors.AsType[*InputError](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	const want = "planner: Request.PresentTokens is 11: must be at most PrefixTokens (10); " +
		"count only tokens of this session's prefix"
	if e.Error() != want {
		t.Errorf("got  %s\nwant %s", e, want)
	}
}

func TestText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ got, want string }{
		{Bytes(0).String(), "0 B"},
		{Bytes(1023).String(), "1023 B"},
		{Bytes(327_680).String(), "320 KiB"},
		{Bytes(2_621_440_000).String(), "2.441 GiB"},
		{Rate(1e9).String(), "1 Gbps"},
		{Rate(1.6594e9).String(), "1.659 Gbps"},
		{Rate(250e6).String(), "250 Mbps"},
		{Rate(5e12).String(), "5 Tbps"},
		{ModeHybrid.String(), "hybrid"},
		{Mode(-1).String(), "mode(-1)"},
		{RefusalNotBuilt.String(), "not_built"},
		{RefusalUnsupported.String(), "unsupported"},
		{RefusalUncertain.String(), "uncertain"},
		{Refusal(99).String(), "refusal(99)"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
	for m := ModeNone; m <= ModeBackground; m++ {
		if got, err := ParseMode(m.String()); got != m || err != nil {
			t.Errorf("ParseMode(%q) = %v, %v", m.String(), got, err)
		}
	}
	if got, err := ParseMode("auto"); got != ModeNone || err != nil {
		t.Errorf("ParseMode(auto) = %v, %v", got, err)
	}
	if _, err := ParseMode("teleport"); len(fields(err)) != 1 {
		t.Errorf("ParseMode(teleport): %v", err)
	}
	for r := RefusalNone; r <= RefusalUncertain; r++ {
		if int(r) >= len(refusalNames) || refusalNames[r] == "" {
			t.Errorf("refusal %d has no name", r)
		}
	}
}

func TestRound(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		x        float64
		decimals int
		want     float64
	}{
		{0.353892, 5, 0.35389},
		{353.8928, 2, 353.89},
		{2.5, 0, 3},
		{-2.5, 0, -3},
		{1.25, -3, 1},
		{0, 5, 0},
		{math.Inf(1), 5, math.Inf(1)},
		{1e300, 15, 1e300},
		{0.125, 99, 0.125},
	} {
		if got := Round(tc.x, tc.decimals); got != tc.want {
			t.Errorf("Round(%v, %d) = %v, want %v", tc.x, tc.decimals, got, tc.want)
		}
	}
	if !math.IsNaN(Round(math.NaN(), 3)) {
		t.Error("NaN does not stay NaN")
	}
}
