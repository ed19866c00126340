package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/bench/refengine"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Observer is told of what happens, in order, from one goroutine. Any field may be nil.
type Observer struct {
	// Step begins a chapter.
	Step func(text string)
	// Turn has been spoken in a region.
	Turn func(region string, prompt int, res *refengine.Result)
	// Plan has been made.
	Plan func(*pb.PlanResponse)
	// Migration moves; called for each message of the stream.
	Migration func(*pb.MigrateResponse)
}

func (o Observer) step(format string, args ...any) {
	if o.Step != nil {
		o.Step(fmt.Sprintf(format, args...))
	}
}

// Result is what came of Run.
type Result struct {
	// Identical: every token and every step's logits hash of the continuation in the second region equal the first's.
	Identical bool
	// Watermarked: the source perturbed its KV, and a run from the tokens alone, without it, continues differently.
	Watermarked bool
	// ControlDiffers: that run was made, and differs.
	ControlDiffers bool
	// PrefilledTail is how many of the session's tokens the second region computed before it went on.
	PrefilledTail int
	// Tokens of the session when it moved.
	Tokens int
	// Plan as asked for before the move.
	Plan *pb.PlanResponse
	// Report of the migration.
	Report *pb.MigrationReport
	// Recompute is how long the second region's engine took to prefill the session from its tokens.
	Recompute time.Duration
	// Continue is how long it took to load the moved KV and prefill the tail.
	Continue time.Duration
}

// Moved reports whether the migration brought KV, so that there is something to verify.
func (r *Result) Moved() bool {
	return r.Report.GetState() == pb.MigrationState_MIGRATION_STATE_COMMITTED && r.Report.GetPages() > 0
}

// Run tells the whole story. It starts a fleet and closes it on every path.
func Run(ctx context.Context, cfg Config, o Observer) (res *Result, err error) {
	o.step("starting two regions, joined by %s", cfg.withDefaults().WAN)
	f, err := Start(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Run(ctx, o)
}

// Run tells the story on a fresh fleet.
func (f *Fleet) Run(ctx context.Context, o Observer) (*Result, error) {
	talk, err := f.Converse(ctx, o)
	if err != nil {
		return nil, err
	}
	next := talk.Next()
	o.step("what the first region would say next, kept for the comparison")
	want, err := f.East.Generate(ctx, refengine.Request{Session: talk.Session, Tokens: next, MaxNew: proofNew, UseCache: true})
	if err != nil {
		return nil, err
	}
	res := &Result{Tokens: len(talk.Tokens)}
	o.step("the proxy re-pins the session to %s: what would each way cost?", f.West.Name)
	if res.Plan, err = f.Plan(ctx, talk.Session); err != nil {
		return nil, err
	}
	if o.Plan != nil {
		o.Plan(res.Plan)
	}
	o.step("migrating to %s%s", f.West.Name, f.told(res.Plan.GetPlan().GetWinner()))
	if res.Report, err = f.Migrate(ctx, f.West, Move{Session: talk.Session, Mode: f.cfg.Mode, RepinSeq: 1}, o.Migration); err != nil {
		return nil, err
	}
	if bad := res.Report.GetState(); bad == pb.MigrationState_MIGRATION_STATE_FAILED || bad == pb.MigrationState_MIGRATION_STATE_CANCELLED {
		return nil, fmt.Errorf("the migration ended in %v: %s: %s", bad, res.Report.GetCode(), res.Report.GetMessage())
	}
	return res, f.verify(ctx, o, talk, next, want, res)
}

// told says that the demo was told what to do, where the planner chose otherwise.
func (f *Fleet) told(chosen pb.Mode) string {
	if f.cfg.Mode == pb.Mode_MODE_UNSPECIFIED || f.cfg.Mode == chosen {
		return ""
	}
	return fmt.Sprintf(": %s all the same, to see it (--mode auto does what was chosen)", strings.ToLower(strings.TrimPrefix(f.cfg.Mode.String(), "MODE_")))
}

// verify continues in the second region and compares, then prefills from the tokens alone as the control.
func (f *Fleet) verify(ctx context.Context, o Observer, talk *Talk, next []int, want *refengine.Result, res *Result) error {
	o.step("the conversation goes on in %s", f.West.Name)
	got, err := f.West.Generate(ctx, refengine.Request{Session: talk.Session, Tokens: next, MaxNew: proofNew, UseCache: true})
	if err != nil {
		return err
	}
	if o.Turn != nil {
		o.Turn(f.West.Name, len(next), got)
	}
	res.Identical = slices.Equal(got.Steps, want.Steps)
	res.PrefilledTail = max(0, got.PrefilledTokens-(len(next)-len(talk.Tokens)))
	res.Continue = seconds(got.LoadSeconds + got.PrefillSeconds)
	o.step("for comparison: %s prefills everything from the tokens", f.West.Name)
	control, err := f.West.Generate(ctx, refengine.Request{Tokens: next, MaxNew: proofNew})
	if err != nil {
		return err
	}
	if o.Turn != nil {
		o.Turn(f.West.Name+", from the tokens alone", len(next), control)
	}
	res.ControlDiffers = !slices.Equal(control.Steps, want.Steps)
	res.Watermarked = talk.Watermarked && res.ControlDiffers
	res.Recompute = seconds(control.PrefillSeconds)
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Talk is a conversation so far.
type Talk struct {
	// Session is its id.
	Session string
	// Tokens of the whole sequence.
	Tokens []int
	// Watermarked: every block of it was perturbed as it was committed.
	Watermarked bool
	rng         *mathrand.Rand
	vocab       int
}

// NewTalk begins a conversation whose words depend on the configured seed and its id.
func (f *Fleet) NewTalk(session string) (*Talk, error) {
	m, err := f.cfg.shape()
	if err != nil {
		return nil, err
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(session)) // never fails
	return &Talk{Session: session, Watermarked: true, rng: mathrand.New(mathrand.NewPCG(f.cfg.Seed, h.Sum64())), vocab: m.Vocab}, nil
}

// Ask adds n words of the user.
func (t *Talk) Ask(n int) {
	for range n {
		t.Tokens = append(t.Tokens, t.rng.IntN(t.vocab))
	}
}

// Next is the conversation with the user's next words, without adding them: called twice it says the same.
func (t *Talk) Next() []int {
	rng := mathrand.New(mathrand.NewPCG(uint64(len(t.Tokens)), 99))
	out := slices.Clone(t.Tokens)
	for range userTokens {
		out = append(out, rng.IntN(t.vocab))
	}
	return out
}

// Converse holds the configured conversation in the first region and publishes each turn.
func (f *Fleet) Converse(ctx context.Context, o Observer) (*Talk, error) {
	t, err := f.NewTalk("demo")
	if err != nil {
		return nil, err
	}
	t.Ask(f.cfg.Prefix - userTokens)
	for range f.cfg.Turns {
		t.Ask(userTokens)
		o.step("a turn in %s: %d tokens so far", f.East.Name, len(t.Tokens))
		if err := f.Speak(ctx, f.East, t, newTokens, o); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// Speak has region r's engine answer with n tokens and publish the conversation.
func (f *Fleet) Speak(ctx context.Context, r *Region, t *Talk, n int, o Observer) error {
	res, err := r.Generate(ctx, refengine.Request{Session: t.Session, Tokens: t.Tokens, MaxNew: n, Commit: true, Publish: true, UseCache: true})
	if err != nil {
		return err
	}
	if o.Turn != nil {
		o.Turn(r.Name, len(t.Tokens), res)
	}
	t.Tokens = append(t.Tokens, res.Tokens...)
	t.Watermarked = t.Watermarked && res.Watermarked
	return nil
}

// Move is what to migrate, and how.
type Move struct {
	Session  string
	Mode     pb.Mode
	RepinSeq uint64
}

// Plan asks the second region what each way of bringing a session there would cost.
func (f *Fleet) Plan(ctx context.Context, session string) (*pb.PlanResponse, error) {
	return pb.NewMigrationServiceClient(f.West.Daemon).Plan(ctx, &pb.PlanRequest{Migrate: f.West.request(Move{Session: session, RepinSeq: 1})})
}

// request asks r for a move from the other region.
func (r *Region) request(m Move) *pb.MigrateRequest {
	return &pb.MigrateRequest{
		RequestId: "demo-" + rand.Text(), Session: &pb.SessionRef{SessionId: m.Session}, EngineId: r.EngineID(), SourceHint: r.peer().node(),
		Mode: m.Mode, RepinSeq: m.RepinSeq, Deadline: durationpb.New(10 * time.Minute), ExpectedTurns: 1,
	}
}

// Migrate moves a session to a region and returns the report. When ctx ends, the migration is cancelled.
func (f *Fleet) Migrate(ctx context.Context, to *Region, m Move, each func(*pb.MigrateResponse)) (*pb.MigrationReport, error) {
	client := pb.NewMigrationServiceClient(to.Daemon)
	req := to.request(m)
	stream, err := client.Migrate(ctx, req)
	if err != nil {
		return nil, err
	}
	for {
		u, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil, errors.New("the daemon ended the stream without a report")
		case err != nil && ctx.Err() != nil:
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second) // the daemon goes away next; be brief
			defer cancel()
			_, _ = client.CancelMigration(stop, &pb.CancelMigrationRequest{RequestId: req.GetRequestId()})
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, err
		}
		if each != nil {
			each(u)
		}
		if u.GetReport() != nil {
			return u.GetReport(), nil
		}
	}
}
