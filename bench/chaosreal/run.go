package chaosreal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// run is one seed.
type run struct {
	plan     plan
	f        *fleet
	sessions []*session
	strikes  *striker
	own      []ownFault
	began    time.Time

	mu struct {
		sync.Mutex
		log      []string
		broken   []error // promises
		outcomes map[int]outcome
	}
}

// result is what came of a run.
type result struct {
	plan     plan
	broken   []error
	log      []string
	dir      string // kept
	fired    []fired
	own      []ownFault
	missed   int // faults that waited for what did not come
	outcomes map[int]outcome
	took     time.Duration
}

func (r *run) logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.log = append(r.mu.log, fmt.Sprintf("%7.3f ", time.Since(r.began).Seconds())+fmt.Sprintf(format, args...))
}

// fail notes a promise that was broken.
func (r *run) fail(err error) {
	if err == nil {
		return
	}
	r.logf("BROKEN: %v", err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.broken = append(r.mu.broken, err)
}

// runSeed does one run whole.
func runSeed(ctx context.Context, cfg Config, p plan) (res result) {
	r := &run{plan: p, began: time.Now()}
	r.mu.outcomes = map[int]outcome{}
	defer func() {
		res = result{plan: p, broken: r.mu.broken, log: r.mu.log, outcomes: r.mu.outcomes, took: time.Since(r.began)}
		res.own = r.own
		if r.strikes != nil {
			res.fired, res.missed = r.strikes.mu.fired, len(p.faults)-len(r.strikes.mu.fired)
		}
		if r.f != nil && len(res.broken) > 0 && cfg.Keep {
			res.dir = r.f.dir
		}
	}()
	f, err := openFleet(ctx, cfg, fleetOptions{wan: runWAN(), stateMount: p.fills(), faults: p.daemons})
	if err != nil {
		r.fail(fmt.Errorf("start the fleet: %w", err))
		return res
	}
	r.f = f
	r.logf("the fleet runs")
	r.strikes = newStriker(f, p.faults, r.logf)
	defer func() {
		r.own = f.own()
		f.cfg.Keep = cfg.Keep && len(r.mu.broken) > 0
		r.fail(f.close())
	}()
	if err := r.begin(ctx); err != nil {
		r.fail(err)
		return res
	}
	before := r.measure(ctx)
	n := 0
	for _, wave := range p.waves {
		var wg sync.WaitGroup
		for _, m := range wave {
			ordinal := n
			n++
			wg.Go(func() { r.migrate(ctx, ordinal, m) })
		}
		wg.Wait()
	}
	r.logf("healing")
	err = r.strikes.heal(ctx)
	r.fail(err)
	if err == nil && ctx.Err() == nil {
		r.check(ctx, before)
	}
	return res
}

// begin has the sessions come about, each at its home.
func (r *run) begin(ctx context.Context) error {
	errs := make(chan error, len(r.plan.sessions))
	for i, s := range r.plan.sessions {
		sess := newSession(i, s, r.plan.seed)
		r.sessions = append(r.sessions, sess)
		go func() { errs <- r.open(ctx, sess, s) }()
	}
	var all []error
	for range r.plan.sessions {
		if err := <-errs; err != nil {
			all = append(all, fmt.Errorf("a session's first turn: %w", err))
		}
	}
	return errors.Join(all...)
}

// open has a session come about, at the sixth attempt at the latest: the daemon may be ending by its own faults.
func (r *run) open(ctx context.Context, s *session, as seedSession) error {
	n := r.f.nodes[as.home]
	for attempt := 1; ; attempt++ {
		err := s.speak(ctx, n, as.blocks)
		if err == nil || attempt == 6 || len(r.plan.daemons[as.home]) == 0 {
			return err
		}
		r.logf("%s at %s: %v", s.id, n.name, err)
		_ = n.mend(ctx, false) // the next attempt tells
	}
}

// rashAfter is how long a caller waits for a destination that is not ready.
const rashAfter = 3 * time.Second

// migrate does one migration of the plan, with what goes on beside it.
func (r *run) migrate(ctx context.Context, ordinal int, m move) {
	s := r.sessions[m.session]
	_, keys, from := s.view()
	to := (from + m.hop) % nodeCount
	if s.asked >= 0 { // as a proxy does: the same destination, whose owner's record decides
		to = s.asked
	}
	n := r.f.nodes[to]
	req := newRequest(fmt.Sprintf("seed%d-%d", r.plan.seed, ordinal), s.ref(), m.mode, s.nextRepin())
	req.SourceHint, req.Takeover = r.f.nodes[from].name, m.takeover
	if m.keys {
		req.Session, req.Keys, req.Takeover, req.RepinSeq = &pb.SessionRef{Tenant: s.tenant}, keys, false, 0
	}
	r.logf("migration %d: %s of %s from %s to %s, repin %d", ordinal, m, s.id, r.f.nodes[from].name, n.name, req.GetRepinSeq())
	if !m.rash {
		ready, cancel := context.WithTimeout(ctx, rashAfter)
		_ = n.attached(ready) // a proxy sends no session where there is no engine, but not for ever
		cancel()
	}
	var beside sync.WaitGroup
	out, err := callMigrate(ctx, n, req, r.watcher(ctx, ordinal, m, from, to, &beside, req))
	beside.Wait()
	if err != nil {
		r.fail(fmt.Errorf("migration %d to %s: %w", ordinal, n.name, err))
	}
	r.logf("migration %d: %s %s, ownership %v, %d of %d blocks usable, asked %d times more: %s", ordinal, out, out.code, out.report.GetOwnership(),
		out.report.GetBlocksUsable(), out.report.GetBlocksTotal(), out.again, out.report.GetMessage())
	r.mu.Lock()
	out.from, out.to = from, to
	r.mu.outcomes[ordinal] = out
	r.mu.Unlock()
	if !m.keys {
		s.ended(out, to)
		if out.report.GetOwnership() != pb.Ownership_OWNERSHIP_MOVED { // an engine that has a turn to serve serves it, and publishes
			r.aside(ordinal, "turn where it has not come", s.speak(ctx, n, 1))
		}
	}
	r.strikes.reached(ctx, ordinal, from, to, pb.MigrationState_MIGRATION_STATE_CANCELLED, 1) // what waited for a state that was too short to see
}

// watcher tells the faults of each message, and does beside the migration what the plan says.
func (r *run) watcher(ctx context.Context, ordinal int, m move, from, to int, beside *sync.WaitGroup, req *pb.MigrateRequest) watcher {
	s, n := r.sessions[m.session], r.f.nodes[to]
	var begun, dropped, cancelled bool
	return func(u *pb.MigrateResponse) (drop bool) {
		share := 0.0
		if p := u.GetProgress(); p.GetPagesTotal() > 0 {
			share = float64(p.GetPagesDone()) / float64(p.GetPagesTotal())
		}
		moves := u.GetState() == pb.MigrationState_MIGRATION_STATE_TRANSFERRING
		r.strikes.reached(ctx, ordinal, from, to, u.GetState(), share)
		if !begun && moves {
			begun = true
			if m.front {
				beside.Go(func() { r.aside(ordinal, "front", s.front(ctx, n, u.GetMigrationId())) })
			}
			if m.grow {
				beside.Go(func() { r.aside(ordinal, "turn", s.speak(ctx, r.f.nodes[from], 2)) })
			}
		}
		if m.cancel >= 0 && !cancelled && moves && share >= m.cancel {
			cancelled = true
			beside.Go(func() {
				_, err := n.move.CancelMigration(ctx, &pb.CancelMigrationRequest{RequestId: req.GetRequestId()})
				r.aside(ordinal, "cancel", err)
			})
		}
		if m.reattach >= 0 && !dropped && moves && share >= m.reattach {
			dropped = true
			return true
		}
		return false
	}
}

// aside notes what came of something beside a migration. It may fail, but not bring wrong pages.
func (r *run) aside(ordinal int, what string, err error) {
	r.logf("migration %d: %s beside it: %v", ordinal, what, err)
	if isDamage(err) && !r.scribbled() {
		r.fail(fmt.Errorf("%s beside migration %d: %w", what, ordinal, err))
	}
}

// scribbled says that some arena's file was written over: an engine there may read what somebody else wrote.
func (r *run) scribbled() bool {
	for _, n := range r.f.nodes {
		n.mu.Lock()
		hit := len(n.mu.damaged) > 0
		n.mu.Unlock()
		if hit {
			return true
		}
	}
	return false
}

// String is the run in a line.
func (res result) String() string {
	var faults, ends []string
	for _, f := range res.fired {
		faults = append(faults, f.Kind.String())
	}
	for _, f := range res.own {
		faults = append(faults, f.shot)
	}
	for i := range len(res.outcomes) {
		ends = append(ends, res.outcomes[i].String())
	}
	verdict := "whole"
	if len(res.broken) > 0 {
		verdict = fmt.Sprintf("BROKEN: %v", res.broken[0])
	}
	return fmt.Sprintf("%.1f s, faults %s, migrations %s: %s", res.took.Seconds(), strings.Join(faults, " "), strings.Join(ends, " "), verdict)
}

// explain is a failed run for people: what was planned, what happened, what broke.
func (res result) explain(repeat string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", res.plan, strings.Join(res.log, "\n"))
	for _, err := range res.broken {
		fmt.Fprintf(&b, "BROKEN: %v\n", err)
	}
	if res.dir != "" {
		fmt.Fprintf(&b, "logs and state: %s\n", res.dir)
	}
	fmt.Fprintf(&b, "again: %s\n", repeat)
	return b.String()
}

// ownFault is a fault that a daemon did to itself.
type ownFault struct {
	node int
	kind string
	shot string
}

// own reads what the daemons have done to themselves from their logs of faults.
func (f *fleet) own() (out []ownFault) {
	for _, n := range f.nodes {
		if n == nil {
			continue
		}
		data, err := os.ReadFile(n.faultsLog())
		if err != nil {
			continue // there is none where nothing struck
		}
		for line := range strings.Lines(string(data)) {
			if fields := strings.Fields(line); len(fields) > 1 {
				_, kind, _ := strings.Cut(fields[1], ":")
				_, kind, _ = strings.Cut(kind, ":")
				out = append(out, ownFault{n.index, kind, fields[1]})
			}
		}
	}
	return out
}

func joinErrors(errs []error) error { return errors.Join(errs...) }
