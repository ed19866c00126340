package goodput

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A number that did not come over the link is never said to be set by the link, whatever share of its rate it makes.
func TestJudgeNeverBlamesTheLink(t *testing.T) {
	for _, tc := range []struct {
		name    string
		wire    int64
		share   float64
		want    string
		maxRate float64
		warned  bool
	}{
		{name: "all of it crossed", wire: 1_050_000_000, share: 0.9, want: LimitLink},
		{name: "traffic unknown", wire: 0, share: 0.9, want: LimitLink},
		{name: "bytes were there", wire: 1_000_000, share: 0.9, want: LimitUnknown, warned: true},
		{name: "bytes were there, at the rate that was asked for", wire: 1_000_000, share: 0.9, maxRate: 8e9, want: LimitUnknown, warned: true},
		{name: "faster than the link", wire: 1_050_000_000, share: 3, want: LimitUnknown, warned: true},
		{name: "slower", wire: 1_050_000_000, share: 0.5, want: LimitUnknown},
		{name: "the rate that was asked for", wire: 1_050_000_000, share: 0.9, maxRate: 8e9, want: LimitMaxRate},
	} {
		f := &ferry{cfg: DaemonsConfig{MaxRate: tc.maxRate}}
		o := &Outcome{Runs: []*Measure{{Bytes: 3e9 / 2, CodedBytes: 1e9, Seconds: 1, GoodputBps: 8e9, EffectiveBps: 12e9, WireBytes: tc.wire, daemonCPU: [2]float64{-1, -1}}}, GoodputBps: 8e9, EffectiveBps: 12e9, LinkShare: &tc.share}
		f.judge(o)
		if o.LimitedBy != tc.want || (len(o.Warnings) > 0) != tc.warned || o.Why == "" {
			t.Errorf("%s: limited by %s (%s), warnings %v; want %s", tc.name, o.LimitedBy, o.Why, o.Warnings, tc.want)
		}
	}
}

// stubbornDaemon answers UnregisterEngine with one error after another, the last of them again and again.
type stubbornDaemon struct {
	pb.UnimplementedEngineServiceServer
	answers []codes.Code
	asked   []*pb.UnregisterEngineRequest
}

func (d *stubbornDaemon) UnregisterEngine(_ context.Context, req *pb.UnregisterEngineRequest) (*pb.UnregisterEngineResponse, error) {
	code := d.answers[min(len(d.asked), len(d.answers)-1)]
	d.asked = append(d.asked, req)
	if code == codes.OK {
		return &pb.UnregisterEngineResponse{}, nil
	}
	return nil, status.Error(code, "because")
}

// An arena that is still in use is asked for again; one that stays is named; one that is gone is no matter.
func TestUnregister(t *testing.T) {
	for _, tc := range []struct {
		name    string
		answers []codes.Code
		asked   int
		want    string
	}{
		{"at once", []codes.Code{codes.OK}, 1, ""},
		{"in use for a moment", []codes.Code{codes.FailedPrecondition, codes.FailedPrecondition, codes.OK}, 3, ""},
		{"the daemon restarted", []codes.Code{codes.NotFound}, 1, ""},
		{"the daemon is gone", []codes.Code{codes.Unavailable}, 1, ""},
		{"an older release", []codes.Code{codes.Unimplemented}, 1, "release"},
		{"something else", []codes.Code{codes.Internal}, 1, "because"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &stubbornDaemon{answers: tc.answers}
			srv := grpc.NewServer()
			pb.RegisterEngineServiceServer(srv, d)
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- srv.Serve(l) }() // ends with Stop
			t.Cleanup(func() { srv.Stop(); <-done })
			e, err := dialEngine(socket)
			if err != nil {
				t.Fatal(err)
			}
			e.id, e.arenaID = "e", "a"
			ended, cancel := context.WithCancel(t.Context())
			cancel() // an interrupted run cleans up, too
			why := e.unregister(ended)
			if (why == "") != (tc.want == "") || why != "" && !strings.Contains(why, tc.want) {
				t.Errorf("says %q, want %q", why, tc.want)
			}
			if again := e.unregister(ended); again != "" || len(d.asked) != tc.asked || d.asked[0].GetEngineId() != "e" || d.asked[0].GetArenaId() != "a" {
				t.Errorf("asked %v, then said %q", d.asked, again)
			}
			if err := e.close(); err != nil {
				t.Error(err)
			}
		})
	}
}
