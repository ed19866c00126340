package chaosreal

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// Table is what came of all runs.
type Table struct {
	// Runs that were made, and how many of them broke a promise.
	Runs, Failed int
	// Faults by kind; those that daemons did to themselves, see internal/fault, by "own " and its kind.
	Faults map[string]*Row
	// Codes of migrations that ended other than well, by how often.
	Codes map[string]int
	// Migrations that the plans had, the closing ones not counted.
	Migrations int
	// Took is the time of it all.
	Took time.Duration
	// NoSpace says why no disk was full; empty when some may have been.
	NoSpace string
}

// Row is what came of one kind of fault.
type Row struct {
	// Fired is how many struck, Moot how many of them found nothing to strike.
	Fired, Moot int
	// Outcomes counts, by name, how the migrations ended that they struck; of a daemon's own faults, those from and to that daemon.
	Outcomes map[string]int
}

// outcomeNames are the columns.
var outcomeNames = []string{"committed", "recompute", "redirect", "failed", "cancelled", "refused"}

// Run makes the runs and returns what came of them, an error when a promise was broken, telling Out of both meanwhile.
func Run(ctx context.Context, cfg Config) (*Table, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	t := &Table{Faults: map[string]*Row{}, Codes: map[string]int{}}
	if err := canMount(); err != nil {
		t.NoSpace = err.Error()
	}
	began := time.Now()
	tell := results.OpenProgress(cfg.Out)
	tell.Stage(fmt.Sprintf("chaos-real seeds %d to %d", cfg.Seed, cfg.Seed+uint64(cfg.Runs)-1), float64(cfg.Runs))
	var failed []result
	var mu sync.Mutex
	var wg sync.WaitGroup
	next := make(chan uint64)
	for range cfg.Parallel {
		wg.Go(func() { // ends when there is no seed left
			for seed := range next {
				res := runSeed(ctx, cfg, newPlan(seed, t.NoSpace == ""))
				mu.Lock()
				t.add(res)
				if len(res.broken) > 0 {
					failed = append(failed, res)
				}
				if cfg.Explain {
					_, _ = io.WriteString(cfg.Out, res.explain(repeat(res.plan.seed, 1)))
				}
				tell.Say("seed %d: %s", res.plan.seed, res)
				tell.Add(1)
				mu.Unlock()
			}
		})
	}
	for i := range cfg.Runs {
		select {
		case next <- cfg.Seed + uint64(i):
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	_ = tell.Close()
	t.Took = time.Since(began)
	slices.SortFunc(failed, func(a, b result) int { return cmp.Compare(a.plan.seed, b.plan.seed) })
	for _, res := range failed {
		_, _ = fmt.Fprintf(cfg.Out, "\nseed %d broke a promise\n%s", res.plan.seed, res.explain(repeat(res.plan.seed, 1)))
	}
	t.write(cfg.Out, cfg)
	switch {
	case ctx.Err() != nil:
		return t, context.Cause(ctx)
	case t.Failed > 0:
		return t, fmt.Errorf("%d of %d runs broke a promise, the first with seed %d: %w", t.Failed, t.Runs, failed[0].plan.seed, failed[0].broken[0])
	}
	return t, nil
}

// repeat is the command that makes the same runs.
func repeat(seed uint64, runs int) string {
	return fmt.Sprintf("make chaos-real N=%d SEED=%d", runs, seed)
}

func (t *Table) add(res result) {
	t.Runs++
	if len(res.broken) > 0 {
		t.Failed++
	}
	t.Migrations += len(res.outcomes)
	for _, out := range res.outcomes {
		if out.code != "" {
			t.Codes[out.String()+" "+out.code]++
		}
	}
	row := func(name string) *Row {
		if t.Faults[name] == nil {
			t.Faults[name] = &Row{Outcomes: map[string]int{}}
		}
		return t.Faults[name]
	}
	for _, f := range res.fired {
		row := row(f.Kind.String())
		row.Fired++
		if f.moot {
			row.Moot++
		}
		if out, ok := res.outcomes[f.Migration]; ok {
			row.Outcomes[out.String()]++
		}
	}
	for _, f := range res.own {
		row := row("own " + f.kind)
		row.Fired++
		for _, out := range res.outcomes { // which of them it struck is not known
			if out.from == f.node || out.to == f.node {
				row.Outcomes[out.String()]++
			}
		}
	}
}

// write prints the table.
func (t *Table) write(w io.Writer, cfg Config) {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(tab, "fault\tfired\tmoot\t%s\t\n", strings.Join(outcomeNames, "\t"))
	for _, k := range slices.Sorted(maps.Keys(t.Faults)) {
		row := t.Faults[k]
		_, _ = fmt.Fprintf(tab, "%s\t%d\t%d\t", k, row.Fired, row.Moot)
		for _, name := range outcomeNames {
			_, _ = fmt.Fprintf(tab, "%d\t", row.Outcomes[name])
		}
		_, _ = fmt.Fprintln(tab)
	}
	_ = tab.Flush()
	if len(t.Codes) > 0 {
		_, _ = fmt.Fprintln(w, "codes:")
		for _, c := range slices.SortedFunc(maps.Keys(t.Codes), func(a, b string) int { return cmp.Or(t.Codes[b]-t.Codes[a], cmp.Compare(a, b)) }) {
			_, _ = fmt.Fprintf(w, "  %4d %s\n", t.Codes[c], c)
		}
	}
	if t.NoSpace != "" {
		_, _ = fmt.Fprintf(w, "fill-state was left out: %s\n", t.NoSpace)
	}
	_, _ = fmt.Fprintf(w, "%d runs of %d migrations in %v, %d of them broke a promise; again: %s\n",
		t.Runs, t.Migrations, t.Took.Truncate(100*time.Millisecond), t.Failed, repeat(cfg.Seed, cfg.Runs))
}
