package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/demo"
	"github.com/kvferry/kvferry/bench/refengine"
	"github.com/kvferry/kvferry/bench/wan"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (a *app) newDemo() *cobra.Command {
	var cfg demo.Config
	var link, mode string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Two regions on this machine, a session that moves between them, and the proof",
		Long: `demo starts two daemons and two reference engines (real transformers with the KV shape of a large model and narrow hidden
layers) as processes on this machine, joins them by a relay that behaves like a WAN, holds a conversation in the first
region, moves it to the second and lets it go on there.

The first engine watermarks its KV: it perturbs what it commits and goes on from that. The second engine knows nothing of
it and can say the same only from the KV that moved. Everything is cleaned up at the end, and on Ctrl-C.`,
		Example: `  kvferry demo
  kvferry demo --wan rtt=150ms,rate=200Mbps,loss=0.0001 --prefix 512
  kvferry demo --mode auto -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			model, err := wan.Parse(link)
			if err != nil {
				return usagef(link, "key=value pairs such as "+demo.DefaultWAN().String(), "--wan: %v", err)
			}
			cfg.WAN = &model
			cfg.Mode = modeNames[mode]
			if err := cfg.Validate(); err != nil {
				return usagef("", "values in range; see 'kvferry demo --help'", "%v", err)
			}
			return a.demo(cmd.Context(), cfg)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&link, "wan", demo.DefaultWAN().String(), "the link: rtt, rate, loss, and optionally jitter, queue, burst, seed")
	fl.IntVar(&cfg.Turns, "turns", 3, "turns before the move")
	fl.IntVar(&cfg.Prefix, "prefix", 264, "tokens of the first prompt")
	fl.StringVar(&cfg.Model, "model", "llama-3.1-70b", "whose KV shape the engines take: llama-3.1-8b, -70b, -405b or qwen3-32b")
	fl.Var(newChoice(&mode, "fetch", "auto", "fetch", "recompute", "redirect"), "mode", "fetch (to see it move), auto, recompute or redirect")
	fl.Uint64Var(&cfg.Seed, "seed", 0, "of conversation, weights and watermark")
	complete(cmd, "mode", "auto", "fetch", "recompute", "redirect")
	complete(cmd, "model", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-32b")
	return cmd
}

// demoView is what demo prints.
type demoView struct {
	Identical           bool              `json:"identical"`
	Watermarked         bool              `json:"watermarked"`
	ControlDiffers      bool              `json:"control_differs"`
	Tokens              int               `json:"tokens"`
	PrefilledTailTokens int               `json:"prefilled_tail_tokens"`
	Migration           demoMigrationView `json:"migration"`
	Plan                *planView         `json:"plan"`
	ContinueSeconds     float64           `json:"continue_seconds"`
	RecomputeSeconds    float64           `json:"recompute_seconds"`
	WAN                 string            `json:"wan"`
}

type demoMigrationView struct {
	State           string  `json:"state"`
	Mode            string  `json:"mode"`
	Bytes           int64   `json:"bytes"`
	Pages           int64   `json:"pages"`
	Seconds         float64 `json:"seconds"`
	TransferSeconds float64 `json:"transfer_seconds"`
}

// demo runs the story and prints it as it happens; with -o json it goes to stderr, so that stdout is the result alone.
func (a *app) demo(ctx context.Context, cfg demo.Config) error {
	// A reader that goes away and a terminal that closes end the demo as Ctrl-C does: with everything cleaned up.
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	t := &teller{a: a, w: a.stdout, began: time.Now()}
	if a.output == outputJSON {
		t.w = a.stderr
	}
	res, err := demo.Run(ctx, cfg, demo.Observer{Step: t.step, Turn: t.turn, Plan: t.plan, Migration: t.migration})
	t.close()
	if err != nil {
		if ctx.Err() != nil {
			return &fault{Code: exitCancelled, Reason: "CANCELLED", Message: "interrupted; everything is cleaned up", Fix: ""}
		}
		return err
	}
	rep := res.Report
	v := demoView{
		Identical: res.Identical, Watermarked: res.Watermarked, ControlDiffers: res.ControlDiffers, Tokens: res.Tokens, PrefilledTailTokens: res.PrefilledTail,
		Plan: viewPlan(res.Plan.GetPlan()), ContinueSeconds: res.Continue.Seconds(), RecomputeSeconds: res.Recompute.Seconds(), WAN: cfg.WAN.String(),
		Migration: demoMigrationView{
			State: stateName(rep.GetState()), Mode: modeName(rep.GetMode()), Bytes: rep.GetBytes(), Pages: rep.GetPages(),
			Seconds: seconds(rep.GetTotal()), TransferSeconds: seconds(rep.GetTransfer()),
		},
	}
	if a.output == outputJSON {
		if err := a.print(v, nil); err != nil {
			return err
		}
	} else {
		timeline(t.w, v)
	}
	return v.verdict(res, t.w)
}

// verdict is the last line, and an error when what moved does not prove to be the source's.
func (v demoView) verdict(res *demo.Result, w io.Writer) error {
	switch {
	case !res.Moved():
		_, err := fmt.Fprintf(w, "\nnothing moved (%s): the second region computed %d tokens itself\n", v.Migration.State, v.PrefilledTailTokens)
		return err
	case !v.Identical:
		return &fault{Code: exitFailed, Reason: "NOT_IDENTICAL", Message: "the continuation from the moved KV differs from the source's", Fix: "report this with the seed"}
	case !v.Watermarked:
		return &fault{Code: exitFailed, Reason: "NOT_WATERMARKED", Message: "the run from the tokens alone continues like the watermarked one: nothing is proven", Fix: "report this with the seed"}
	case int64(v.PrefilledTailTokens) > res.Report.GetTailTokens():
		return &fault{
			Code: exitFailed, Reason: "PREFILLED_MORE", Message: fmt.Sprintf("the second region prefilled %d tokens of the session, the report says %d", v.PrefilledTailTokens, res.Report.GetTailTokens()),
			Fix: "report this with the seed",
		}
	}
	_, err := fmt.Fprintf(w, "\nmoved KV verified: continuation identical (watermarked), %d pages, %d bytes\n", v.Migration.Pages, v.Migration.Bytes)
	return err
}

// teller prints the story.
type teller struct {
	a     *app
	w     io.Writer
	began time.Time
	bar   *progress
}

func (t *teller) step(text string) {
	t.close()
	_, _ = fmt.Fprintf(t.w, "%6.1fs  %s\n", time.Since(t.began).Seconds(), text)
}

func (t *teller) turn(region string, prompt int, r *refengine.Result) {
	_, _ = fmt.Fprintf(t.w, "         %s: %d tokens in, %d cached (%d from the arena), %d prefilled in %s; says %s\n", region, prompt, r.CachedTokens,
		r.LoadedTokens, r.PrefilledTokens, secondsText(r.PrefillSeconds), words(r.Tokens))
}

// words shows the first tokens.
func words(tokens []int) string {
	const most = 8
	var b strings.Builder
	for i, t := range tokens {
		if i == most {
			b.WriteString(" ...")
			break
		}
		fmt.Fprintf(&b, " %d", t)
	}
	return strings.TrimSpace(b.String())
}

func (t *teller) plan(p *pb.PlanResponse) {
	var b strings.Builder
	old := t.a.stdout
	t.a.stdout = &b
	out := t.a.output
	t.a.output = outputTable
	_ = t.a.print(nil, viewPlan(p.GetPlan()).table)
	t.a.stdout, t.a.output = old, out
	for line := range strings.Lines(b.String()) {
		_, _ = fmt.Fprint(t.w, "         ", line)
	}
}

func (t *teller) migration(u *pb.MigrateResponse) {
	if t.bar == nil {
		t.bar = &progress{w: t.a.stderr, terminal: t.a.terminal, quiet: t.a.output == outputJSON && !t.a.terminal, began: time.Now(), session: "demo"}
	}
	t.bar.update(&pb.Migration{MigrationId: u.GetMigrationId(), State: u.GetState(), Plan: u.GetPlan(), Progress: u.GetProgress(), Report: u.GetReport()})
}

func (t *teller) close() {
	if t.bar != nil {
		t.bar.close()
		t.bar = nil
	}
}

// timeline draws the way to the next token both ways, to one scale.
func timeline(w io.Writer, v demoView) {
	const width = 56
	moved := v.Migration.Seconds + v.ContinueSeconds
	scale := float64(width) / max(moved, v.RecomputeSeconds, 1e-9)
	draw := func(parts ...float64) string {
		var b strings.Builder
		for i, s := range parts {
			b.WriteString(strings.Repeat([]string{"░", "█", "▒"}[i], int(s*scale+0.5)))
		}
		return b.String()
	}
	_, _ = fmt.Fprintf(w, "\ntime to the next token in the second region, as it went and by prefill of everything\n")
	_, _ = fmt.Fprintf(w, "  %-10s %s %s\n", v.Migration.Mode, draw(v.Migration.Seconds-v.Migration.TransferSeconds, v.Migration.TransferSeconds, v.ContinueSeconds), secondsText(moved))
	_, _ = fmt.Fprintf(w, "  %-10s %s %s\n", "prefill", draw(0, 0, v.RecomputeSeconds), secondsText(v.RecomputeSeconds))
	_, _ = fmt.Fprintf(w, "  ░ plan and hand-over   █ pages move   ▒ engine loads and prefills\n")
}
