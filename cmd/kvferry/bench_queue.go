package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/queue"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

// queueFlags are the flags of bench queue.
type queueFlags struct {
	cfg                        queue.Config
	link, out                  string
	jobs, replications         int64
	chunk, stripes             int64
	utilizations, linkUtilized []float64
}

func (a *app) newBenchQueue(b *benchFlags) *cobra.Command {
	var q queueFlags
	cmd := &cobra.Command{
		Use:   "queue",
		Short: "Measure what waiting behind other fetches costs, and at which utilization fetch stops paying",
		Long: `queue asks how long a fetch waits behind other fetches on the source's link, and which law the wait follows.

It simulates a server with Poisson arrivals, first come, first served and shared, with exponential, equal and lognormal service;
it finds the utilization at which fetch stops paying under each (the planner's utilization preset, which predicts 0.7255 by
M/M/1); and it loads a model link with real QUIC at two utilizations, in real time, until each mean wait is known to --precision
or --duration is over, which marks the point inconclusive. Two senders are measured: that of daemons as they run by default, which
sends the transfer with the least left first (no job here has a deadline), and one that serves all transfers in turn, which is what
the law of processor sharing is about. The law that counts for each is fixed beforehand: its own order, simulated; the output says
which difference the comparison would have found. Two to six minutes; --quick takes a small part of that, and decides little.

The jobs are smaller than a session's, and the link slower than a region's, so that a processor can follow; --job, --chunk, --stripes
and --wan change that.

On a busy machine the processor and not the link sets the waits over QUIC, which the output then says.`,
		Example: `  kvferry bench queue
  kvferry bench queue --out waits.svg --save queue.json
  kvferry bench queue --stripes 4 --chunk 1MiB --job 8MiB --wan rtt=10ms,rate=200Mbps   # chunks as daemons send them
  kvferry bench queue --quick -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchQueue(cmd, b, &q) },
	}
	q.register(cmd)
	return cmd
}

// register gives cmd the flags.
func (q *queueFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVar(&q.cfg.Quick, "quick", false, "fewer jobs and points, shorter measurements")
	fl.Uint64Var(&q.cfg.Seed, "seed", 0, "of arrivals and sizes")
	fl.Float64SliceVar(&q.utilizations, "utilization", nil, "those that are simulated (default 0.1 to 0.9)")
	fl.Var(newCount(&q.jobs, 0, 1000, 10_000_000), "jobs", "jobs simulated at each point (default 1000000)")
	fl.Var(newNumber(&q.cfg.Spread, 0, .01, 100), "spread", "squared coefficient of variation of the lognormal service (default 4)")
	fl.Var(newCount(&q.replications, 0, 3, 1000), "replications", "independent crossovers measured (default 20)")
	fl.BoolVar(&q.cfg.LinkOff, "no-link", false, "leave real QUIC out")
	fl.Float64SliceVar(&q.linkUtilized, "link-utilization", nil, "those with real QUIC (default 0.3,0.6)")
	fl.Var(newDuration(&q.cfg.Duration, 0, 500*time.Millisecond), "duration", "how long jobs arrive at most at each utilization of the link, with each sender (default 75s)")
	fl.Var(newNumber(&q.cfg.Precision, 0, .01, 1), "precision", "half width of the mean wait's interval over QUIC, as a share of it, at which to stop (default 0.1)")
	fl.StringVar(&q.link, "wan", queue.DefaultWAN().String(), "the model link: rtt, rate, and optionally loss, jitter, queue, burst, seed")
	fl.Var(newBytes(&q.cfg.JobBytes, 128<<10, 16<<10, 64<<20), "job", "mean bytes of a fetch over the link")
	fl.Var(newBytes(&q.chunk, 0, 4<<10, 4<<20), "chunk", "most bytes of a fetch sent in its turn (default an eighth of --job)")
	fl.Var(newCount(&q.stripes, 1, 1, 64), "stripes", "connections of the link")
	fl.StringVar(&q.out, "out", "", "draw waits over utilization to this file, .svg or .png")
	complete(cmd, "wan", queue.DefaultWAN().String())
}

func (a *app) benchQueue(cmd *cobra.Command, b *benchFlags, q *queueFlags) error {
	if err := q.check(cmd); err != nil {
		return err
	}
	if err := b.begin(results.KindQueue); err != nil {
		return err
	}
	ctx := cmd.Context()
	bar := b.progress()
	q.cfg.Progress = bar
	res, err := queue.Run(ctx, q.cfg)
	err = errors.Join(err, bar.Close())
	if res == nil {
		return err
	}
	if len(res.Points) == 0 && ctx.Err() != nil {
		return interrupted("before anything was measured")
	}
	f, ferr := res.File(benchCommand(cmd))
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	f.Versions["kvferry"] = version
	// What was measured is printed and kept, then what went wrong is said.
	if q.out != "" {
		err = errors.Join(err, drawTo(q.out, res.Plot()))
	}
	return errors.Join(err, b.end(ctx, f, res.Tables()...))
}

// check moves the flags to the configuration and refuses what cannot be, before anything is measured.
func (q *queueFlags) check(cmd *cobra.Command) error {
	if q.cfg.LinkOff {
		if err := meaningless(cmd, "with --no-link", "wan", "link-utilization", "duration", "precision", "job", "chunk", "stripes"); err != nil {
			return err
		}
	}
	var err error
	if q.cfg.WAN, err = wan.Parse(q.link); err != nil {
		return usagef(q.link, "key=value pairs such as "+queue.DefaultWAN().String(), "--wan: %v", err)
	}
	q.cfg.Utilizations, q.cfg.LinkUtilizations = q.utilizations, q.linkUtilized
	q.cfg.Jobs, q.cfg.Replications = int(q.jobs), int(q.replications)
	q.cfg.ChunkBytes, q.cfg.Stripes = int(q.chunk), int(q.stripes)
	err = q.cfg.Validate()
	if in, ok := errors.AsType[*queue.InputError](err); ok {
		return usagef(in.Value, in.Allowed, "%v", err)
	}
	if err != nil {
		return usagef("", "values in range; see 'kvferry bench queue --help'", "%v", err)
	}
	return checkPicture(q.out)
}

// checkPicture refuses a file that a plot cannot be written to.
func checkPicture(path string) error {
	if path == "" {
		return nil
	}
	if ext := strings.ToLower(filepath.Ext(path)); ext != ".svg" && ext != ".png" {
		return usagef(path, "a name that ends in .svg or .png", "--out %s: the ending %q says no kind of picture", path, ext)
	}
	return checkPlace("out", path)
}

// drawTo writes a plot, by the ending of the file's name.
func drawTo(path string, p results.Plot) error {
	draw := p.SVG
	if strings.EqualFold(filepath.Ext(path), ".png") {
		draw = p.PNG
	}
	b, err := draw()
	if err == nil {
		err = results.WriteFile(path, b)
	}
	if err != nil {
		return fmt.Errorf("draw %s: %w", path, err)
	}
	return nil
}
