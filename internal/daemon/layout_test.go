package daemon

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// differing has one layout a field of the pin, each unlike testLayout in that field alone.
func differing() map[string]*pb.Layout {
	out := map[string]*pb.Layout{}
	for field, edit := range map[string]func(*pb.Layout){
		"ModelID":        func(l *pb.Layout) { l.ModelId = "other" },
		"Revision":       func(l *pb.Layout) { l.Revision = "r2" },
		"WeightsVersion": func(l *pb.Layout) { l.WeightsVersion = "w2" },
		"LoRA":           func(l *pb.Layout) { l.Lora = "adapter" },
		"DType":          func(l *pb.Layout) { l.Dtype = pb.Dtype_DTYPE_FP16 },
		"Layers":         func(l *pb.Layout) { l.Layers = 5 },
		"KVHeads":        func(l *pb.Layout) { l.KvHeads = 4 },
		"HeadDim":        func(l *pb.Layout) { l.HeadDim = 32 },
		"BlockTokens":    func(l *pb.Layout) { l.BlockTokens = 32 },
		"PositionScheme": func(l *pb.Layout) { l.PositionScheme = "yarn" },
		"HashAlgorithm":  func(l *pb.Layout) { l.HashAlgorithm = "xxhash" },
		"HashSeed":       func(l *pb.Layout) { l.HashSeed = "1" },
		"SaltPolicy":     func(l *pb.Layout) { l.SaltPolicy = "tenant" },
	} {
		l := testLayout()
		edit(l)
		out[field] = l
	}
	return out
}

// Each field of the layout that differs is named with both values and a fix, before any byte moves.
func TestLayoutMismatch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b")
		a, b := f.nodes["a"], f.nodes["b"]
		ea := a.register("e", testLayout(), 1<<20)
		keys := ea.session("s", 3)
		for field, l := range differing() {
			id := "e-" + strings.ToLower(field)
			b.register(id, l, 1<<20)
			req := request("s")
			req.EngineId = id
			rep := b.mustEnd(req, failed, ReasonLayoutMismatch, unmoved)
			if rep.GetBytes() != 0 || rep.GetBlocksMoved() != 0 {
				t.Errorf("%s: bytes moved: %v", field, rep)
			}
			if msg := rep.GetMessage(); !strings.Contains(msg, "; "+field+": the destination has ") || strings.Count(msg, "the destination has") != 1 {
				t.Errorf("%s: message names other fields: %s", field, msg)
			}
			_, err := b.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: req})
			fl := wantError(t, err, ReasonLayoutMismatch)
			if len(fl.Fields) != 1 || fl.Fields[0].Field != field || !strings.Contains(fl.Fields[0].Fault, "the source has") {
				t.Errorf("%s: plan's faults %+v", field, fl.Fields)
			}
		}
		worst := proto.CloneOf(testLayout())
		worst.Layers, worst.HashSeed, worst.ModelId = 2, strings.Repeat("x", 200), strings.Repeat("y", 200)
		b.register("worst", worst, 1<<20)
		req := request("s")
		req.EngineId = "worst"
		rep := b.mustEnd(req, failed, ReasonLayoutMismatch, unmoved)
		for _, field := range []string{"ModelID", "Layers", "HashSeed"} {
			if !strings.Contains(rep.GetMessage(), "; "+field+": ") {
				t.Errorf("%s is not named: %s", field, rep.GetMessage())
			}
		}
		ea.check("", keys)
		f.wantOwner("s", "a")
		f.settle()
	})
}

// An engine that registers again with another layout or world is refused field by field, and keeps what it has.
func TestRegisterAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := r.ea.session("s", 3)
		ctx := context.Background()
		for field, l := range differing() {
			_, err := r.a.engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{EngineId: "e", Layout: l})
			fl := wantError(t, err, ReasonLayoutMismatch)
			if len(fl.Fields) != 1 || fl.Fields[0].Field != field {
				t.Errorf("%s: faults %+v", field, fl.Fields)
			}
		}
		_, err := r.a.engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout(), World: 2})
		wantError(t, err, ReasonEngineMismatch)
		again, err := r.a.engine.RegisterEngine(ctx, &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout()})
		if err != nil || again.GetArenaPath() != r.ea.reg.GetArenaPath() || again.GetSlots() != r.ea.reg.GetSlots() {
			t.Errorf("the same registration again: %v, %v", again, err)
		}
		r.ea.check("", keys)
		r.settle()
	})
}

func TestRegisterRefusesBadInput(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a")
		for name, edit := range map[string]func(*pb.RegisterEngineRequest){
			"engine_id":                   func(q *pb.RegisterEngineRequest) { q.EngineId = "a/b" },
			"engine_name, engine_version": func(q *pb.RegisterEngineRequest) { q.EngineName = strings.Repeat("n", 65) },
			"rank, world":                 func(q *pb.RegisterEngineRequest) { q.Rank, q.World = 2, 2 },
			"arena_bytes":                 func(q *pb.RegisterEngineRequest) { q.ArenaBytes = -1 },
			"layout":                      func(q *pb.RegisterEngineRequest) { q.Layout = nil },
			"layout.dtype":                func(q *pb.RegisterEngineRequest) { q.Layout.Dtype = 0 },
			"layout.kind":                 func(q *pb.RegisterEngineRequest) { q.Layout.Kind = 9 },
			"Layers":                      func(q *pb.RegisterEngineRequest) { q.Layout.Layers = 0 },
			"BlockTokens":                 func(q *pb.RegisterEngineRequest) { q.Layout.BlockTokens = 1 << 31 },
			"Bytes":                       func(q *pb.RegisterEngineRequest) { q.ArenaBytes = 1 },
			"prefill.seconds_per_token":   func(q *pb.RegisterEngineRequest) { q.Prefill = &pb.PrefillSpeed{SecondsPerToken: -1} },
			"prefill.mfu":                 func(q *pb.RegisterEngineRequest) { q.Prefill = &pb.PrefillSpeed{Mfu: 2} },
		} {
			req := &pb.RegisterEngineRequest{EngineId: "e", Layout: testLayout(), ArenaBytes: 1 << 20}
			edit(req)
			_, err := f.nodes["a"].engine.RegisterEngine(context.Background(), req)
			fl := wantError(t, err, ReasonInvalid)
			if len(fl.Fields) == 0 || fl.Fields[0].Field != name {
				t.Errorf("%s: faults %+v", name, fl.Fields)
			}
		}
		f.settle()
	})
}

// The engine is the named one, the only one, or the one whose layout the session has; otherwise the caller must say.
func TestWhichEngine(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a", "b")
		a, b := f.nodes["a"], f.nodes["b"]
		ea := a.register("e", testLayout(), 1<<20)
		a.register("other", differing()["HashSeed"], 1<<20)
		n := 0
		next := func() (*pb.MigrateRequest, [][]byte) {
			n++
			id := fmt.Sprintf("s%d", n)
			return request(id), ea.session(id, 2)
		}
		req, _ := next()
		b.mustEnd(req, failed, ReasonEngineNotFound, unmoved) // none at all
		req, _ = next()
		req.EngineId = "nobody"
		b.mustEnd(req, failed, ReasonEngineNotFound, unmoved)

		b.register("x", differing()["Revision"], 1<<20)
		req, _ = next()
		b.mustEnd(req, failed, ReasonLayoutMismatch, unmoved) // the only one, and it does not fit
		b.register("y", differing()["LoRA"], 1<<20)
		req, _ = next()
		b.mustEnd(req, failed, ReasonEngineNotFound, unmoved) // none of several fits

		e1 := b.register("e1", testLayout(), 1<<20)
		req, keys := next()
		b.mustEnd(req, committed, "", moved) // by its pin
		e1.check("", keys)

		e2 := b.register("e2", testLayout(), 1<<20)
		req, keys = next()
		b.mustEnd(req, failed, ReasonEngineAmbiguous, unmoved)
		ea.check("", keys)
		f.wantOwner(req.GetSession().GetSessionId(), "a")
		again := request(req.GetSession().GetSessionId())
		again.EngineId = "e2"
		b.mustEnd(again, committed, "", moved)
		e2.check("", keys)

		// Named blocks take the engine of their layout, too.
		repl := request("")
		repl.Session, repl.SourceHint, repl.Keys = &pb.SessionRef{}, "a", keys
		b.mustEnd(repl, failed, ReasonEngineAmbiguous, nobody)
		f.settle()
	})
}
