package daemon

import (
	"context"
	"testing"
	"time"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A cancel while the offer is being made, or its answer is on its way, leaves no lease at the source.
func TestCancelDuringOffer(t *testing.T) {
	for after := time.Duration(0); after < 3*fast.RTT; after += fast.RTT / time.Duration(thinned(8, 4)) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, fast, nil)
			r.ea.session("warm", 1)
			r.b.mustEnd(request("warm"), committed, "", moved) // so that the first round trip is the offer's
			r.ea.session("s", 100)
			req := request("s")
			req.SourceHint = "a"
			run := r.b.begin(req)
			id := run.id()
			time.Sleep(after)
			if _, err := r.b.mig.CancelMigration(context.Background(), &pb.CancelMigrationRequest{MigrationId: id}); err != nil {
				t.Fatal(err)
			}
			if st := run.end().GetState(); st != cancelled && st != committed {
				t.Errorf("after %v: %v", after, st)
			}
			r.settle()
		})
	}
}
