package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// referenceModel is the model of the base model's presets.
const referenceModel = "llama-3.1-70b"

// planFlags are the flags of plan. Zero is not given.
type planFlags struct {
	model, preset string
	prefix        int64
	rtt           time.Duration
	goodput       float64
	migrate       migrateFlags

	present, stripes, backlog int64
	cold, hybrid              bool
	roundTrips                float64
	peakFLOPS, mfu, perToken  float64
	fixed, queue, extraRTT    time.Duration

	fetchFixed                 time.Duration
	fetchSpread, computeSpread float64
}

func (a *app) newPlan() *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Price the ways to have a session warm elsewhere; moves nothing",
		Long: `plan answers whether to fetch a session's KV cache, to recompute it, or to leave it where it is.

Without --session it needs no daemon: give a model, a prefix and a link. With --preset it evaluates the published base model
(linear prefill, one round trip); the other flags override the preset's numbers. With --session it asks the daemon at
--addr, as the destination, what it would do with that session.`,
		Example: `  kvferry plan --model llama-3.1-70b --prefix 8000 --rtt 70ms --goodput 5Gbps
  kvferry plan --model llama-3.1-70b --prefix 8000 --rtt 70ms --goodput 5Gbps --hybrid   # an engine that claims what it prefills
  kvferry plan --preset crossover --prefix 1000 -o json
  kvferry plan --preset utilization --rtt 105ms
  kvferry plan --session chat-17 --addr eu.example:7440 --ca ca.crt --cert me.crt --key me.key`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case f.preset != "" && f.migrate.session != "":
				return usagef("", "--preset for the base model, or --session for a real session", "--preset and --session exclude each other")
			case f.preset != "":
				return a.planBase(cmd, f)
			case f.migrate.session != "":
				return a.planSession(cmd, f)
			}
			return a.planLocal(f)
		},
	}
	fl := cmd.Flags()
	names := modelNames()
	fl.Var(newChoice(&f.model, "", names...), "model", "model: "+strings.Join(names, ", ")+" (default "+referenceModel+")")
	fl.Var(newChoice(&f.preset, "", "crossover", "utilization"), "preset", "base model with published inputs: crossover or utilization")
	fl.Var(newCount(&f.prefix, 0, 1, 1<<30), "prefix", "tokens of the session")
	fl.Var(newDuration(&f.rtt, 0, time.Nanosecond), "rtt", "round-trip time of the link")
	fl.Var(newRate(&f.goodput), "goodput", "what one transfer gets on the link, such as 5Gbps")
	fl.Var(newCount(&f.present, 0, 0, 1<<30), "present", "tokens that the destination holds already")
	fl.Var(newCount(&f.stripes, 0, 1, 1000), "stripes", "connections of the link (default 1)")
	fl.Var(newCount(&f.backlog, 0, 0, 1<<60), "backlog", "bytes queued at the source before this transfer")
	fl.BoolVar(&f.hybrid, "hybrid", false, "the destination's engine claims blocks before it prefills them, so that hybrid can be chosen")
	fl.BoolVar(&f.cold, "cold", false, "connections start cold and pay the ramp")
	fl.Var(newNumber(&f.roundTrips, 0, 0.1, 1000), "round-trips", fmt.Sprintf("round trips of a migration (default %v)", planner.DefaultRoundTrips))
	fl.Var(newNumber(&f.peakFLOPS, 0, 1, 1e24), "peak-flops", "peak FLOP/s of the destination's replica (default 989e12, one H100 in dense BF16)")
	fl.Var(newNumber(&f.mfu, 0, 1e-6, 1), "mfu", fmt.Sprintf("share of the peak that prefill reaches (default %v)", planner.DefaultMFU))
	fl.Var(newNumber(&f.perToken, 0, 1e-12, 1e6), "seconds-per-token", "measured prefill seconds a token; replaces the FLOP model")
	fl.Var(newDuration(&f.fixed, 0, 0), "fixed", "constant cost of a prefill")
	fl.Var(newDuration(&f.fetchFixed, 0, 0), "fetch-fixed", "what a migration takes besides its round trips and bytes")
	fl.Var(newNumber(&f.fetchSpread, 0, 1e-9, 1e3), "fetch-spread", "standard deviation of a fetch's time over its expectation, 0.1 for 10 % (default not known)")
	fl.Var(newNumber(&f.computeSpread, 0, 1e-9, 1e3), "compute-spread", "standard deviation of a recompute's time over its expectation (default not known)")
	fl.Var(newDuration(&f.queue, 0, 0), "compute-queue", "prefill work queued at the destination")
	fl.Var(newDuration(&f.extraRTT, 0, 0), "redirect-rtt", "extra round-trip time of a turn that stays at the source (default --rtt)")
	f.migrate.addSession(cmd)
	f.migrate.addChoice(cmd)
	complete(cmd, "model", names...)
	complete(cmd, "preset", "crossover", "utilization")
	return cmd
}

func modelNames() []string {
	var names []string
	for _, p := range kvstore.Presets() {
		names = append(names, p.Name)
	}
	return names
}

// basePlanView is what a preset's evaluation prints.
type basePlanView struct {
	Preset       string  `json:"preset"`
	Model        string  `json:"model"`
	PrefixTokens int64   `json:"prefix_tokens"`
	RTTSeconds   float64 `json:"rtt_seconds"`
	GoodputBps   float64 `json:"goodput_bps"`
	planner.BaseResult
	PresetSource string `json:"preset_source"`
}

// planBase evaluates the base model.
func (a *app) planBase(cmd *cobra.Command, f planFlags) error {
	if err := onlyFlags(cmd, "--preset", "model", "preset", "prefix", "rtt", "goodput", "peak-flops", "mfu"); err != nil {
		return err
	}
	preset := planner.CrossoverPreset()
	if f.preset == "utilization" {
		preset = planner.UtilizationPreset()
	}
	over := planner.BaseInput{
		RTT: f.rtt, Goodput: planner.Rate(f.goodput), PrefixTokens: f.prefix, PeakFLOPS: f.peakFLOPS, MFU: f.mfu,
	}
	// The presets are of the reference model, with its parameters rounded as published.
	if f.model == "" {
		f.model = referenceModel
	}
	if f.model != referenceModel {
		m, err := kvstore.PresetByName(f.model)
		if err != nil {
			return err
		}
		over.BytesPerToken, over.Params = planner.Bytes(m.Layout.TokenBytes()), m.ParamsActive
	}
	result, err := planner.EvaluateBase(preset, over)
	if err != nil {
		return inputFault(err)
	}
	v := basePlanView{
		Preset: preset.Name, Model: f.model, PrefixTokens: preset.Input.PrefixTokens, RTTSeconds: preset.Input.RTT.Seconds(),
		GoodputBps: float64(preset.Input.Goodput), BaseResult: result.Rounded(), PresetSource: preset.Source,
	}
	if f.prefix > 0 {
		v.PrefixTokens = f.prefix
	}
	if f.rtt > 0 {
		v.RTTSeconds = f.rtt.Seconds()
	}
	if f.goodput > 0 {
		v.GoodputBps = f.goodput
	}
	return a.print(v, v.table)
}

func (v basePlanView) table(w io.Writer) {
	row(w, "preset", v.PresetSource)
	row(w, "model", v.Model)
	row(w, "link", fmt.Sprintf("%s, %s", rateText(v.GoodputBps), secondsText(v.RTTSeconds)))
	row(w, "prefix", fmt.Sprintf("%d tokens of %d bytes", v.PrefixTokens, v.BytesPerToken))
	row(w, "recompute", fmt.Sprintf("%v s, %v us a token", v.RecomputeSeconds, v.RecomputeUsPerToken))
	row(w, "fetch", fmt.Sprintf("%v s, %v us a token", v.FetchSeconds, v.FetchUsPerToken))
	if v.CrossoverTokens != nil {
		row(w, "crossover", fmt.Sprintf("%d tokens: longer prefixes are cheaper to fetch", *v.CrossoverTokens))
	} else {
		row(w, "crossover", "none: fetching a token takes longer than recomputing it")
	}
	if v.CrossoverUtilization != nil {
		row(w, "crossover utilization", fmt.Sprintf("%v: with the link busier than that, recompute", *v.CrossoverUtilization))
	}
}

// planLocal prices plain numbers without a daemon.
func (a *app) planLocal(f planFlags) error {
	if f.prefix == 0 {
		return usagef("", "--prefix TOKENS (and --rtt, --goodput for the link), or --session ID to ask the daemon", "nothing to plan")
	}
	if f.model == "" {
		f.model = referenceModel
	}
	preset, err := kvstore.PresetByName(f.model)
	if err != nil {
		return err
	}
	m := planner.Model{
		Name: preset.Name, BytesPerToken: planner.Bytes(preset.Layout.TokenBytes()), BlockTokens: preset.Layout.BlockTokens,
		ParamsActive: preset.ParamsActive - preset.ParamsEmbedding, Layers: preset.Layout.Layers,
		QueryHeads: preset.QueryHeads, AttnHeadDim: preset.AttnHeadDim,
	}
	c := planner.Compute{
		PeakFLOPS: f.peakFLOPS, MFU: f.mfu, SecondsPerToken: f.perToken, FixedSeconds: f.fixed.Seconds(), QueueSeconds: f.queue.Seconds(),
		QueueKnown: f.queue > 0, Spread: f.computeSpread, Source: "given",
	}
	if c.PeakFLOPS == 0 && c.SecondsPerToken == 0 {
		c.PeakFLOPS, c.Source = 989e12, "assumed: one H100 in dense BF16"
	}
	l := planner.Link{
		RTT: f.rtt, PriorGoodput: planner.Rate(f.goodput), Stripes: int(f.stripes), Cold: f.cold, EgressBacklog: planner.Bytes(f.backlog),
		BacklogKnown: f.backlog > 0, Source: "given", FixedSeconds: f.fetchFixed.Seconds(), Spread: f.fetchSpread,
		// --goodput is what a transfer gets, windows included.
		WindowPackets: -1,
	}
	if f.stripes > 0 {
		l.WindowPackets = 0
	}
	mode, err := planner.ParseMode(f.migrate.mode)
	if err != nil {
		return inputFault(err)
	}
	r := planner.Request{
		Hybrid: f.hybrid || mode == planner.ModeHybrid, PrefixTokens: f.prefix, PresentTokens: f.present, RoundTrips: f.roundTrips, Deadline: f.migrate.deadline, Only: mode,
		Redirect: planner.Redirect{Allowed: f.migrate.redirectAllowed, ExpectedTurns: f.migrate.expectedTurns, DeltaRTT: f.extraRTT},
	}
	d, err := planner.Decide(r, m, c, l)
	if err != nil {
		return inputFault(err)
	}
	var crossover *float64
	if n, ok := planner.Crossover(m, c, l); ok {
		crossover = &n
	}
	flips, err := planner.Flips(r, m, c, l)
	if err != nil {
		return inputFault(err)
	}
	v := viewDecision(d, flips[:], c.Source, crossover)
	for name, p := range v.Modes {
		p.Reason = missingFlags.Replace(p.Reason)
		v.Modes[name] = p
	}
	v.Reason = missingFlags.Replace(v.Reason)
	return a.print(v, v.table)
}

// sessionPlanView is the plan of a real session.
type sessionPlanView struct {
	SessionID     string    `json:"session_id"`
	Tenant        string    `json:"tenant"`
	Source        *nodeView `json:"source"`
	BlocksTotal   int64     `json:"blocks_total"`
	BlocksPresent int64     `json:"blocks_present"`
	BytesMissing  int64     `json:"bytes_missing"`
	TailTokens    int64     `json:"tail_tokens"`
	*planView
}

// planSession asks the daemon.
func (a *app) planSession(cmd *cobra.Command, f planFlags) error {
	allowed := append([]string{"session"}, sessionFlags...)
	if err := onlyFlags(cmd, "--session", allowed...); err != nil {
		return err
	}
	conn, err := a.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // only one call was made, and its error is known
	ctx, cancel := a.call(cmd.Context())
	defer cancel()
	resp, err := pb.NewMigrationServiceClient(conn).Plan(ctx, &pb.PlanRequest{Migrate: f.migrate.request("")})
	if err != nil {
		return err
	}
	v := sessionPlanView{
		SessionID: f.migrate.session, Tenant: f.migrate.tenant, Source: viewNode(resp.GetSource()), BlocksTotal: resp.GetBlocksTotal(),
		BlocksPresent: resp.GetBlocksPresent(), BytesMissing: resp.GetBytesMissing(), TailTokens: resp.GetTailTokens(), planView: viewPlan(resp.GetPlan()),
	}
	if v.planView == nil {
		return errors.New("the daemon sent no plan; it is of another release")
	}
	return a.print(v, func(w io.Writer) {
		row(w, "session:", v.SessionID, "at", v.Source.text())
		row(w, "blocks:", fmt.Sprintf("%d, of which %d are here; %s missing; then %d tokens to prefill",
			v.BlocksTotal, v.BlocksPresent, bytesText(v.BytesMissing), v.TailTokens))
		row(w)
		v.planView.table(w)
	})
}

// planFlagNames are all flags of plan but the global ones.
var planFlagNames = append([]string{
	"model", "preset", "prefix", "rtt", "goodput", "present", "stripes", "backlog", "cold", "round-trips", "peak-flops", "mfu",
	"seconds-per-token", "fixed", "compute-queue", "fetch-fixed", "fetch-spread", "compute-spread", "redirect-rtt", "session", "hybrid",
}, sessionFlags...)

// onlyFlags refuses flags that mean nothing beside the one called why. Global flags are always fine.
func onlyFlags(cmd *cobra.Command, why string, allowed ...string) error {
	var bad []string
	for _, name := range planFlagNames {
		if cmd.Flags().Changed(name) && !slices.Contains(allowed, name) {
			bad = append(bad, "--"+name)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return usagef("", "only these with "+why+": --"+strings.Join(allowed, ", --"), "%s has no meaning with %s", strings.Join(bad, ", "), why)
}

// missingFlags names the flags behind inputs that the planner misses.
var missingFlags = strings.NewReplacer(
	"Link.Goodput (measured) or Link.PriorGoodput (configured)", "--goodput", "Request.Redirect.DeltaRTT (or Link.RTT)", "--rtt", "Link.RTT", "--rtt",
)

// inputFlags are the flags behind the planner's inputs.
var inputFlags = map[string]string{
	"BaseInput.Goodput": "--goodput", "BaseInput.RTT": "--rtt", "BaseInput.PrefixTokens": "--prefix", "BaseInput.PeakFLOPS": "--peak-flops",
	"BaseInput.MFU": "--mfu", "Link.RTT": "--rtt", "Link.PriorGoodput": "--goodput", "Link.Stripes": "--stripes", "Link.EgressBacklog": "--backlog",
	"Link.FixedSeconds": "--fetch-fixed", "Link.Spread": "--fetch-spread", "Compute.Spread": "--compute-spread",
	"Request.PrefixTokens": "--prefix", "Request.PresentTokens": "--present", "Request.RoundTrips": "--round-trips",
	"Request.Redirect.ExpectedTurns": "--expected-turns", "Compute.PeakFLOPS": "--peak-flops", "Compute.MFU": "--mfu",
	"Compute.SecondsPerToken": "--seconds-per-token", "Compute.FixedSeconds": "--fixed", "Compute.QueueSeconds": "--compute-queue", "mode": "--mode",
}

// inputFault turns the planner's complaints into faults of usage that name flags. The first one gives the fix.
func inputFault(err error) error {
	in, ok := errors.AsType[*planner.InputError](err)
	if !ok {
		return err
	}
	name, ok := inputFlags[in.Field]
	if !ok {
		name = in.Field
	}
	return &fault{
		Code: exitUsage, Reason: "USAGE", Message: fmt.Sprintf("%s is %s, must be %s", name, in.Value, in.Allowed), Fix: in.Fix,
	}
}
