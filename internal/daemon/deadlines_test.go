package daemon

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Queueing, connecting and transferring have deadlines of their own, and the caller's is above all: a migration that waits in the
// source's queue for longer than the progress time-out is healthy; one that waits for longer than link.queue_timeout is given up,
// where the planner may choose again with the session's ownership; one that can't connect ends by that time-out.
func TestSeparateDeadlines(t *testing.T) {
	for name, tc := range map[string]struct {
		queue    time.Duration
		mode     pb.Mode
		deadline time.Duration
		state    pb.MigrationState
		code     Reason
		own      pb.Ownership
		low, top time.Duration
	}{
		"waits":               {time.Hour, pb.Mode_MODE_FETCH, 5 * time.Minute, committed, "", moved, 20 * time.Second, 40 * time.Second},
		"queue, forced":       {6 * time.Second, pb.Mode_MODE_FETCH, 5 * time.Minute, failed, ReasonQueued, unmoved, 6 * time.Second, 20 * time.Second},
		"queue, planner's":    {6 * time.Second, pb.Mode_MODE_UNSPECIFIED, 5 * time.Minute, recompute, "", moved, 6 * time.Second, 20 * time.Second},
		"caller's":            {time.Hour, pb.Mode_MODE_FETCH, 5 * time.Second, failed, ReasonDeadline, unmoved, 5 * time.Second, 6 * time.Second},
		"caller's, planner's": {time.Hour, pb.Mode_MODE_UNSPECIFIED, 5 * time.Second, failed, ReasonDeadline, unmoved, 5 * time.Second, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, slow, func(_ string, c *Config, _ *Parts) {
					c.Link.ProgressTimeout, c.Link.QueueTimeout = 10*time.Second, tc.queue
					c.Migration.CallTimeout = 20 * time.Second // calls and the word of the queue wait for what goes ahead, too: the path is slow and full
				})
				r.ea.session("ahead", 400) // 26 s
				keys := r.ea.session("s", 4)
				ahead := r.b.begin(request("ahead"))
				ahead.landed(8192)
				req := request("s")
				req.Mode, req.Class, req.Deadline = tc.mode, pb.TransferClass_TRANSFER_CLASS_BACKGROUND, durationpb.New(tc.deadline)
				began := time.Now()
				rep := r.b.mustEnd(req, tc.state, tc.code, tc.own)
				if d := time.Since(began); d < tc.low || d > tc.top {
					t.Errorf("ended after %v, want %v to %v", d, tc.low, tc.top)
				}
				if why := rep.GetReplanned(); (why != "") != (tc.state == recompute) {
					t.Errorf("replanned: %q", why)
				}
				if tc.state == committed {
					r.eb.check("", keys)
				}
				wantReport(t, ahead.end(), committed, "", moved)
				r.settle()
			})
		})
	}
}
