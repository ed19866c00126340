package main

import (
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/hybrid"
	"github.com/kvferry/kvferry/bench/results"
)

// hybridFlags are the flags of bench hybrid.
type hybridFlags struct {
	cfg          hybrid.Config
	goodputs     []string
	draws, claim int64
	real         int64
	claimCost    time.Duration
	out          string
}

func (a *app) newBenchHybrid(b *benchFlags) *cobra.Command {
	var h hybridFlags
	cmd := &cobra.Command{
		Use:   "hybrid",
		Short: "Simulate prefill from the front while blocks arrive from the back, beside fetch, recompute and a fixed split",
		Long: `hybrid asks how long a session takes to be warm when the destination prefills from its front while its blocks arrive from the back, and how
much that depends on knowing the link.

It simulates migrations over a grid of links, lengths and GPUs. sigma says how wrong what is believed of a link's goodput is: the true one
is lognormal, its mean what is believed. Beside hybrid, block by block with claims, windows and take-overs, stand fetch, recompute, a split
that is fixed in advance for the believed goodput, and an oracle that knows the true one. Beside every goodput asked for there is, for each
other setting, the one at which fetch and recompute take equally long, where both at once gain most.

regret is hybrid's mean over the oracle's; gain is the better mean of fetch and recompute over hybrid's. Hybrid is held to a regret of
5 % where the link is known and 10 % at sigma 0.5, to 0.95 of the gain of the closed form where both are equal, and to a p99 of 1.05 times
recompute and one round trip, whatever the link does. The tables show one setting in the middle and the worst of all; -o json has every cell.

The simulation measures nothing on this machine: the same seed gives the same numbers everywhere; it takes seconds. Besides, two daemons make
twelve migrations (--real N) with real bytes over the link model into an engine that takes the time of a GPU, and what they took
stands beside the simulation of the same: about four minutes, which --quick leaves out.`,
		Example: `  kvferry bench hybrid
  kvferry bench hybrid --out hybrid.svg --save hybrid.json
  kvferry bench hybrid --goodput 8Gbps --rtt 90ms --prefix 16384 --gpu 8xH100-BF16 --sigma 0,0.3   # one link
  kvferry bench hybrid --quick               # the simulation alone, of a small grid
  kvferry bench hybrid --claim-cost 5ms      # an engine that pays for prefilling in pieces
  kvferry bench hybrid -o json | jq '[.cells[] | select(.sigma==0.5) | .regret] | max'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchHybrid(cmd, b, &h) },
	}
	fl := cmd.Flags()
	fl.BoolVar(&h.cfg.Quick, "quick", false, "a small grid")
	fl.Uint64Var(&h.cfg.Seed, "seed", 0, "of the draws")
	fl.StringSliceVar(&h.goodputs, "goodput", nil, "what is believed of the link (default 1Gbps,5Gbps,25Gbps,100Gbps)")
	fl.DurationSliceVar(&h.cfg.RTTs, "rtt", nil, "round-trip times (default 20ms,70ms,150ms)")
	fl.Int64SliceVar(&h.cfg.PrefixTokens, "prefix", nil, "tokens of the session (default 2048,8192,32768,131072)")
	fl.StringSliceVar(&h.cfg.GPUs, "gpu", nil, "what prefills: "+strings.Join(hybrid.GPUNames(), ", ")+" (default all)")
	fl.Float64SliceVar(&h.cfg.Sigmas, "sigma", nil, "standard deviations of the logarithm of the true goodput (default 0,0.25,0.5,0.8)")
	fl.Var(newCount(&h.draws, 0, 100, 1_000_000), "draws", "migrations simulated a cell (default 1000)")
	fl.StringVar(&h.cfg.Model, "model", "", "a preset (default llama-3.1-70b)")
	fl.Var(newNumber(&h.cfg.RoundTrips, 0, 1, 100), "round-trips", "round trips of a migration (default 3)")
	fl.Var(newNumber(&h.cfg.CodecRatio, 0, 1, 100), "codec-ratio", "raw bytes over coded ones (default 1)")
	fl.Var(newCount(&h.claim, 0, 1, 4096), "claim", "blocks that the engine asks for at a time (default 32)")
	fl.Var(newDuration(&h.claimCost, 0, time.Microsecond), "claim-cost", "what a claim costs the engine (default 100µs)")
	fl.Var(newCount(&h.real, 0, 0, 1000), "real", "migrations that are also made with real bytes, in real time, about twenty seconds each; 0: none (default 12, with --quick none)")
	fl.StringVar(&h.out, "out", "", "draw times over goodput to this file, .svg or .png")
	complete(cmd, "gpu", hybrid.GPUNames()...)
	return cmd
}

func (a *app) benchHybrid(cmd *cobra.Command, b *benchFlags, h *hybridFlags) error {
	if err := h.check(cmd.Flags().Changed("real")); err != nil {
		return err
	}
	if err := b.begin(results.KindHybrid); err != nil {
		return err
	}
	ctx := cmd.Context()
	bar := b.progress()
	h.cfg.Progress = bar
	res, err := hybrid.Run(ctx, h.cfg)
	if err = errors.Join(err, bar.Close()); err != nil {
		return err
	}
	if len(res.Cells) == 0 && ctx.Err() != nil {
		return interrupted("before anything was simulated")
	}
	f, err := res.File(benchCommand(cmd))
	if err != nil {
		return err
	}
	f.Versions["kvferry"] = version
	if h.out != "" {
		err = drawTo(h.out, res.Plot())
	}
	return errors.Join(err, b.end(ctx, f, res.Tables()...))
}

// check moves the flags to the configuration and refuses what cannot be, before anything is simulated.
// set: --real was given.
func (h *hybridFlags) check(set bool) error {
	for _, s := range h.goodputs {
		rate, err := parseRate(s)
		if err != nil {
			return usagef(s, "a rate such as 5Gbps", "--goodput %s: %v", s, err)
		}
		h.cfg.Goodputs = append(h.cfg.Goodputs, rate)
	}
	if h.cfg.Real = int(h.real); set && h.real == 0 {
		h.cfg.Real = -1
	}
	h.cfg.Draws, h.cfg.ClaimBlocks, h.cfg.ClaimSeconds = int(h.draws), int(h.claim), h.claimCost.Seconds()
	err := h.cfg.Validate()
	if in, ok := errors.AsType[*hybrid.InputError](err); ok {
		return usagef(in.Value, in.Allowed, "%v", err)
	}
	if err != nil {
		return usagef("", "values in range; see 'kvferry bench hybrid --help'", "%v", err)
	}
	return checkPicture(h.out)
}
