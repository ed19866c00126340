package daemon

import (
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

// inputs is everything one decision rests on.
type inputs struct {
	request planner.Request
	model   planner.Model
	compute planner.Compute
	link    planner.Link
	veto    string // why prefill is not available here; empty when it is
}

// planInputs gathers what is known about the session, the engine and the link.
func (d *Daemon) planInputs(e *engine, link *transfer.Link, s kvstore.Session, present, missing int, backlog int64, q demand) inputs {
	n := e.layout.BlockTokens
	in := inputs{
		request: planner.Request{
			PrefixTokens: s.Tokens, PresentTokens: min(int64(present)*int64(n), s.Tokens), MissingBytes: planner.Bytes(int64(missing) * e.layout.BlockBytes()),
			RoundTrips: d.cfg.Link.RoundTrips, Deadline: q.deadline, Only: planner.ModeNone, Hybrid: e.claims() && !q.groupMajor,
			Redirect: planner.Redirect{Allowed: q.redirectAllowed, ExpectedTurns: q.expectedTurns},
		},
		model: planner.Model{
			Name: e.layout.ModelID, BytesPerToken: planner.Bytes(e.layout.TokenBytes()), BlockTokens: n, Layers: e.layout.Layers,
			AttnHeadDim: float64(e.layout.HeadDim),
		},
		link: d.linkInputs(link, elements[e.layout.DType], backlog),
	}
	if missing == 0 {
		in.request.MissingBytes = -1 // nothing; zero would mean "derive it"
	}
	if sp := e.speed(); sp != nil {
		in.model.ParamsActive, in.model.QueryHeads = sp.GetParamsActive(), int(sp.GetQueryHeads())
	}
	in.compute, in.veto = d.computeInputs(e, in.model, in.request)
	return in
}

// computeOf is what the planner knows of an engine's prefill. An engine that said nothing is unknown, not fast.
func computeOf(sp *pb.PrefillSpeed) planner.Compute {
	switch {
	case sp.GetSecondsPerToken() > 0:
		return planner.Compute{SecondsPerToken: sp.GetSecondsPerToken(), Spread: registeredSpread, Source: "prior: measured by the engine, not observed here"}
	case sp.GetPeakFlops() > 0:
		return planner.Compute{PeakFLOPS: sp.GetPeakFlops(), MFU: sp.GetMfu(), Spread: flopsSpread, Source: "prior: the engine's peak FLOPS and MFU, not observed here"}
	}
	return planner.Compute{Source: "unknown: the engine gave no prefill speed"}
}

// linkInputs is what the planner knows of a link: measured where a transfer has been timed lately, else the prior. The round
// trip is the least that was seen: a smoothed one holds the queue that past transfers made. What a migration takes besides is
// what those before it took. Codecs are priced by what they make of pages of that kind.
func (d *Daemon) linkInputs(link *transfer.Link, kind codec.Element, backlog int64) planner.Link {
	st := link.Stats()
	out := planner.Link{
		RTT: orDefault(st.RTTMin, st.RTTSmoothed), Stripes: st.Stripes, EgressBacklog: planner.Bytes(backlog), BacklogKnown: true,
	}
	if st.GoodputKnown && st.GoodputAge <= goodputMaxAge {
		out.Goodput, out.Age, out.Source = planner.Rate(8*st.Goodput), st.GoodputAge, "past transfers on this link"
		out.CodecRatio, out.CodecRate = codecInputs(st.Estimates.Coding[kind])
		past := d.links.past(link.Peer().ID, out)
		out.FixedSeconds, out.FixedSource, out.Spread = past.fixed, past.source, past.spread
		if past.rate > 0 {
			out.Goodput, out.Source = past.rate, "a line through past migrations on this link"
		}
		return out
	}
	out.Cold = true
	if g := st.Estimates.Goodput; g.Basis == transfer.Persisted && g.Age <= goodputMaxAge {
		out.Goodput, out.Age, out.Source = planner.Rate(8*g.Value), g.Age, "past transfers on an earlier link"
		out.CodecRatio, out.CodecRate = codecInputs(st.Estimates.Coding[kind])
		return out
	}
	if p := d.links.peers[link.Peer().ID]; p.PriorBps > 0 {
		out.PriorGoodput, out.Source = planner.Rate(p.PriorBps), "peers.prior_bps"
	}
	return out
}

// capped holds a link's rates to what the source's configuration lets leave, bytes a second; 0: all. A source that is held to a rate is no
// measurement of the path, so the link's own goodput may stay above it for good.
func capped(l planner.Link, bytesPerSec int64) planner.Link {
	limit := planner.Rate(8 * bytesPerSec)
	if limit <= 0 || l.Goodput <= limit && l.PriorGoodput <= limit {
		return l
	}
	l.Goodput, l.PriorGoodput = min(l.Goodput, limit), min(l.PriorGoodput, limit)
	l.Source += ", held to the source's max_rate"
	return l
}

// codecInputs is what pages of a kind lose on the link by coding, and how fast the slower end codes or decodes them; 0: nothing is known, or they
// lose next to nothing.
func codecInputs(e transfer.CodingEstimates) (ratio float64, rate planner.Rate) {
	if !e.Ratio.Known() || e.Ratio.Value < leastCodecRatio {
		return 0, 0
	}
	if e.CodecRate.Known() {
		rate = planner.Rate(8 * e.CodecRate.Value)
	}
	return e.Ratio.Value, rate
}

// leastCodecRatio is the least that pages coded at all lose.
const leastCodecRatio = 1.01

// Evaluate prices modes from plain numbers: PlannerService.Evaluate without a daemon.
func Evaluate(req *pb.EvaluateRequest) (*pb.EvaluateResponse, error) {
	model, err := modelFromProto(req.GetModel())
	if err != nil {
		return nil, err
	}
	c, l, q := req.GetCompute(), req.GetLink(), req.GetDemand()
	for _, d := range []struct {
		field string
		value *durationpb.Duration
	}{{"link.rtt", l.GetRtt()}, {"demand.deadline", q.GetDeadline()}, {"demand.redirect_extra_rtt", q.GetRedirectExtraRtt()}} {
		if _, err := duration(d.field, d.value); err != nil {
			return nil, err
		}
	}
	compute := planner.Compute{
		PeakFLOPS: c.GetPeakFlops(), MFU: c.GetMfu(), SecondsPerToken: c.GetSecondsPerToken(), FixedSeconds: c.GetFixedSeconds(),
		QueueSeconds: c.GetQueueSeconds(), QueueKnown: true, PrefillUnavailable: c.GetUnavailable(), Source: "given",
		Spread: c.GetSpread(),
	}
	link := planner.Link{
		RTT: l.GetRtt().AsDuration(), Stripes: int(l.GetStripes()), Cold: l.GetCold(), EgressBacklog: planner.Bytes(l.GetEgressBacklogBytes()), BacklogKnown: true,
		FixedSeconds: l.GetFixedSeconds(), Spread: l.GetSpread(),
	}
	if l.GetMeasured() {
		link.Goodput = planner.Rate(l.GetGoodputBps())
	} else {
		link.PriorGoodput = planner.Rate(l.GetGoodputBps())
	}
	trips := l.GetRoundTrips()
	if trips == 0 {
		trips = 1
	}
	request := planner.Request{
		PrefixTokens: q.GetPrefixTokens(), PresentTokens: q.GetPresentTokens(), RoundTrips: trips, Deadline: q.GetDeadline().AsDuration(),
		Redirect: planner.Redirect{Allowed: q.GetRedirectAllowed(), ExpectedTurns: q.GetExpectedTurns(), DeltaRTT: q.GetRedirectExtraRtt().AsDuration()},
	}
	decision, err := planner.Decide(request, model, compute, link)
	if err != nil {
		return nil, err
	}
	crossover, crosses := planner.Crossover(model, compute, link)
	plan := planToProto(decision, compute.Source, crossover, crosses)
	plan.Flips = flipsToProto(request, model, compute, link)
	return &pb.EvaluateResponse{Plan: plan}, nil
}

// modelFromProto fills zero fields from the named preset.
func modelFromProto(m *pb.PlannerModel) (planner.Model, error) {
	out := planner.Model{
		Name: m.GetPreset(), BytesPerToken: planner.Bytes(m.GetBytesPerToken()), BlockTokens: int(m.GetBlockTokens()), ParamsActive: m.GetParamsActive(),
		Layers: int(m.GetLayers()), QueryHeads: int(m.GetQueryHeads()), AttnHeadDim: m.GetAttentionHeadDim(),
	}
	if m.GetPreset() == "" {
		out.BlockTokens = orDefault(out.BlockTokens, 16)
		return out, nil
	}
	p, err := kvstore.PresetByName(m.GetPreset())
	if err != nil {
		return out, err
	}
	out.BytesPerToken = orDefault(out.BytesPerToken, planner.Bytes(p.Layout.TokenBytes()))
	out.BlockTokens = orDefault(out.BlockTokens, p.Layout.BlockTokens)
	out.ParamsActive = orDefault(out.ParamsActive, p.ParamsActive-p.ParamsEmbedding)
	out.Layers = orDefault(out.Layers, p.Layout.Layers)
	out.QueryHeads = orDefault(out.QueryHeads, p.QueryHeads)
	out.AttnHeadDim = orDefault(out.AttnHeadDim, p.AttnHeadDim)
	return out, nil
}
