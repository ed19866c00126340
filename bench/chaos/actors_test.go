//go:build chaos

package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/bench/wan"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// act sets everything going that the spec asks for.
func (r *run) act() {
	s := r.spec
	before := make([]chan struct{}, len(s.sessions)) // in gentle runs, the end of the session's last move
	for i := range s.moves {
		m := s.moves[i]
		wait, done := before[m.session], make(chan struct{})
		before[m.session] = done
		r.wg.Go(func() {
			defer close(done)
			if r.at(m.at); wait != nil && s.kind != harsh {
				<-wait
			}
			r.safely("proxy", func() { r.proxy(i, m) })
		})
	}
	for _, e := range s.events {
		r.wg.Go(func() { r.safely(e.kind, func() { r.at(e.at); r.strike(e) }) })
	}
	for _, h := range s.holds {
		r.wg.Go(func() { r.safely("hold", func() { r.at(h.at); r.hold(h) }) })
	}
	for i := range s.sessions {
		for _, at := range s.sessions[i].grows {
			r.wg.Go(func() { r.safely("growth", func() { r.at(at); r.grow(i) }) })
		}
	}
	for i, at := range s.fills {
		r.wg.Go(func() { r.safely("fill", func() { r.at(at); r.fill(i) }) })
	}
	for i, at := range s.lates {
		r.wg.Go(func() { r.safely("late writer", func() { r.at(at); r.late(i) }) })
	}
}

// strike has an event happen, and be over in time.
func (r *run) strike(e event) {
	a, b := r.hosts[e.a], r.hosts[e.b]
	r.count(e.kind)
	r.logf("%v", e)
	cut := func(n int) {
		r.cuts.add(a.ip, b.ip, n)
		if e.kind == evCut {
			r.cuts.add(b.ip, a.ip, n)
		}
	}
	switch e.kind {
	case evCut, evOneWay:
		cut(1)
		r.pause(e.last)
		cut(-1)
	case evIsolate:
		for n := 1; n >= -1; n -= 2 {
			for _, other := range r.hosts {
				if other != a {
					r.cuts.add(a.ip, other.ip, n)
					r.cuts.add(other.ip, a.ip, n)
				}
			}
			if n > 0 {
				r.pause(e.last)
			}
		}
	case evLoss:
		m := r.spec.model
		m.Burst = &wan.GilbertElliott{PGoodToBad: 0.05, PBadToGood: 0.2}
		_ = r.net.SetModel(a.ip, b.ip, m)
		r.pause(e.last)
		_ = r.net.SetModel(a.ip, b.ip, r.spec.model)
	case evFreeze:
		if n := a.current(); n != nil {
			n.gate.close()
			r.pause(e.last)
			n.gate.open()
		}
	case evKill:
		a.kill(e.last, "an event")
	case evArena:
		n := a.current()
		if n == nil {
			return
		}
		n.current().damage()
		time.Sleep(e.last)
		for try := 0; !n.isDead(); try++ {
			err := n.register()
			if err == nil {
				return
			}
			if try == 50 {
				r.failf("harness", "engine of %s can't register again: %v", a.name, err)
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
	}
}

// pause sleeps for d, or until all is healed.
func (r *run) pause(d time.Duration) {
	time.Sleep(max(0, min(d, time.Until(r.began.Add(r.spec.horizon)))))
}

// reasonOf is the reason in a gRPC error, or its code.
func reasonOf(err error) string {
	st := status.Convert(err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return st.Code().String()
}

// proxy makes one call, and stays until it has the end of it.
func (r *run) proxy(i int, m move) {
	n := r.hosts[m.to].await(10 * time.Second)
	if n == nil {
		r.ended("no daemon")
		return
	}
	s := &r.spec.sessions[m.session]
	req := &pb.MigrateRequest{
		RequestId: fmt.Sprintf("move-%d", i), Session: s.ref(), Mode: m.mode, Class: m.class, Deadline: durationpb.New(m.deadline), RepinSeq: m.repin, Takeover: m.takeover,
	}
	if m.hint >= 0 {
		req.SourceHint = names[m.hint]
	}
	if m.cancel > 0 {
		r.wg.Go(func() {
			time.Sleep(m.cancel)
			_, _ = n.mig.CancelMigration(context.Background(), &pb.CancelMigrationRequest{RequestId: req.GetRequestId()})
		})
	}
	began := time.Now()
	rep, err := r.follow(n, req, m)
	took := time.Since(began)
	if n.isDead() {
		r.ended("daemon died")
		r.logf("move %d: its daemon died", i)
		if took > 0 { // what it had begun, and told nobody of, it may not know any more
			r.prefill(i, m)
		}
		return
	}
	if err != nil {
		r.ended("refused " + reasonOf(err))
		r.logf("move %d: refused: %v", i, err)
		if m.must {
			r.failf("healthy", "move %d (%v) was refused: %v", i, m, err)
		}
		return
	}
	r.ended(outcome(rep))
	r.logf("move %d: %s, ownership %v, epoch %d, %d of %d blocks, after %v: %s", i, outcome(rep), rep.GetOwnership(), rep.GetEpoch(), rep.GetBlocksUsable(), rep.GetBlocksTotal(), took, rep.GetMessage())
	r.judge(i, m, n, req, rep, took)
	if rep.GetOwnership() != pb.Ownership_OWNERSHIP_MOVED {
		r.prefill(i, m)
	}
}

// prefill has the engine at a move's destination compute the session, although it has not come there, and publish it, as one does whose turn ends. The daemon
// there knows better, also when it has been restarted in between.
func (r *run) prefill(i int, m move) {
	n := r.hosts[m.to].await(10 * time.Second)
	if n == nil {
		return
	}
	s := &r.spec.sessions[m.session]
	r.mu.Lock()
	keys := chain(s.chain, r.mu.length[m.session])
	r.mu.Unlock()
	e := n.current()
	if err := e.write(s.tenant, keys); err != nil {
		r.logf("move %d: session %d can't be prefilled at %s: %v", i, m.session, n.h.name, err)
	}
	err := e.publish(s, keys)
	what := "accepted"
	if err != nil {
		what = reasonOf(err)
	}
	r.mu.Lock()
	r.mu.outcomes["published unmoved: "+what]++
	r.mu.Unlock()
	r.logf("move %d: session %d is published at %s, where it has not come: %v", i, m.session, n.h.name, err)
}

// judge holds a report to the rules.
func (r *run) judge(i int, m move, n *node, req *pb.MigrateRequest, rep *pb.MigrationReport, took time.Duration) {
	if limit := m.deadline + grace; took > limit || rep.GetTotal().AsDuration() > limit {
		r.failf("terminal", "move %d ended after %v (its report says %v), its deadline was %v", i, took, rep.GetTotal().AsDuration(), m.deadline)
	}
	got, err := n.mig.GetMigration(context.Background(), &pb.GetMigrationRequest{RequestId: req.GetRequestId()})
	if n.isDead() {
		return
	}
	if err != nil || !proto.Equal(got.GetMigration().GetReport(), rep) {
		r.failf("terminal", "move %d ended in %v; asked again: %v, %v", i, rep, got.GetMigration().GetReport(), err)
	}
	if rep.GetOwnership() == pb.Ownership_OWNERSHIP_UNMOVED && m.repin > 0 {
		r.mu.Lock()
		r.mu.unmoved = append(r.mu.unmoved, claim{session: m.session, owner: n.h.name, repin: m.repin})
		r.mu.Unlock()
	}
	owned := rep.GetOwnership() == pb.Ownership_OWNERSHIP_MOVED
	switch rep.GetState() {
	case pb.MigrationState_MIGRATION_STATE_COMMITTED:
		if !owned {
			r.failf("owner", "move %d is committed, and ownership is %v", i, rep.GetOwnership())
		}
	case pb.MigrationState_MIGRATION_STATE_CANCELLED, pb.MigrationState_MIGRATION_STATE_REDIRECT:
		if owned {
			r.failf("owner", "move %d ended in %v, and ownership has moved", i, rep.GetState())
		}
	}
	if owned && rep.GetSource().GetNodeId() != n.h.name {
		c := claim{session: m.session, owner: n.h.name, repin: m.repin, epoch: rep.GetEpoch()}
		r.mu.Lock()
		for _, old := range r.mu.moved {
			if old.session == c.session && old.owner != c.owner && !old.before(c) && !c.before(old) {
				r.mu.Unlock()
				r.failf("owner", "session %d was given to %s and to %s, both with repin %d, epoch %d", c.session, old.owner, c.owner, c.repin, c.epoch)
				r.mu.Lock()
			}
		}
		r.mu.moved = append(r.mu.moved, c)
		r.mu.Unlock()
	}
	if m.must {
		if m.soon > 0 && took > m.soon {
			r.failf("healthy", "move %d (%v) took %v", i, m, took)
		}
		if rep.GetState() != pb.MigrationState_MIGRATION_STATE_COMMITTED {
			r.failf("healthy", "move %d (%v) ended in %s: %s", i, m, outcome(rep), rep.GetMessage())
		}
		r.warm(i, m, n, rep)
	}
}

// warm holds a committed migration to its word: all blocks are there.
func (r *run) warm(i int, m move, n *node, rep *pb.MigrationReport) {
	s, e := &r.spec.sessions[m.session], n.current()
	keys := chain(s.chain, int(rep.GetBlocksUsable()))
	if len(keys) == 0 {
		return
	}
	l := e.acquire(s.tenant, keys)
	if e.gone() {
		return
	}
	if l == nil || len(l.keys) < len(keys) {
		r.failf("healthy", "move %d says that %d blocks are usable, and %v can be had", i, len(keys), l)
		return
	}
	if err := l.check(); err != nil {
		r.failf("bytes", "after move %d at %s: %v", i, n.h.name, err)
	}
	if err := l.release(); err != nil && !e.gone() {
		r.failf("hold", "release at %s: %v", n.h.name, err)
	}
}

// follow calls Migrate, and again after a drop, until there is a report, a refusal, or no daemon.
func (r *run) follow(n *node, req *pb.MigrateRequest, m move) (*pb.MigrationReport, error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	dropped := false
	if m.drop > 0 {
		r.wg.Go(func() {
			select {
			case <-time.After(m.drop):
				dropped = true
				stop()
			case <-ctx.Done():
			}
		})
	}
	rep, err := r.stream(ctx, n, req, m)
	if dropped && rep == nil && (errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled) {
		time.Sleep(300 * time.Millisecond)
		rep, err = r.stream(context.Background(), n, req, m)
	}
	return rep, err
}

// stream reads one stream to its end.
func (r *run) stream(ctx context.Context, n *node, req *pb.MigrateRequest, m move) (*pb.MigrationReport, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	context.AfterFunc(ctx, func() {})
	go func() { // ends with the stream: a killed daemon's is cut
		select {
		case <-n.dead:
			stop()
		case <-ctx.Done():
		}
	}()
	stream, err := n.mig.Migrate(ctx, req)
	if err != nil {
		return nil, err
	}
	fronted := false
	for {
		u, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if m.front && !fronted {
			fronted = true
			r.wg.Go(func() { r.safely("front", func() { r.front(n, u.GetMigrationId(), m.session) }) })
		}
		if u.GetReport() != nil {
			return u.GetReport(), nil
		}
	}
}

// front prefills what it is granted until the migration is over.
func (r *run) front(n *node, migration string, session int) {
	ctx, s := context.Background(), &r.spec.sessions[session]
	keys := chain(s.chain, 64)
	for at, idle := 0, 0; at < len(keys) && idle < 500; {
		e := n.current()
		got, err := n.mig.ClaimPrefill(ctx, &pb.ClaimPrefillRequest{MigrationId: migration, ComputedBlocks: uint32(at), WantBlocks: 2})
		switch {
		case err != nil || e.gone():
			return
		case int(got.GetGrantedUntil()) <= at && (got.GetEnded() || got.GetStop()):
			return
		case int(got.GetGrantedUntil()) <= at:
			idle++
			time.Sleep(20 * time.Millisecond)
			continue
		}
		for ; at < min(int(got.GetGrantedUntil()), len(keys)); at++ {
			time.Sleep(5 * time.Millisecond)
			_ = e.write(s.tenant, keys[at:at+1])
		}
		if got.GetEnded() {
			return
		}
	}
}

// hold leases blocks, waits, and finds them as they were.
func (r *run) hold(h hold) {
	n := r.hosts[h.host].current()
	if n == nil {
		return
	}
	s, e := &r.spec.sessions[h.session], n.current()
	l := e.acquire(s.tenant, chain(s.chain, 30))
	if l == nil {
		return
	}
	for try := 0; ; try++ {
		if err := l.check(); err != nil && !e.gone() {
			r.failf("hold", "%s, look %d at blocks held for %v: %v", n.h.name, try, h.last, err)
		}
		if try == 1 {
			break
		}
		time.Sleep(h.last)
	}
	if err := l.release(); err != nil && !e.gone() {
		r.failf("hold", "%s, release of a lease held for %v: %v", n.h.name, h.last, err)
	}
}

// grow has the engine at the session's owner write two blocks more and publish them.
func (r *run) grow(i int) {
	s := &r.spec.sessions[i]
	r.mu.Lock()
	length := r.mu.length[i] + 2
	r.mu.length[i] = length
	r.mu.Unlock()
	keys := chain(s.chain, length)
	for _, h := range r.hosts {
		n := h.current()
		if n == nil {
			continue
		}
		if c, _, ok := r.record(n, i); !ok || c.owner != h.name {
			continue
		}
		e := n.current()
		if err := e.write(s.tenant, keys); err != nil {
			r.logf("session %d can't grow at %s: %v", i, h.name, err)
			return
		}
		err := e.publish(s, keys)
		r.logf("session %d grows to %d blocks at %s: %v", i, length, h.name, err)
		return
	}
}

// fill has some engine write blocks that nobody asked for, so that others are evicted.
func (r *run) fill(i int) {
	n := r.hosts[i%hosts].current()
	if n == nil {
		return
	}
	for part := range 4 {
		keys := chain(fmt.Sprintf("fill-%d-%d-%d", r.spec.seed, i, part), r.spec.slots/4)
		if err := n.current().write("t1", keys); err != nil {
			r.logf("fill %d at %s: %v", i, n.h.name, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// late has an engine give up a slot, take it again for another block, and then finish with the old reference.
func (r *run) late(i int) {
	n := r.hosts[i%hosts].current()
	if n == nil {
		return
	}
	ctx, e := context.Background(), n.current()
	reserve := func(keys [][]byte) []*pb.SlotRef {
		res, err := n.eng.ReserveBlocks(ctx, &pb.ReserveBlocksRequest{EngineId: engineID, ArenaId: e.id, Keys: keys})
		if err != nil {
			return nil
		}
		var out []*pb.SlotRef
		for _, x := range res.GetReservations() {
			if x.GetState() == pb.ReservationState_RESERVATION_STATE_RESERVED {
				out = append(out, x.GetSlot())
			}
		}
		return out
	}
	release := func(slots []*pb.SlotRef) {
		_, err := n.eng.ReleaseBlocks(ctx, &pb.ReleaseBlocksRequest{EngineId: engineID, ArenaId: e.id, Aborted: slots})
		if err != nil && !e.gone() {
			r.failf("late", "give up reserved slots at %s: %v", n.h.name, err)
		}
	}
	old, next := chain(fmt.Sprintf("late-%d-%d", r.spec.seed, i), 2), chain(fmt.Sprintf("next-%d-%d", r.spec.seed, i), 2)
	first := reserve(old)
	if len(first) != 2 {
		return
	}
	release(first)
	second := reserve(next)
	if com, err := n.eng.CommitBlocks(ctx, &pb.CommitBlocksRequest{EngineId: engineID, ArenaId: e.id, Slots: first}); err == nil || slices.Contains(com.GetCommitted(), true) {
		r.failf("late", "slots of before are committed at %s: %v, %v", n.h.name, com, err)
	}
	if len(second) > 0 {
		release(second)
	}
}
