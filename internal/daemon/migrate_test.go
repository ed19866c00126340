package daemon

import (
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A whole migration between two daemons over 1 Gbps x 70 ms: 128 MiB of the reference layout, cold and then warm.
func TestMigrateVirtualTime(t *testing.T) {
	for _, tc := range []struct {
		name  string
		loss  float64
		share float64 // least warm goodput over the link's rate, 0 for none
	}{
		{"clean", 0, 0.75},
		{"lossy", 1e-4, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				model := wan.Model{RTT: 70 * time.Millisecond, Rate: 1e9, Loss: tc.loss, Seed: 1}
				f := newFleet(t, model, "a", "b")
				blocks, share := 26, tc.share // 130 MiB
				if raceEnabled {
					blocks, share = 4, 0 // 20 MiB: the detector makes the cryptography ten times slower
				}
				ea := f.nodes["a"].register("e", bigLayout(), int64(2*blocks)*5<<20)
				eb := f.nodes["b"].register("e", bigLayout(), int64(2*blocks)*5<<20)
				var last *pb.MigrationReport
				for _, id := range []string{"cold", "warm"} {
					keys := chain(id, blocks)
					ea.write("", keys)
					ea.publish("", id, keys, int64(blocks)*16+3)
					rep := f.nodes["b"].mustMigrate(request(id), pb.MigrationState_MIGRATION_STATE_COMMITTED)
					if rep.GetPages() != int64(blocks)*80 || rep.GetBytes() != int64(blocks)*5<<20 || rep.GetTailTokens() != 3 || rep.GetOwnership() != pb.Ownership_OWNERSHIP_MOVED {
						t.Errorf("report %v", rep)
					}
					eb.check("", keys)
					last = rep
				}
				got := float64(last.GetBytes()) * 8 / last.GetTransfer().AsDuration().Seconds() / model.Rate
				t.Logf("loss %g: warm %v, %.3f of the link", tc.loss, last.GetTransfer().AsDuration(), got)
				if got < share {
					t.Errorf("warm goodput is %.3f of the link, want %.2f", got, share)
				}
				f.settle()
			})
		})
	}
}
