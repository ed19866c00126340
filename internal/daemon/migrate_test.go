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
				const blocks = 26 // 130 MiB
				ea := f.nodes["a"].register("e", bigLayout(), 2*blocks*5<<20)
				eb := f.nodes["b"].register("e", bigLayout(), 2*blocks*5<<20)
				var last *pb.MigrationReport
				for _, id := range []string{"cold", "warm"} {
					keys := chain(id, blocks)
					ea.write("", keys)
					ea.publish("", id, keys, blocks*16+3)
					rep := f.nodes["b"].mustMigrate(request(id), pb.MigrationState_MIGRATION_STATE_COMMITTED)
					if rep.GetPages() != blocks*80 || rep.GetBytes() != blocks*5<<20 || rep.GetTailTokens() != 3 || rep.GetOwnership() != pb.Ownership_OWNERSHIP_MOVED {
						t.Errorf("report %v", rep)
					}
					eb.check("", keys)
					last = rep
				}
				share := float64(last.GetBytes()) * 8 / last.GetTransfer().AsDuration().Seconds() / model.Rate
				t.Logf("loss %g: warm %v, %.3f of the link", tc.loss, last.GetTransfer().AsDuration(), share)
				if share < tc.share {
					t.Errorf("warm goodput is %.3f of the link, want %.2f", share, tc.share)
				}
				f.settle()
			})
		})
	}
}
