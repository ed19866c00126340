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
	peers map[transfer.PeerID]PeerConfig
	mu    struct {
		sync.Mutex
		lastErr map[transfer.PeerID]error // of the last dial, nil when it succeeded
	}
}

func newLinks(cfg Config, agent *transfer.Agent) *links {
	l := &links{cfg: cfg, agent: agent, peers: map[transfer.PeerID]PeerConfig{}}
	l.mu.lastErr = map[transfer.PeerID]error{}
	for _, p := range cfg.Peers {
		l.peers[transfer.PeerID(p.Node)] = p
	}
	return l
}

// get returns a live link to node, dialling it when there is none. Only configured peers are dialled.
func (l *links) get(ctx context.Context, node transfer.PeerID) (*transfer.Link, error) {
	p, ok := l.peers[node]
	if !ok {
		return nil, failf(ReasonNodeNotFound, "add it to peers in this daemon's configuration, or name another source", "node %q is not a configured peer", string(node)).with("node_id", string(node))
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Link.ConnectTimeout)
	defer cancel()
	link, err := l.agent.Connect(ctx, p.Address, node)
	l.mu.Lock()
	l.mu.lastErr[node] = err
	l.mu.Unlock()
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

// ids are the configured peers in order.
func (l *links) ids() []transfer.PeerID {
	out := make([]transfer.PeerID, 0, len(l.peers))
	for id := range l.peers {
		out = append(out, id)
	}
	slices.Sort(out)
	return out
}

// view is one link as ListLinks and the planner see it.
type view struct {
	peer        transfer.PeerID
	config      PeerConfig
	stats       transfer.LinkStats
	connected   bool
	incarnation string
	err         error
}

// views lists configured and connected peers.
func (l *links) views() []view {
	byPeer := map[transfer.PeerID]view{}
	for id, p := range l.peers {
		byPeer[id] = view{peer: id, config: p}
	}
	for _, link := range l.agent.Links() {
		id := link.Peer().ID
		v := byPeer[id]
		v.peer, v.stats, v.connected, v.incarnation = id, link.Stats(), true, link.Peer().Incarnation
		byPeer[id] = v
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]view, 0, len(byPeer))
	for id, v := range byPeer {
		if !v.connected {
			v.err = l.mu.lastErr[id]
		}
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b view) int { return cmp.Compare(a.peer, b.peer) })
	return out
}

// goodputMaxAge is how old a measured goodput may be before it counts as unknown.
const goodputMaxAge = 24 * time.Hour
