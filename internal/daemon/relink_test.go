package daemon

import (
	"testing"

	"github.com/kvferry/kvferry/transfer"
)

// A link that this side closes under a migration, as it does when another migration's call gets no answer, is replaced, and the migration
// goes on with what is missing.
func TestRelink(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 64)
		m := r.b.begin(request("s"))
		m.landed(8 * 8192)
		for _, l := range r.b.d.agent.Links() {
			if err := l.Close(transfer.CodePeerGone); err != nil {
				t.Fatal(err)
			}
		}
		rep := m.end()
		wantReport(t, rep, committed, "", moved)
		if rep.GetBlocksMoved() != 64 || rep.GetBlocksUsable() != 64 {
			t.Errorf("report %v", rep)
		}
		if most := int64(64*8192) + 8*8192; rep.GetBytes() > most { // blocks of which a part had landed come again
			t.Errorf("%d bytes of pages were moved, at most %d", rep.GetBytes(), most)
		}
		r.eb.check("", keys)
		r.wantOwner("s", "b")
		r.settle()
	})
}

// It does so a few times and no more.
func TestRelinkIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		r.ea.session("s", 256)
		m := r.b.begin(request("s"))
		for i := range maxRelinks + 1 {
			m.landed(int64(i+1) * 8 * 8192)
			for _, l := range r.b.d.agent.Links() {
				if err := l.Close(transfer.CodePeerGone); err != nil {
					t.Fatal(err)
				}
			}
		}
		wantReport(t, m.end(), failed, ReasonPeerUnreachable, unmoved)
		r.settle()
	})
}
