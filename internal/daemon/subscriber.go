package daemon

import (
	"math"
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
		rounds []*layerRound // its transfers
	}
}

// maxLandedPart is how many blocks one message names: with keys of 64 bytes they are 1.6 MiB.
const maxLandedPart = 16384

func (l *landedLog) add(b landedBlock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.blocks = append(l.mu.blocks, b)
}

// count is how many blocks have landed.
func (l *landedLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.mu.blocks)
}

// since returns what has landed in the places [at, upTo), at most maxLandedPart blocks, nil when nothing has, and the next
// place.
func (l *landedLog) since(at, upTo int) (*pb.Landed, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	part := l.mu.blocks[at:min(len(l.mu.blocks), upTo, at+maxLandedPart)]
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
	size  int           // layers a group, 0: only whole blocks are told

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

// feed is a subscriber's place in a log. It reads in sweeps: what has landed at one moment, the layers before the blocks.
type feed struct {
	log    *landedLog
	at     int
	layers *layerPlace // nil: not asked for
	over   bool        // the migration has ended: the log grows no more

	sweeping bool
	mark     int  // blocks before it are in the sweep
	last     bool // the log did not grow any more when the sweep began
}

// next returns what is next of the places before upTo, nil when all is read; with math.MaxInt, when all of one sweep is.
func (f *feed) next(upTo int) *pb.EventsResponse {
	for f.at < upTo {
		if !f.sweeping {
			f.sweeping, f.last, f.mark = true, f.over, f.log.count()
			f.layers.begin()
		}
		if layers := f.log.layersSince(f.layers, maxLandedPart); layers != nil {
			return &pb.EventsResponse{Event: &pb.EventsResponse_LandedLayers{LandedLayers: layers}}
		}
		landed, at := f.log.since(f.at, min(f.mark, upTo))
		if f.at = at; landed != nil {
			return &pb.EventsResponse{Event: &pb.EventsResponse_Landed{Landed: landed}}
		}
		if f.at < f.mark { // there is more, but not before upTo
			return nil
		}
		if f.sweeping = false; upTo == math.MaxInt {
			return nil
		}
	}
	return nil
}

func (s *subscriber) feed(l *landedLog) {
	s.feeds = append(s.feeds, &feed{log: l, layers: newLayerPlace(s.size)})
}

// subscribe opens a stream; it begins with what the running migrations have landed. size is layers a group, 0: whole blocks
// only.
func (e *engine) subscribe(size int) (*subscriber, func()) {
	s := &subscriber{ready: make(chan struct{}, 1), lost: make(chan struct{}), size: size}
	if size > 0 {
		e.layerReaders.Add(1) // before the look: a page that it does not see wakes it
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.subs[s] = struct{}{}
	for l := range e.mu.logs {
		s.feed(l)
	}
	s.wake()
	return s, func() {
		if size > 0 {
			e.layerReaders.Add(-1)
		}
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
		s.feed(l)
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

// next returns the next message for a subscriber. nil: there is none now, or some came while it was read, and ready tells.
func (e *engine) next(s *subscriber) *pb.EventsResponse {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(s.queue) > 0 {
		q := s.queue[0]
		for _, m := range q.landed {
			for _, f := range s.feeds {
				if f.log != m.log {
					continue
				}
				if ev := f.next(m.upTo); ev != nil {
					return ev
				}
			}
		}
		s.queue = s.queue[1:]
		return q.ev
	}
	for i := 0; i < len(s.feeds); {
		f := s.feeds[i]
		ev := f.next(math.MaxInt)
		switch {
		case ev != nil:
			return ev
		case f.last:
			s.feeds = append(s.feeds[:i], s.feeds[i+1:]...)
		case f.over: // the rest came during the sweep
		default:
			i++
		}
	}
	return nil
}
