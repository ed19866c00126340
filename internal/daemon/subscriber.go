package daemon

import (
	"sync"

	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// landedBlock is a block that a migration has brought.
type landedBlock struct {
	key   kvstore.BlockKey
	ref   kvstore.SlotRef
	index int // in the session, or among the named keys
}

// landedLog is what a running migration has brought so far, in order of landing. Its readers keep their places in it, so
// that a slow one costs nothing and a late one gets everything.
type landedLog struct {
	migration, tenant string
	mu                struct {
		sync.Mutex
		blocks []landedBlock
	}
}

// maxLandedPart is how many blocks one message names: with keys of 64 bytes they are 1.6 MiB.
const maxLandedPart = 16384

func (l *landedLog) add(b landedBlock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.blocks = append(l.mu.blocks, b)
}

// since returns what has landed from place at on, at most maxLandedPart blocks, nil when nothing has, and the next place.
func (l *landedLog) since(at int) (*pb.Landed, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	part := l.mu.blocks[at:min(len(l.mu.blocks), at+maxLandedPart)]
	if len(part) == 0 {
		return nil, at
	}
	out := &pb.Landed{MigrationId: l.migration, Tenant: l.tenant}
	for _, b := range part {
		out.Keys, out.Slots, out.Blocks = append(out.GetKeys(), []byte(b.key)), append(out.GetSlots(), refToProto(b.ref)), append(out.GetBlocks(), uint32(b.index))
	}
	return out, at + len(part)
}

// maxPending bounds the events that wait for an engine which does not read, and the ended migrations whose landings it
// has not read. Landings of one migration count once.
const maxPending = 1024

// subscriber is one Events stream. What waits for it is bounded: an engine that does not read loses its stream and must
// look its state up again.
type subscriber struct {
	ready chan struct{} // capacity 1: there may be something
	lost  chan struct{} // closed when too much waits

	// Guarded by the engine's lock.
	queue []queuedEvent
	feeds []*feed
}

// queuedEvent is an event and the landings that happened before it.
type queuedEvent struct {
	ev     *pb.EventsResponse
	landed []landedMark
}

type landedMark struct {
	log  *landedLog
	upTo int
}

// feed is a subscriber's place in a log.
type feed struct {
	log  *landedLog
	at   int
	over bool // the migration has ended: the log grows no more
}

// subscribe opens a stream; it begins with what the running migrations have landed.
func (e *engine) subscribe() (*subscriber, func()) {
	s := &subscriber{ready: make(chan struct{}, 1), lost: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.subs[s] = struct{}{}
	for l := range e.mu.logs {
		s.feeds = append(s.feeds, &feed{log: l})
	}
	s.wake()
	return s, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.mu.subs, s)
	}
}

func (s *subscriber) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// publish hands ev to every subscriber without waiting. A subscriber gets the landings of before first.
func (e *engine) publish(ev *pb.EventsResponse) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.mu.subs {
		q := queuedEvent{ev: ev}
		for _, f := range s.feeds {
			f.log.mu.Lock()
			q.landed = append(q.landed, landedMark{f.log, len(f.log.mu.blocks)})
			f.log.mu.Unlock()
		}
		s.queue = append(s.queue, q)
		e.boundLocked(s)
		s.wake()
	}
}

// boundLocked cuts a subscriber off that has too much to read: it gets nothing after the gap.
func (e *engine) boundLocked(s *subscriber) {
	if len(s.queue) > maxPending || len(s.feeds) > maxPending {
		delete(e.mu.subs, s)
		close(s.lost)
	}
}

// beginLanding opens a migration's log to the subscribers.
func (e *engine) beginLanding(l *landedLog) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, open := e.mu.logs[l]; open {
		return
	}
	e.mu.logs[l] = struct{}{}
	for s := range e.mu.subs {
		s.feeds = append(s.feeds, &feed{log: l})
		e.boundLocked(s)
	}
}

// landedMore tells the subscribers to look.
func (e *engine) landedMore() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.mu.subs {
		s.wake()
	}
}

// endLanding closes a migration's log.
func (e *engine) endLanding(l *landedLog) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.mu.logs, l)
	for s := range e.mu.subs {
		for _, f := range s.feeds {
			f.over = f.over || f.log == l
		}
	}
}

// next returns the next message for a subscriber, nil: there is none now.
func (e *engine) next(s *subscriber) *pb.EventsResponse {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(s.queue) > 0 {
		q := s.queue[0]
		for _, m := range q.landed {
			if ev := s.landedLocked(m.log, m.upTo); ev != nil {
				return ev
			}
		}
		s.queue = s.queue[1:]
		return q.ev
	}
	for i := 0; i < len(s.feeds); {
		f := s.feeds[i]
		if ev := s.landedLocked(f.log, int(^uint(0)>>1)); ev != nil {
			return ev
		}
		if f.over {
			s.feeds = append(s.feeds[:i], s.feeds[i+1:]...)
			continue
		}
		i++
	}
	return nil
}

// landedLocked returns what the subscriber has not read of a log, nil when it is at place upTo.
func (s *subscriber) landedLocked(l *landedLog, upTo int) *pb.EventsResponse {
	for _, f := range s.feeds {
		if f.log != l || f.at >= upTo {
			continue
		}
		if landed, at := l.since(f.at); landed != nil {
			f.at = at
			return &pb.EventsResponse{Event: &pb.EventsResponse_Landed{Landed: landed}}
		}
	}
	return nil
}
