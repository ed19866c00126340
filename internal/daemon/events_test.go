package daemon

import (
	"context"
	"io"
	"os"
	"testing"
	"testing/synctest"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func openArena(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// eventStream is an open Events stream whose messages are read into a channel.
type eventStream struct {
	got  chan *pb.EventsResponse // closed at the stream's end
	err  error                   // of the end; read it after got is closed
	stop func()
}

func (n *node) events(engineID string) *eventStream {
	n.f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := n.engine.Events(ctx, &pb.EventsRequest{EngineId: engineID})
	if err == nil {
		_, err = stream.Header() // nothing from here on is missed
	}
	if err != nil {
		cancel()
		n.f.t.Fatal(err)
	}
	s := &eventStream{got: make(chan *pb.EventsResponse, 4096), stop: cancel}
	n.f.t.Cleanup(cancel)
	go func() {
		defer close(s.got)
		for {
			ev, err := stream.Recv()
			if err != nil {
				s.err = err
				return
			}
			s.got <- ev
		}
	}()
	return s
}

// The destination's engine hears of each block once, then of the new owner; the source's engine of the owner.
func TestEventsInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 10)
		at, from := r.b.events("e"), r.a.events("e")
		m := request("s")
		rep := r.b.mustEnd(m, committed, "", moved)
		synctest.Wait()
		want := map[string]bool{}
		for _, k := range keys {
			want[string(k)] = true
		}
		for len(want) > 0 {
			ev := <-at.got
			l := ev.GetLanded()
			if l == nil || l.GetMigrationId() == "" || len(l.GetKeys()) == 0 {
				t.Fatalf("event %v before all blocks have landed", ev)
			}
			for _, k := range l.GetKeys() {
				if !want[string(k)] {
					t.Fatal("a block landed twice")
				}
				delete(want, string(k))
			}
		}
		for name, s := range map[string]*eventStream{"destination": at, "source": from} {
			f := (<-s.got).GetFlip()
			if f.GetOwnerNodeId() != "b" || f.GetEpoch() != rep.GetEpoch() || f.GetSession().GetSessionId() != "s" {
				t.Errorf("the %s's engine hears %v, want the flip", name, f)
			}
			s.stop()
			if ev, open := <-s.got; open {
				t.Errorf("the %s's engine hears more: %v", name, ev)
			}
		}
		_, err := r.b.engine.Events(context.Background(), &pb.EventsRequest{EngineId: "nobody"})
		if err == nil {
			s, _ := r.b.engine.Events(context.Background(), &pb.EventsRequest{EngineId: "nobody"})
			_, err = s.Recv()
		}
		wantError(t, err, ReasonEngineNotFound)
		r.settle()
	})
}

// An engine that does not read its events holds nobody up; it is cut off with a typed error, and sees no event after the
// gap.
func TestSlowEventReader(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		stream, err := r.b.engine.Events(ctx, &pb.EventsRequest{EngineId: "e"})
		if err == nil {
			_, err = stream.Header()
		}
		if err != nil {
			t.Fatal(err)
		}
		e, err := r.b.d.engines.get("e")
		if err != nil {
			t.Fatal(err)
		}
		const sent = 100_000
		for i := range sent { // publish never waits
			e.publish(&pb.EventsResponse{Event: &pb.EventsResponse_Flip{Flip: &pb.Flip{Epoch: uint64(i)}}})
		}
		for i := uint64(0); ; i++ {
			ev, err := stream.Recv()
			if err == io.EOF || i >= sent {
				t.Fatalf("the stream ended after %d events without an error", i)
			}
			if err != nil {
				wantError(t, err, ReasonStalled)
				break
			}
			if got := ev.GetFlip().GetEpoch(); got != i {
				t.Fatalf("event %d after event %d", got, i-1)
			}
		}
		e.mu.Lock()
		left := len(e.mu.subs)
		e.mu.Unlock()
		if left != 0 {
			t.Errorf("%d subscribers are left", left)
		}
		keys := r.ea.session("s", 2) // and the daemon goes on
		r.b.mustEnd(request("s"), committed, "", moved)
		r.eb.check("", keys)
		r.settle()
	})
}

// A daemon that closes says so on its streams.
func TestEventsEndAtClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a")
		f.nodes["a"].register("e", testLayout(), 1<<20)
		s := f.nodes["a"].events("e")
		if err := f.nodes["a"].d.Close(); err != nil {
			t.Fatal(err)
		}
		for range s.got {
		}
		wantError(t, s.err, ReasonShuttingDown)
	})
}
