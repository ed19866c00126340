package daemon

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer/wire"
)

// layerReader collects what one reader is told and holds every event to the source's bytes at the moment it is read.
type layerReader struct {
	who    string
	e      *testEngine // at the destination
	size   int
	place  map[string]int // of each key of the session
	seen   map[[2]int]int // (block, group): the number of the event that named it
	whole  map[int]bool
	events int
}

func newLayerReader(who string, e *testEngine, size int, keys [][]byte) *layerReader {
	r := &layerReader{who: who, e: e, size: size, place: map[string]int{}, seen: map[[2]int]int{}, whole: map[int]bool{}}
	for i, k := range keys {
		r.place[string(k)] = i
	}
	return r
}

func (r *layerReader) groups() int { return (int(r.e.layout.GetLayers()) + r.size - 1) / r.size }

func (r *layerReader) done() bool {
	return len(r.seen) == len(r.place)*r.groups() && len(r.whole) == len(r.place)
}

func (r *layerReader) layers(l *pb.LandedLayers) {
	t := r.e.n.f.t
	t.Helper()
	first, n, all := int(l.GetFirstLayer()), int(l.GetLayers()), int(r.e.layout.GetLayers())
	if first%r.size != 0 || n != min(r.size, all-first) || len(l.GetKeys()) == 0 || len(l.GetSlots()) != len(l.GetKeys()) || len(l.GetBlocks()) != len(l.GetKeys()) || l.GetMigrationId() == "" {
		t.Fatalf("%s: event of layers %d+%d: %v", r.who, first, n, l)
	}
	r.events++
	page := r.e.reg.GetPageBytes()
	got := make([]byte, int64(n)*page)
	for i, k := range l.GetKeys() {
		b, known := r.place[string(k)]
		at := [2]int{b, first / r.size}
		if _, again := r.seen[at]; !known || again || int(l.GetBlocks()[i]) != b || r.whole[b] {
			t.Fatalf("%s: group %v as block %d, known %v, again %v, after the block: %v", r.who, at, l.GetBlocks()[i], known, again, r.whole[b])
		}
		r.seen[at] = r.events
		if _, err := r.e.file.ReadAt(got, int64(l.GetSlots()[i].GetSlot())*r.e.reg.GetStrideBytes()+int64(first)*page); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, r.e.content(k)[int64(first)*page:int64(first+n)*page]) {
			t.Fatalf("%s: layers %d+%d of block %d differ from the source when they are named", r.who, first, n, b)
		}
	}
}

func (r *layerReader) blocks(l *pb.Landed) {
	t := r.e.n.f.t
	t.Helper()
	for _, k := range l.GetKeys() {
		b := r.place[string(k)]
		if r.whole[b] {
			t.Fatalf("%s: block %d landed twice", r.who, b)
		}
		r.whole[b] = true
		for g := range r.groups() {
			if _, ok := r.seen[[2]int{b, g}]; !ok {
				t.Fatalf("%s: block %d has landed before its group %d", r.who, b, g)
			}
		}
	}
}

func (r *layerReader) event(ev *pb.EventsResponse) {
	switch {
	case ev.GetLandedLayers() != nil:
		r.layers(ev.GetLandedLayers())
	case ev.GetLanded() != nil:
		r.blocks(ev.GetLanded())
	}
}

// layerEvents opens an event stream that names groups of layers.
func (n *node) layerEvents(size int) pb.EngineService_EventsClient {
	n.f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour) // what does not come is a failure
	n.f.t.Cleanup(cancel)
	s, err := n.engine.Events(ctx, &pb.EventsRequest{EngineId: "e", LandedLayers: uint32(size)})
	if err == nil {
		_, err = s.Header()
	}
	if err != nil {
		n.f.t.Fatal(err)
	}
	return s
}

// read reads a stream until its reader has all.
func (r *layerReader) read(s pb.EngineService_EventsClient, every time.Duration) {
	for !r.done() {
		ev, err := s.Recv()
		if err != nil {
			r.e.n.f.t.Errorf("%s: %v after %d groups", r.who, err, len(r.seen))
			return
		}
		r.event(ev)
		time.Sleep(every)
	}
}

// On a link that loses, every reader, of whatever group size, early, late or slow, is told of every group of every block
// once, when its bytes are in place and not before, and of the block after them.
func TestLandedLayers(t *testing.T) {
	for _, order := range []pb.FetchOrder{pb.FetchOrder_FETCH_ORDER_WHOLE_BLOCKS, pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR} {
		t.Run(order.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, wan.Model{RTT: 20 * time.Millisecond, Rate: 4e6, Loss: 0.01, Seed: 3}, nil)
				keys := r.ea.session("s", 150)
				early, slow, late := newLayerReader("early", r.eb, 3, keys), newLayerReader("slow", r.eb, 1, keys), newLayerReader("late", r.eb, 2, keys)
				ended := make(chan struct{}, 3)
				start := func(l *layerReader, every time.Duration) {
					s := r.b.layerEvents(l.size)
					go func() {
						defer func() { ended <- struct{}{} }()
						l.read(s, every)
					}()
				}
				start(early, 0)
				start(slow, 700*time.Millisecond)
				req := request("s")
				req.Landed, req.LandedLayers, req.Order = true, 1, order
				stream, err := r.b.mig.Migrate(context.Background(), req)
				if err != nil {
					t.Fatal(err)
				}
				caller, isLate := newLayerReader("caller", r.eb, 1, keys), false
				for {
					u, err := stream.Recv()
					if err != nil {
						t.Fatal(err)
					}
					for _, l := range u.GetLandedLayers() {
						caller.layers(l)
					}
					for _, l := range u.GetLanded() {
						caller.blocks(l)
					}
					if !isLate && len(caller.seen) > 200 {
						isLate = true
						start(late, 0)
					}
					if u.GetReport() != nil {
						wantReport(t, u.GetReport(), committed, "", moved)
						break
					}
				}
				for range 3 {
					<-ended
				}
				for _, l := range []*layerReader{early, slow, late, caller} {
					if !l.done() {
						t.Errorf("%s: %d groups and %d blocks of %d", l.who, len(l.seen), len(l.whole), len(keys))
					}
				}
				t.Logf("events: early %d, slow %d, late %d, caller %d", early.events, slow.events, late.events, caller.events)
				r.settle()
			})
		})
	}
}

// Group after group: when the last block of a group has landed, no more than what is in flight of the next ones has. In the
// usual order the first group ends with the last one.
func TestLayerGroupMajor(t *testing.T) {
	for _, order := range []pb.FetchOrder{pb.FetchOrder_FETCH_ORDER_UNSPECIFIED, pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR} {
		t.Run(order.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				r := newRig(t, wan.Model{RTT: 20 * time.Millisecond, Rate: 8e6, Seed: 1}, nil)
				keys := r.ea.session("s", 400)
				l := newLayerReader("engine", r.eb, 1, keys)
				s := r.b.layerEvents(1)
				req := request("s")
				req.LandedLayers, req.Order = 1, order
				m := r.b.begin(req)
				// Of each group: how many blocks of it had landed when group 0 was complete.
				at, landed := []int(nil), make([]int, 4)
				for !l.done() {
					ev, err := s.Recv()
					if err != nil {
						t.Fatal(err)
					}
					l.event(ev)
					landed[ev.GetLandedLayers().GetFirstLayer()] += len(ev.GetLandedLayers().GetKeys())
					if landed[0] == len(keys) && at == nil {
						at = append(at, landed...)
					}
				}
				wantReport(t, m.end(), committed, "", moved)
				r.eb.check("", keys)
				t.Logf("with group 0 whole, of each group: %v of %d blocks", at, len(keys))
				// 8 Mbit/s x 20 ms are 10 pages; the queue before the link holds as many, and slow start overshoots.
				const flight = 100
				major := order == pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR
				if major && (at[1] > flight || at[2] > 0 || at[3] > 0) {
					t.Errorf("group 0 ends when %v blocks of the groups have landed", at)
				}
				if !major && at[3] < len(keys)-flight {
					t.Errorf("whole blocks: group 0 ends when %v blocks of the groups have landed", at)
				}
				r.settle()
			})
		})
	}
}

// A group-major fetch that is cancelled midway gives everything back; one that follows brings all.
func TestLayerGroupMajorCancelled(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, slow, nil)
		keys := r.ea.session("s", 60)
		req := request("s")
		req.LandedLayers, req.Order = 2, pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR
		m := r.b.begin(req)
		m.landed(60 * 8192 / 3)
		if _, err := r.b.mig.CancelMigration(context.Background(), &pb.CancelMigrationRequest{RequestId: req.GetRequestId()}); err != nil {
			t.Fatal(err)
		}
		wantReport(t, m.end(), cancelled, ReasonCancelled, unmoved)
		time.Sleep(10 * time.Second) // the ends of small chunks take their time on this link
		r.settle()
		l := newLayerReader("engine", r.eb, 4, keys)
		s := r.b.layerEvents(4)
		again := request("s")
		again.LandedLayers, again.Order = 4, pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR
		again.RepinSeq = 1
		rep := r.b.mustEnd(again, committed, "", moved)
		if n := rep.GetBlocksMoved(); n < 50 { // in the order of blocks a third would be whole
			t.Errorf("%d blocks moved, want nearly all 60: hardly any was whole", n)
		}
		for len(l.whole) < int(rep.GetBlocksMoved()) {
			ev, err := s.Recv()
			if err != nil {
				t.Fatal(err)
			}
			l.event(ev)
		}
		if len(l.seen) != len(l.whole) {
			t.Errorf("%d groups of %d blocks", len(l.seen), len(l.whole))
		}
		r.eb.check("", keys)
		r.settle()
	})
}

func TestLayersRefused(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		r.ea.session("s", 1)
		for name, edit := range map[string]func(*pb.MigrateRequest){
			"more than the layout has":   func(q *pb.MigrateRequest) { q.LandedLayers = 5 },
			"more than any layout has":   func(q *pb.MigrateRequest) { q.LandedLayers, q.EngineId = 1025, "x" },
			"an unknown order":           func(q *pb.MigrateRequest) { q.Order = 17 },
			"group-major without a size": func(q *pb.MigrateRequest) { q.Order = pb.FetchOrder_FETCH_ORDER_LAYER_GROUP_MAJOR },
		} {
			req := request("s")
			edit(req)
			_, _, err := r.b.migrate(req)
			if f := wantError(t, err, ReasonInvalid); len(f.Fields) != 1 {
				t.Errorf("%s: %v", name, f)
			}
		}
		s, err := r.b.engine.Events(context.Background(), &pb.EventsRequest{EngineId: "e", LandedLayers: 5})
		if err == nil {
			_, err = s.Recv()
		}
		wantError(t, err, ReasonInvalid)

		// With two engines it is the session that says which one it is.
		other := testLayout()
		other.Layers = 8
		r.b.register("other", other, 1<<20)
		req := request("s")
		req.LandedLayers, req.EngineId = 7, ""
		r.b.mustEnd(req, failed, ReasonInvalid, unmoved)
		req = request("s")
		req.LandedLayers = 4
		r.b.mustEnd(req, committed, "", moved)
		r.settle()
	})
}

// The list of descriptors is refused when it is too long, with the least size of a group that does.
func TestPageOrder(t *testing.T) {
	m := &migration{}
	m.drive.engine = &engine{layout: kvstore.Layout{Layers: 80}}
	for _, n := range []int{1, 63, 3276, 3277, 4000, 100_000, 262_144, 262_145} {
		m.demand.groupMajor = false
		if _, err := m.pageOrder(n); (err == nil) != (n <= wire.MaxDescs) {
			t.Errorf("%d whole blocks: %v", n, err)
		}
		m.demand.groupMajor = true
		least := 0
		for size := 80; size >= 1; size-- {
			m.demand.landedLayers = size
			o, err := m.pageOrder(n)
			if err == nil {
				least = size
				seen := make([]int, n) // every page of every block once, groups in order
				for i, last := 0, 0; i < o.pairs() && n < 100; i++ {
					b, first, layers := o.pair(i)
					if first < last || seen[b] != first || layers < 1 || layers > size {
						t.Fatalf("descriptor %d of groups of %d: block %d, layers %d+%d after %d", i, size, b, first, layers, seen[b])
					}
					seen[b], last = first+layers, first
				}
				continue
			}
			if f := classify(err); f.Reason != ReasonInvalid || n <= wire.MaxDescs && f.Fields[0].Fault != "must be "+fmt.Sprintf("at least %d with order LAYER_GROUP_MAJOR for %d missing blocks of 80 layers: blocks times groups is at most 262144", least, n) {
				t.Errorf("%d blocks, groups of %d: %v", n, size, err)
			}
			if n*((80+size-1)/size) <= wire.MaxDescs {
				t.Errorf("%d blocks in groups of %d are refused: %v", n, size, err)
			}
		}
	}
}

// Against the page matrix: at the end of every sweep each reader has been given the whole groups of blocks that are not gone,
// each once.
func TestLayersBruteForce(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		log := &landedLog{migration: "m"}
		layers := 1 + rng.IntN(9)
		type reader struct {
			place *layerPlace
			given []map[[2]int]bool // a round
		}
		readers := make([]*reader, 4)
		for i := range readers {
			readers[i] = &reader{place: newLayerPlace(1 + rng.IntN(layers))}
		}
		var rounds []*layerRound
		var matrix [][][]bool // round, block, layer
		var whole []map[int]bool
		sweep := func(x *reader) {
			x.place.begin()
			for {
				l := log.layersSince(x.place, 1+rng.IntN(50))
				if l == nil {
					break
				}
				round := int(l.GetBlocks()[0]) / 1000
				for i, b := range l.GetBlocks() {
					for len(x.given) <= round {
						x.given = append(x.given, map[[2]int]bool{})
					}
					at := [2]int{int(b) % 1000, int(l.GetFirstLayer())}
					if x.given[round][at] || string(l.GetKeys()[i]) != fmt.Sprintf("key-%06d", b) || l.GetSlots()[i].GetSlot() != b {
						t.Fatalf("seed %d: group %v again, or as %v", seed, at, l)
					}
					x.given[round][at] = true
				}
			}
			for round := range rounds {
				for b := range matrix[round] {
					for first := 0; first < layers; first += x.place.size {
						all := !rounds[round].over || whole[round][b]
						for _, p := range matrix[round][b][first:min(layers, first+x.place.size)] {
							all = all && p
						}
						given := len(x.given) > round && x.given[round][[2]int{b, first}]
						if all && !given || given && !all && !rounds[round].over {
							t.Fatalf("seed %d: round %d, block %d, layers from %d: given %v, landed %v", seed, round, b, first, given, all)
						}
					}
				}
			}
		}
		for round := range 3 {
			n := 1 + rng.IntN(200)
			ws := make([]wanted, n)
			for i := range ws {
				at := round*1000 + i
				ws[i] = wanted{index: at, key: kvstore.BlockKey(fmt.Sprintf("key-%06d", at)), local: kvstore.SlotRef{Slot: uint32(at), Generation: 1}}
			}
			r := newLayerRound(ws, layers)
			log.beginRound(r)
			rounds, matrix, whole = append(rounds, r), append(matrix, make([][]bool, n)), append(whole, map[int]bool{})
			for b := range n {
				matrix[round][b] = make([]bool, layers)
			}
			pages := rng.Perm(n * layers)
			if round < 2 {
				pages = pages[:rng.IntN(len(pages)+1)] // it fails
			}
			for _, p := range pages {
				b, layer := p/layers, p%layers
				r.landed(b, layer, 1)
				matrix[round][b][layer] = true
				if all := func() bool {
					for _, ok := range matrix[round][b] {
						if !ok {
							return false
						}
					}
					return true
				}(); all && rng.IntN(10) > 0 { // some are not committed
					r.committed(b)
					whole[round][b] = true
				}
				if rng.IntN(100) == 0 {
					sweep(readers[rng.IntN(len(readers)-1)]) // the last reader comes late
				}
			}
			if rng.IntN(3) > 0 {
				sweep(readers[0])
			}
			log.endRound(r)
		}
		for _, x := range readers {
			sweep(x)
		}
	}
}

// A page costs no allocation, whether it completes a group or not.
func TestLandedPageAllocs(t *testing.T) {
	m := &migration{}
	m.mu.changed = make(chan struct{})
	m.drive.engine = &engine{layout: kvstore.Layout{Layers: 80, KVHeads: 1, HeadDim: 8, BlockTokens: 1}}
	m.drive.wanted = make([]wanted, 1000)
	land := newLanding(m, m.drive.wanted, pageOrder{blocks: 1000, layers: 80, size: 1})
	page := 0
	if n := testing.AllocsPerRun(10_000, func() {
		land.landed(page, 0, 1)
		page++
	}); n != 0 {
		t.Errorf("%v allocations a page", n)
	}
	log := &landedLog{}
	log.beginRound(land.round)
	p, got := newLayerPlace(1), 0
	for l := log.layersSince(p, math.MaxInt); l != nil; l = log.layersSince(p, math.MaxInt) {
		got += len(l.GetKeys())
	}
	if got != page {
		t.Errorf("%d groups of %d pages", got, page)
	}
}

// What a subscriber does not read waits as bits: a group is told in as few events as its keys allow.
func TestLayersCoalesce(t *testing.T) {
	e := &engine{}
	e.mu.subs, e.mu.logs = map[*subscriber]struct{}{}, map[*landedLog]struct{}{}
	sub, stop := e.subscribe(2)
	defer stop()
	const blocks, layers = 40_000, 5
	log, r := &landedLog{migration: "m"}, newLayerRound(make([]wanted, blocks), layers)
	log.beginRound(r)
	e.beginLanding(log)
	for p := range blocks * layers {
		r.landed(p/layers, p%layers, 1)
		e.landedMore()
	}
	var got []string
	for ev := e.next(sub); ev != nil; ev = e.next(sub) {
		l := ev.GetLandedLayers()
		got = append(got, fmt.Sprintf("%d+%d: %d", l.GetFirstLayer(), l.GetLayers(), len(l.GetKeys())))
	}
	want := []string{"0+2: 16384", "0+2: 16384", "0+2: 7232", "2+2: 16384", "2+2: 16384", "2+2: 7232", "4+1: 16384", "4+1: 16384", "4+1: 7232"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if n := len(sub.feeds[0].layers.given) * 64; n < 3*blocks || n > 3*(blocks+64) {
		t.Errorf("a reader's place takes %d bits for 3 groups of %d blocks", n, blocks)
	}
}

// A subscriber whose migration ends in the middle of its sweep still gets the rest.
func TestSweepAtTheEnd(t *testing.T) {
	e := &engine{}
	e.mu.subs, e.mu.logs = map[*subscriber]struct{}{}, map[*landedLog]struct{}{}
	sub, stop := e.subscribe(1)
	defer stop()
	if e.layerReaders.Load() != 1 {
		t.Error("the engine does not know that somebody wants layers")
	}
	log := &landedLog{migration: "m"}
	r := newLayerRound(make([]wanted, 2), 2)
	log.beginRound(r)
	e.beginLanding(log)
	land := func(b int) {
		r.landed(b, 0, 2)
		r.committed(b)
		log.add(landedBlock{index: b})
	}
	land(0)
	var got []string
	note := func(ev *pb.EventsResponse) bool {
		if l := ev.GetLandedLayers(); l != nil {
			got = append(got, fmt.Sprintf("layer %d of %v", l.GetFirstLayer(), l.GetBlocks()))
		} else if l := ev.GetLanded(); l != nil {
			got = append(got, fmt.Sprintf("blocks %v", l.GetBlocks()))
		} else if ev != nil {
			got = append(got, "flip")
		}
		return ev != nil
	}
	note(e.next(sub)) // layer 0 of block 0; the sweep goes on at layer 1
	land(1)
	e.publish(&pb.EventsResponse{Event: &pb.EventsResponse_Flip{Flip: &pb.Flip{}}})
	e.endLanding(log)
	for note(e.next(sub)) {
	}
	want := []string{"layer 0 of [0]", "layer 1 of [0 0]", "blocks [0]", "layer 0 of [0]", "blocks [1]", "flip"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if len(sub.feeds) != 0 {
		t.Error("the ended migration's log is still held")
	}
}
