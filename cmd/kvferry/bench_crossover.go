package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/crossover"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

// openAIKeyVariable of the environment holds the key of --openai's server, which is no flag because command lines are recorded.
const openAIKeyVariable = "OPENAI_API_KEY"

// crossoverFlags are the flags of bench crossover.
type crossoverFlags struct {
	cfg              crossover.Config
	link, out, csv   string
	usPerToken       float64
	repeats, stripes int64
	lengths          []int64
}

func (a *app) newBenchCrossover(b *benchFlags) *cobra.Command {
	var c crossoverFlags
	cmd := &cobra.Command{
		Use:   "crossover",
		Short: "Measure from which prefix length on a fetch beats a recompute, beside the planner's prediction",
		Long: `crossover answers for a link and a model: from which prefix length on is it faster to fetch a session's KV cache
than to prefill it again?

It starts two daemons in this process, joins them by a model of the link, and migrates fresh sessions of several lengths
between them: offer, request, every page moved and verified, hand-over, over warm connections. In turns with that it measures
the prefill of as many tokens: a pause of --prefill-us-per-token (a GPU of that speed), --engine real (the reference
engine, on this processor), or the time to the first token at --openai (vLLM, SGLang and others), with prompts that no cache knows.
A key for it is read from ` + openAIKeyVariable + `.

The planner predicts before the sweep, from what migrations of other lengths showed: round-trip time, goodput and the constant
cost of a migration, or from --rtt, --goodput and --round-trips. Lengths are multiples of the model's block about the predicted crossover.

Less than a minute; --quick a quarter of that. On a busy machine the processor and not the link sets the time of a fetch,
which the output then says.`,
		Example: `  kvferry bench crossover --wan rtt=70ms,rate=1Gbps --model llama-3.1-8b --prefill-us-per-token 3000
  kvferry bench crossover --wan rtt=70ms,rate=1Gbps --prefill-us-per-token 3000 --out crossover.svg --csv crossover.csv -o json
  kvferry bench crossover --wan rtt=30ms,rate=5Gbps --openai http://127.0.0.1:8000/v1 --model llama-3.1-8b`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchCrossover(cmd, b, &c) },
	}
	c.register(cmd)
	return cmd
}

// register gives cmd the flags.
func (c *crossoverFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	names := modelNames()
	fl.StringVar(&c.link, "wan", "", "the model link: rtt, rate, and optionally loss, jitter, queue, burst, seed, as rtt=70ms,rate=1Gbps")
	fl.Var(newChoice(&c.cfg.Model, "llama-3.1-8b", names...), "model", "model: "+strings.Join(names, ", "))
	fl.Var(newNumber(&c.usPerToken, 0, 0.1, 1e7), "prefill-us-per-token", "how fast the destination's GPU prefills, microseconds a token")
	fl.Var(newChoice(&c.cfg.Engine, crossover.EnginePaced, crossover.EnginePaced, crossover.EngineReal), "engine", "what prefills: paced (pauses), or real (computes, on this processor)")
	fl.StringVar(&c.cfg.OpenAIURL, "openai", "", "measure prefill at this OpenAI-compatible server, as http://127.0.0.1:8000/v1")
	fl.StringVar(&c.cfg.OpenAIModel, "openai-model", "", "the model's name there (default: the first it lists)")
	fl.Var(newDuration(&c.cfg.RTT, 0, time.Nanosecond), "rtt", "predict from this round-trip time (default: measured)")
	fl.Var(newRate(&c.cfg.Goodput), "goodput", "predict from this goodput (default: measured)")
	fl.Var(newNumber(&c.cfg.RoundTrips, 3, 0.01, 1000), "round-trips", "predict with so many round trips of a migration besides its bytes, as link.round_trips of a daemon")
	fl.Int64SliceVar(&c.lengths, "prefix", nil, "prefix lengths in tokens, multiples of the block (default: about the predicted crossover)")
	fl.Var(newCount(&c.cfg.MaxPrefix, 8192, 1, 1<<20), "max-prefix", "longest prefix that may be chosen, tokens")
	fl.Var(newCount(&c.repeats, 0, 1, 1000), "repeats", "rounds, each of which measures every length once (default 6, with --quick 3)")
	fl.Var(newDuration(&c.cfg.Budget, 0, time.Second), "budget", "how long the rounds may take (default 45s, with --quick 15s)")
	fl.BoolVar(&c.cfg.Quick, "quick", false, "fewer lengths and rounds")
	fl.Var(newCount(&c.stripes, 0, 0, 64), "stripes", "connections of the link; 0: as many as the path needs, as daemons have it by default")
	fl.StringVar(&c.cfg.ArenaDir, "arena-dir", "", "a folder on a memory filesystem for the daemons' arenas, an absolute path (default /dev/shm)")
	fl.Var(newBytes(&c.cfg.ArenaBytes, 1<<30, 1<<20, 1<<40), "arena-bytes", "most that each daemon's arena may take; half of it bounds the prefix")
	fl.Uint64Var(&c.cfg.Seed, "seed", 0, "of bytes, order and the bootstrap")
	fl.StringVar(&c.out, "out", "", "draw both times over the prefix length to this file, .svg or .png")
	fl.StringVar(&c.csv, "csv", "", "write the lengths and their times to this file")
	complete(cmd, "model", names...)
	complete(cmd, "wan", "rtt=70ms,rate=1Gbps")
}

func (a *app) benchCrossover(cmd *cobra.Command, b *benchFlags, c *crossoverFlags) error {
	if err := c.check(cmd); err != nil {
		return err
	}
	if err := b.begin(results.KindCrossover); err != nil {
		return err
	}
	ctx := cmd.Context()
	bar := b.progress()
	res, err := runCrossover(ctx, c.cfg, bar)
	err = errors.Join(err, bar.Close())
	if res == nil {
		return err
	}
	if err != nil {
		err = faultOf(err) // it is what happened first, whatever fails after it
	}
	f, ferr := res.File(benchCommand(cmd))
	if ferr != nil {
		return errors.Join(err, ferr)
	}
	f.Versions["kvferry"] = version
	// What was measured is printed and kept, then what went wrong is said.
	if c.out != "" {
		err = errors.Join(err, drawTo(c.out, res.Plot()))
	}
	if c.csv != "" {
		err = errors.Join(err, csvTo(c.csv, res))
	}
	return errors.Join(err, b.end(ctx, f, res.Tables()...))
}

// runCrossover runs it with a bar, and gives errors their exit codes. There may be a result beside an error.
func runCrossover(ctx context.Context, cfg crossover.Config, bar *results.Progress) (*crossover.Result, error) {
	cfg.OpenAIKey = os.Getenv(openAIKeyVariable)
	cfg.Progress = showCrossover(bar)
	res, err := crossover.Run(ctx, cfg)
	if errors.Is(err, crossover.ErrNothing) && ctx.Err() != nil {
		return nil, interrupted("before two lengths were measured")
	}
	if end, ok := errors.AsType[*crossover.EndpointError](err); ok {
		return res, &fault{Code: exitUnreachable, Reason: "ENDPOINT", Message: end.What(), Fix: end.Fix}
	}
	return res, err
}

// check moves the flags to the configuration and refuses what cannot be, before anything is measured.
func (c *crossoverFlags) check(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("wan") {
		return usagef("", "--wan rtt=70ms,rate=1Gbps for a model of the link", "--wan is not given")
	}
	var err error
	if c.cfg.WAN, err = wan.Parse(c.link); err != nil {
		return usagef(c.link, "key=value pairs such as rtt=70ms,rate=1Gbps", "--wan: %v", err)
	}
	if c.cfg.OpenAIURL != "" {
		if cmd.Flags().Changed("engine") {
			return usagef("", "--engine, or --openai for a server", "--engine and --openai exclude each other")
		}
		c.cfg.Engine = crossover.EngineOpenAI
	} else if cmd.Flags().Changed("openai-model") {
		return usagef("", "--openai http://127.0.0.1:8000/v1 beside --openai-model", "--openai-model has no meaning without --openai")
	}
	if c.cfg.Engine != crossover.EnginePaced && cmd.Flags().Changed("prefill-us-per-token") {
		with := "--engine real"
		if c.cfg.Engine == crossover.EngineOpenAI {
			with = "--openai"
		}
		return usagef("", "no --prefill-us-per-token with "+with+", where prefills are measured", "--prefill-us-per-token %g has no meaning with %s", c.usPerToken, with)
	}
	if c.cfg.Engine == crossover.EnginePaced && c.usPerToken == 0 {
		return usagef("", "--prefill-us-per-token 3000 for a GPU of that speed, --openai URL for a server, or --engine real for the reference engine",
			"nothing says how long a prefill takes")
	}
	c.cfg.PrefillSecondsPerToken = c.usPerToken / 1e6
	c.cfg.Repeats, c.cfg.Stripes, c.cfg.Lengths = int(c.repeats), int(c.stripes), c.lengths
	if err := crossoverUsage(c.cfg.Validate()); err != nil {
		return err
	}
	if c.csv != "" {
		if err := checkPlace("csv", c.csv); err != nil {
			return err
		}
	}
	return checkPicture(c.out)
}

// crossoverFields are the flags behind fields whose names do not tell.
var crossoverFields = map[string]string{"length": "prefix", "lengths": "prefix", "prefill seconds per token": "prefill-us-per-token", "arena": "arena-bytes"}

// crossoverUsage makes faults of the configuration one of usage, about the first and with all of them.
func crossoverUsage(err error) error {
	in, ok := errors.AsType[*crossover.InputError](err)
	if !ok {
		return err
	}
	all := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	var texts []string
	for _, err := range all {
		text := err.Error()
		if in, ok := errors.AsType[*crossover.InputError](err); ok {
			flag, renamed := crossoverFields[in.Field]
			if !renamed {
				flag = strings.ReplaceAll(in.Field, " ", "-")
			}
			text = fmt.Sprintf("--%s %q: want %s", flag, in.Value, in.Allowed)
		}
		texts = append(texts, text)
	}
	return usagef(in.Value, in.Allowed, "%s", strings.Join(texts, "; "))
}

func csvTo(path string, res *crossover.Result) error {
	var b strings.Builder
	if err := res.CSV(&b); err != nil {
		return err
	}
	if err := results.WriteFile(path, []byte(b.String())); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// showCrossover turns progress into a bar a stage.
func showCrossover(bar *results.Progress) func(crossover.Progress) {
	var stage string
	done := 0.0
	return func(p crossover.Progress) {
		if p.Stage != stage {
			stage, done = p.Stage, 0
			bar.Stage("crossover: "+stage, p.Total)
			bar.Say("%s", stage)
		}
		bar.Add(p.Done - done)
		done = p.Done
	}
}
