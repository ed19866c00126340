package daemon

import (
	"cmp"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/transfer"
)

// urgency is what a puller says of the transfer that will follow its offer.
type urgency struct {
	class    transfer.Class
	deadline time.Time // by which the pages are wanted; zero: none
}

// before orders the offers of one link, tenant and class as package transfer orders their transfers.
func (of *offer) before(o *offer) bool {
	x, y := of.deadline, o.deadline
	switch {
	case x.IsZero() && y.IsZero():
		return cmp.Or(cmp.Compare(of.bytesLeft, o.bytesLeft), cmp.Compare(of.seq, o.seq)) < 0
	case x.IsZero() || y.IsZero():
		return y.IsZero()
	}
	return cmp.Or(x.Compare(y), cmp.Compare(of.seq, o.seq)) < 0
}

// aheadLocked is the bytes that will leave before the last one of me, its own left out, when every offer is fetched and
// no other is made: on its link those of higher classes, of its tenant those that go before it, and of the other tenants
// what their weights give them meanwhile. Other links share the uplink as their connections do, which knows no classes:
// each takes as much as this one, as long as it has something to send.
func (o *offers) aheadLocked(me *offer) int64 {
	var higher, own int64
	tenants, peers := map[kvstore.Tenant]int64{}, map[transfer.PeerID]int64{}
	for _, of := range o.mu.byID {
		switch {
		case of == me || of.bytesLeft == 0:
		case of.peer != me.peer:
			peers[of.peer] += of.bytesLeft
		case of.class < me.class:
			higher += of.bytesLeft
		case of.class > me.class:
		case of.session.Tenant != me.session.Tenant:
			tenants[of.session.Tenant] += of.bytesLeft
		case of.before(me):
			own += of.bytesLeft
		}
	}
	mine, weight := float64(own+me.bytesLeft), o.weight(me.session.Tenant)
	ahead := higher + own
	for t, bytes := range tenants {
		ahead += int64(min(float64(bytes), mine*o.weight(t)/weight))
	}
	link := ahead + me.bytesLeft
	for _, bytes := range peers {
		ahead += min(bytes, link)
	}
	return ahead
}

// price is what a ticket for bytes of s would say, without drawing it.
func (o *offers) price(peer transfer.PeerID, u urgency, s kvstore.Session, bytes int64) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.aheadLocked(&offer{peer: peer, urgency: u, session: s, bytesLeft: bytes, seq: o.mu.seq + 1})
}
