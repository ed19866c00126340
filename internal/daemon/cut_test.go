package daemon

import (
	"fmt"
	"testing"
	"time"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// TestMigrationCut cuts the path under a whole migration that the planner chose, at each of its round trips and in its transfer, both
// ways or one, raw and coded. A cut that is shorter than the time-outs costs time and nothing else. A longer one ends in RECOMPUTE
// within the progress time-out, or that of the call, and a probe: the blocks that landed stay, ownership is unmoved, or not known where
// the hand-over had been asked for; and once it is healed, migrating again moves what is missing and no more.
func TestMigrationCut(t *testing.T) {
	const progress = 8 * time.Second
	for _, codec := range []string{off, "huff"} {
		for _, at := range []string{"offer", "transfer", "hand-over"} {
			for i, lasts := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second} {
				way := []string{"both", "to the source", "to the destination"}[i%3]
				if codec != off && at != "transfer" || testing.Short() && (lasts < time.Second || at == "offer" || codec != off && i%3 == 0) {
					continue
				}
				t.Run(fmt.Sprintf("%s %s %v %s", codec, at, lasts, way), func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						r := newRig(t, slow, func(_ string, c *Config, _ *Parts) { c.Link.ProgressTimeout, c.Link.Codec = progress, codec })
						r.ea.values, r.eb.values = true, true
						keys := r.ea.session("s", 24)
						r.b.mustEnd(request("nobody"), failed, ReasonSessionNotFound, unmoved) // connects
						m := r.b.begin(auto("s"))
						switch at {
						case "transfer":
							m.landed(6 * 8192)
						case "hand-over":
							m.until(pb.MigrationState_MIGRATION_STATE_HANDING_OVER, nil)
						}
						began := time.Now()
						switch way {
						case "both":
							r.cut()
						case "to the source":
							r.net.CutOneWay(r.b.ip, r.a.ip)
						default:
							r.net.CutOneWay(r.a.ip, r.b.ip)
						}
						time.AfterFunc(lasts, r.heal)
						rep := m.end()
						took := time.Since(began)
						switch {
						case lasts <= 3*time.Second:
							wantReport(t, rep, committed, "", moved)
							// Twice the silence, as a connection's probes go, and the transfer.
							if took > 2*lasts+5*time.Second {
								t.Errorf("took %v", took)
							}
						// The call's time-out and one for connecting, each 5 s; or the transfer's, 8 s. What is on its way to a destination that
						// is not heard lands first, for as long as a progress time-out, and what a connection waits before it gives up adds to it.
						case took > 2*progress+5*time.Second && (way != "to the source" || took > 4*progress+2*time.Second):
							t.Errorf("ended after %v", took)
						case at == "transfer" && way == "to the source" && rep.GetState() == committed: // it was asked for just in time
						case at == "hand-over" || at == "transfer" && way == "to the source" && rep.GetBlocksMoved() == 24:
							wantReport(t, rep, recompute, ReasonPeerUnreachable, unknown)
						default:
							wantReport(t, rep, recompute, Reason(rep.GetCode()), unmoved)
							if c := Reason(rep.GetCode()); c != ReasonStalled && c != ReasonPeerUnreachable {
								t.Errorf("code %s", c)
							}
						}
						if rep.GetState() == recompute {
							time.Sleep(lasts - took + time.Second)
							next := r.b.mustEnd(request("s"), committed, "", moved)
							if next.GetBlocksPresent() != rep.GetBlocksMoved() || next.GetBlocksMoved() != 24-rep.GetBlocksMoved() {
								t.Errorf("%d blocks landed first, then %d were here and %d moved", rep.GetBlocksMoved(), next.GetBlocksPresent(), next.GetBlocksMoved())
							}
						}
						r.eb.check("", keys)
						r.wantOwner("s", "b")
						r.settleCut()
					})
				})
			}
		}
	}
}
