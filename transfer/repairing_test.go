package transfer

import (
	"testing"

	"github.com/kvferry/kvferry/transfer/repair"
	"github.com/kvferry/kvferry/transfer/wire"
)

// TestRepairVersions has peers that offer no repair, or that of an older version,
// go on without: nothing is attached, no error, and the answer asks for none.
func TestRepairVersions(t *testing.T) {
	c := &Config{}
	for version := range uint8(repair.Version) {
		offer := wire.Repair{Version: version, Span: wire.MinSpan}
		if got := c.answerRepair(offer); got != (wire.Repair{}) {
			t.Errorf("version %d is answered %+v", version, got)
		}
		s := &stripe{repairConn: new(repair.Conn)}
		if err := new(Link).startRepair(s, offer); err != nil || s.repair != nil {
			t.Errorf("version %d: %v, session %v", version, err, s.repair)
		}
	}
	for _, version := range []uint8{repair.Version, repair.Version + 1} {
		if got := c.answerRepair(wire.Repair{Version: version, Span: wire.MinSpan}); got != c.offerRepair() || got.Version != repair.Version {
			t.Errorf("version %d is answered %+v", version, got)
		}
	}
}
