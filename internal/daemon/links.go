package daemon

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// links knows the configured peers and finds the live link to each.
type links struct {
	cfg   Config
	agent *transfer.Agent
	paths *paths
	peers map[transfer.PeerID]PeerConfig
	// counters keep what links that have ended had counted.
	counters *linkCollector
	mu       struct {
		sync.Mutex
		lastErr map[transfer.PeerID]error    // of the last dial, nil when it succeeded
		failed  map[transfer.PeerID]uint64   // dials
		fetches map[transfer.PeerID]*fetches // of configured peers
	}
}

func newLinks(cfg Config, agent *transfer.Agent, paths *paths) *links {
	l := &links{cfg: cfg, agent: agent, paths: paths, peers: map[transfer.PeerID]PeerConfig{}}
	l.mu.lastErr, l.mu.failed = map[transfer.PeerID]error{}, map[transfer.PeerID]uint64{}
	l.mu.fetches = map[transfer.PeerID]*fetches{}
	for _, p := range cfg.Peers {
		l.peers[transfer.PeerID(p.Node)] = p
	}
	return l
}

// get returns a live link to node, dialling it when there is none. Only configured peers are dialled.
func (l *links) get(outer context.Context, node transfer.PeerID) (*transfer.Link, error) {
	p, ok := l.peers[node]
	if !ok {
		return nil, failf(ReasonNodeNotFound, "add it to peers in this daemon's configuration, or name another source", "node %q is not a configured peer", string(node)).with("node_id", string(node))
	}
	ctx, cancel := context.WithTimeout(outer, l.cfg.Link.ConnectTimeout)
	defer cancel()
	link, err := l.agent.Connect(ctx, p.Address, node)
	if outer.Err() == nil { // else the caller gave up, which says nothing about the peer
		l.mu.Lock()
		l.mu.lastErr[node] = err
		if err != nil {
			l.mu.failed[node]++
		}
		l.mu.Unlock()
	}
	if err != nil {
		return nil, l.unreachable(p, err)
	}
	return link, nil
}

func (l *links) unreachable(p PeerConfig, err error) error {
	if errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	f := classify(err)
	switch f.Reason {
	case ReasonPeerIdentity, ReasonVersionMismatch, ReasonPermission:
		return f
	}
	return failf(ReasonPeerUnreachable, "check that kvferryd runs there, that UDP to this address is open both ways, and that both certificates are of one CA",
		"node %q does not answer at %s: %v", p.Node, p.Address, err).with("node_id", p.Node)
}

// failures is how many dials of each configured peer have failed.
func (l *links) failures() map[transfer.PeerID]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[transfer.PeerID]uint64, len(l.peers))
	for id := range l.peers {
		out[id] = l.mu.failed[id]
	}
	return out
}

// ids are the configured peers in order.
func (l *links) ids() []transfer.PeerID {
	out := make([]transfer.PeerID, 0, len(l.peers))
	for id := range l.peers {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// view is all links with one peer as ListLinks sees them: the one that was dialled here, over which migrations into
// this node run, and the one that the peer dialled.
type view struct {
	peer        transfer.PeerID
	config      PeerConfig
	stats       transfer.LinkStats // counts and backlog of all links; round trip, stripes and goodput of the measured one
	connected   bool
	region      string // as the certificate says; of one that is not connected, as the configuration does
	incarnation string
	err         error
}

// add takes a link's counters in.
func (v *view) add(peer transfer.Peer, st transfer.LinkStats) {
	if !v.connected || st.GoodputKnown && !v.stats.GoodputKnown || !v.stats.GoodputKnown && st.Estimates.Capacity.Known() && !v.stats.Estimates.Capacity.Known() {
		st, v.stats = v.stats, st
		v.incarnation, v.region = peer.Incarnation, peer.Region
	}
	v.connected = true
	v.stats.BytesSent += st.BytesSent
	v.stats.BytesReceived += st.BytesReceived
	v.stats.PacketsSent += st.PacketsSent
	v.stats.PacketsReceived += st.PacketsReceived
	v.stats.PacketsLost += st.PacketsLost
	v.stats.QueuedBytes += st.QueuedBytes
	v.stats.Sent.Add(st.Sent)
	v.stats.Received.Add(st.Received)
	v.stats.Transfers += st.Transfers
	v.stats.Calls += st.Calls
}

// views lists configured and connected peers.
func (l *links) views() []view {
	byPeer := map[transfer.PeerID]*view{}
	for id, p := range l.peers {
		byPeer[id] = &view{peer: id, config: p, region: p.Region}
	}
	for _, link := range l.agent.Links() {
		peer := link.Peer()
		if byPeer[peer.ID] == nil {
			byPeer[peer.ID] = &view{peer: peer.ID}
		}
		byPeer[peer.ID].add(peer, link.Stats())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]view, 0, len(byPeer))
	for id, v := range byPeer {
		if !v.connected {
			v.err = l.mu.lastErr[id]
			v.stats.Estimates = l.paths.recall(id)
		}
		out = append(out, *v)
	}
	slices.SortFunc(out, func(a, b view) int { return cmp.Compare(a.peer, b.peer) })
	return out
}

// goodputMaxAge is how old a measured goodput may be before it counts as unknown.
const goodputMaxAge = 24 * time.Hour
