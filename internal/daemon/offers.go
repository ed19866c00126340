package daemon

import (
	"cmp"
	"crypto/rand"
	"slices"
	"sync"
	"time"

	"github.com/kvferry/kvferry/internal/fault"
	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/transfer"
)

// offerID is a random capability: who has it may read the offered slots.
type offerID [16]byte

// offer is a lease on a session's blocks for one puller, with a ticket in the egress queue.
type offer struct {
	id        offerID
	seq       uint64 // order of the tickets
	peer      transfer.PeerID
	region    string // of peer, as its certificate says
	process   string // the peer's incarnation
	revoked   error  // nil: it holds; its lease is given back
	migration string
	arena     *kvstore.Arena
	session   kvstore.Session // as it was offered
	lease     kvstore.LeaseID
	refs      []kvstore.SlotRef
	named     int // keys that it was asked for
	urgency
	bytesLeft int64 // what the puller still wants, the ticket's size
	expires   time.Time
	heard     time.Time // of the puller: the offer, or its last renewal
	renewed   time.Time
	made      time.Time
}

// offers are the leases that this node has given to pullers, and at the same time the egress queue: the source's uplink
// is shared by all of them, so only the source knows what waits before a ticket.
type offers struct {
	ttl    time.Duration
	weight func(kvstore.Tenant) float64
	mu     struct {
		sync.Mutex
		byID   map[offerID]*offer
		byPeer map[transfer.PeerID]peerOffers
		seq    uint64
	}
}

func newOffers(ttl time.Duration, weight func(kvstore.Tenant) float64) *offers {
	o := &offers{ttl: ttl, weight: weight}
	o.mu.byID, o.mu.byPeer = map[offerID]*offer{}, map[transfer.PeerID]peerOffers{}
	return o
}

// maxOffers bounds the table; each offer holds leases, so the arenas bound it too. One peer has at most maxPeerOffers, which name
// at most maxPeerKeys blocks: 64 B of memory each, and the keys.
const (
	maxOffers     = 1 << 14
	maxPeerOffers = 1 << 11
	maxPeerKeys   = 1 << 22
)

// make leases the longest present prefix of s's keys to a peer and draws a ticket. It returns the offer and the bytes that go
// before its last one. A peer's earlier offer for the same migration stays until ended or expired.
func (o *offers) make(e *engine, from transfer.Peer, migration string, u urgency, s kvstore.Session) (*offer, int64, error) {
	if err := o.room(from.ID, len(s.Keys)); err != nil {
		return nil, 0, err
	}
	lease, refs, n, err := e.arena.AcquirePrefix(kvstore.Owner("peer/"+string(from.ID)), s.Tenant, s.Keys, o.ttl)
	if err != nil {
		return nil, 0, err
	}
	of := &offer{
		peer: from.ID, region: from.Region, process: from.Incarnation, migration: migration, urgency: u, arena: e.arena, session: s, lease: lease, refs: refs,
		named:     len(s.Keys),
		bytesLeft: int64(n) * e.layout.BlockBytes(), expires: time.Now().Add(o.ttl), renewed: time.Now(), heard: time.Now(), made: time.Now(),
	}
	if s.ID == "" { // the caller has the keys
		of.session.Keys = nil
	}
	_, _ = rand.Read(of.id[:]) // never fails
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.roomLocked(from.ID, len(s.Keys)); err != nil {
		if n > 0 {
			_ = e.arena.Release(lease)
		}
		return nil, 0, err
	}
	held := o.mu.byPeer[from.ID]
	o.mu.byPeer[from.ID] = peerOffers{held.offers + 1, held.keys + len(s.Keys)}
	o.mu.seq++
	of.seq = o.mu.seq
	before := o.aheadLocked(of)
	o.mu.byID[of.id] = of
	return of, before, nil
}

// peerOffers is what one peer has.
type peerOffers struct{ offers, keys int }

// room reports whether peer may have another offer, which names so many blocks.
func (o *offers) room(peer transfer.PeerID, keys int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.roomLocked(peer, keys)
}

func (o *offers) roomLocked(peer transfer.PeerID, keys int) error {
	const fix = "wait for migrations to end, then ask again"
	held := o.mu.byPeer[peer]
	switch {
	case len(o.mu.byID) >= maxOffers:
		return failf(ReasonTooManyMigrations, fix, "%d offers are out already", maxOffers)
	case held.offers >= maxPeerOffers || held.keys+keys > maxPeerKeys:
		return failf(ReasonTooManyMigrations, fix, "node %q has %d offers of %d blocks already, at most %d of %d", string(peer), held.offers, held.keys, maxPeerOffers, maxPeerKeys)
	}
	return nil
}

// dropLocked takes an offer out of the table; its release is owed.
func (o *offers) dropLocked(of *offer) {
	delete(o.mu.byID, of.id)
	held := o.mu.byPeer[of.peer]
	if held = (peerOffers{held.offers - 1, held.keys - of.named}); held == (peerOffers{}) {
		delete(o.mu.byPeer, of.peer)
		return
	}
	o.mu.byPeer[of.peer] = held
}

// backlog is what all offers still want, bytes.
func (o *offers) backlog() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var sum int64
	for _, of := range o.mu.byID {
		sum += of.bytesLeft
	}
	return sum
}

// count is how many offers are out.
func (o *offers) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.byID)
}

// lookup finds a live offer. peer "" is any (the id is a capability). One that was revoked comes with the reason.
func (o *offers) lookupLocked(id []byte, peer transfer.PeerID) (*offer, error) {
	if len(id) != len(offerID{}) {
		return nil, invalid("offer_id", len(id), "16 bytes, as in the offer")
	}
	of := o.mu.byID[offerID(id)]
	if of == nil || peer != "" && of.peer != peer || time.Now().After(of.expires) {
		return nil, failf(ReasonLeaseExpired, "ask for a new offer", "the offer is gone: it was ended, or saw no progress for %v", o.ttl)
	}
	return of, of.revoked
}

// revoke ends the offers that check has an error for: what is asked of them from here on meets it. Each is in the table until its time is
// up, so that its puller hears why.
func (o *offers) revoke(check func(*offer) error) (ended []*offer) {
	o.mu.Lock()
	for _, of := range o.mu.byID {
		if of.revoked == nil {
			if of.revoked = check(of); of.revoked != nil {
				of.bytesLeft = 0
				ended = append(ended, of)
			}
		}
	}
	o.mu.Unlock()
	for _, of := range ended {
		of.release()
	}
	return ended
}

// progress notes that the holder of token reads from arena, which keeps its lease alive, and returns the lease. A peer that
// has gone silent is read for, too, until its connections have run full and died: so reads alone keep a lease for one TTL
// beyond the one that the puller's last word gave it.
func (o *offers) progress(token []byte, arena *kvstore.Arena) (kvstore.LeaseID, error) {
	o.mu.Lock()
	of, err := o.lookupLocked(token, "")
	if err == nil && of.arena != arena {
		err = failf(ReasonLeaseNotFound, "use the offer's memory", "the offer is for another arena")
	}
	if err != nil {
		o.mu.Unlock()
		return 0, err
	}
	now := time.Now()
	renew := now.Sub(of.renewed) > o.ttl/8
	of.expires = minTime(now.Add(o.ttl), of.heard.Add(2*o.ttl))
	if renew {
		of.renewed = now
	}
	lease := of.lease
	o.mu.Unlock()
	if renew {
		if err := arena.Renew(lease, o.ttl); err != nil {
			return 0, err
		}
	}
	return lease, nil
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// served takes bytes off the ticket.
func (o *offers) served(token []byte, bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if of, err := o.lookupLocked(token, ""); err == nil {
		of.bytesLeft = max(0, of.bytesLeft-bytes)
	}
}

// renew keeps an offer and lowers its ticket to what the puller says it still wants. It never raises it: what is on its
// way has left the queue here and has not arrived there.
func (o *offers) renew(id []byte, peer transfer.PeerID, bytesLeft int64) error {
	if bytesLeft < 0 {
		return invalid("bytes_left", bytesLeft, "0 or more")
	}
	o.mu.Lock()
	of, err := o.lookupLocked(id, peer)
	if err == nil {
		of.expires, of.renewed, of.heard, of.bytesLeft = time.Now().Add(o.ttl), time.Now(), time.Now(), min(of.bytesLeft, bytesLeft)
	}
	o.mu.Unlock()
	if err != nil || len(of.refs) == 0 {
		return err
	}
	return of.arena.Renew(of.lease, o.ttl)
}

// find returns an offer's arena and slots.
func (o *offers) find(id []byte, peer transfer.PeerID) (*offer, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lookupLocked(id, peer)
}

// end releases an offer. Ending one that is gone is not an error: late and duplicate ends are expected.
func (o *offers) end(id []byte, peer transfer.PeerID) error {
	o.mu.Lock()
	of, err := o.lookupLocked(id, peer)
	if of != nil {
		o.dropLocked(of)
	}
	o.mu.Unlock()
	if err != nil {
		if f := classify(err); f.Reason == ReasonLeaseExpired || f.Reason == ReasonPolicyDenied {
			return nil
		}
		return err
	}
	if !fault.Planted(fault.OfferNotEnded) {
		of.release()
	}
	return nil
}

func (of *offer) release() {
	if len(of.refs) > 0 {
		_ = of.arena.Release(of.lease) // an expired lease is released already
	}
}

// restarted releases what a peer's earlier processes hold, and returns how many offers that were.
func (o *offers) restarted(peer transfer.Peer) int {
	return len(o.drop(func(of *offer) bool { return of.peer == peer.ID && of.process != peer.Incarnation }))
}

// sweep releases offers that have seen no progress.
func (o *offers) sweep(now time.Time) []*offer {
	return o.drop(func(of *offer) bool { return now.After(of.expires) })
}

func (o *offers) drop(which func(*offer) bool) (ended []*offer) {
	o.mu.Lock()
	for _, of := range o.mu.byID {
		if which(of) {
			ended = append(ended, of)
			o.dropLocked(of)
		}
	}
	o.mu.Unlock()
	slices.SortFunc(ended, func(a, b *offer) int { return cmp.Compare(a.seq, b.seq) })
	for _, of := range ended {
		of.release()
	}
	return ended
}
