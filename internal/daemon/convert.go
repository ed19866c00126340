package daemon

import (
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// This file is the border between the wire's types and the domain's.

var dtypes = map[pb.Dtype]kvstore.DType{
	pb.Dtype_DTYPE_BF16: kvstore.DTypeBF16, pb.Dtype_DTYPE_FP16: kvstore.DTypeFP16,
	pb.Dtype_DTYPE_FP8_E4M3: kvstore.DTypeFP8E4M3, pb.Dtype_DTYPE_FP8_E5M2: kvstore.DTypeFP8E5M2,
}

var kinds = map[pb.LayoutKind]kvstore.Kind{
	pb.LayoutKind_LAYOUT_KIND_GQA: kvstore.KindGQA, pb.LayoutKind_LAYOUT_KIND_MLA: kvstore.KindMLA,
}

// layoutFromProto converts and validates.
func layoutFromProto(l *pb.Layout) (kvstore.Layout, error) {
	if l == nil {
		return kvstore.Layout{}, invalid("layout", "unset", "set")
	}
	dtype, ok := dtypes[l.GetDtype()]
	if !ok {
		return kvstore.Layout{}, invalid("layout.dtype", l.GetDtype(), "one of bf16, fp16, fp8_e4m3, fp8_e5m2")
	}
	kind, ok := kinds[l.GetKind()]
	if !ok {
		return kvstore.Layout{}, invalid("layout.kind", l.GetKind(), "gqa or mla; state-space, sliding-window and draft-model KV can't be moved yet")
	}
	out := kvstore.Layout{
		ModelID: l.GetModelId(), Revision: l.GetRevision(), WeightsVersion: l.GetWeightsVersion(), LoRA: l.GetLora(),
		DType: dtype, FP8ScaleDigest: l.GetFp8ScaleDigest(), Kind: kind,
		Layers: int(l.GetLayers()), KVHeads: int(l.GetKvHeads()), HeadDim: int(l.GetHeadDim()), BlockTokens: int(l.GetBlockTokens()),
		PositionScheme: l.GetPositionScheme(), HashAlgorithm: l.GetHashAlgorithm(), HashSeed: l.GetHashSeed(), SaltPolicy: l.GetSaltPolicy(),
	}
	return out, out.Validate()
}

func layoutToProto(l kvstore.Layout) *pb.Layout {
	out := &pb.Layout{
		ModelId: l.ModelID, Revision: l.Revision, WeightsVersion: l.WeightsVersion, Lora: l.LoRA, Fp8ScaleDigest: l.FP8ScaleDigest,
		Layers: uint32(l.Layers), KvHeads: uint32(l.KVHeads), HeadDim: uint32(l.HeadDim), BlockTokens: uint32(l.BlockTokens),
		PositionScheme: l.PositionScheme, HashAlgorithm: l.HashAlgorithm, HashSeed: l.HashSeed, SaltPolicy: l.SaltPolicy,
	}
	for p, d := range dtypes {
		if d == l.DType {
			out.Dtype = p
		}
	}
	for p, k := range kinds {
		if k == l.Kind {
			out.Kind = p
		}
	}
	return out
}

// maxKeysPerCall bounds the keys of one call on blocks; maxSessionKeys those of a session.
const (
	maxKeysPerCall = 1 << 16
	maxSessionKeys = 1 << 20
)

// keysFromProto converts and validates; field names the request's field in errors.
func keysFromProto(field string, keys [][]byte, limit int, emptyAllowed bool) ([]kvstore.BlockKey, error) {
	if len(keys) == 0 && !emptyAllowed || len(keys) > limit {
		return nil, invalid(field, len(keys), "between 1 and the limit of keys a call; split the call")
	}
	out := make([]kvstore.BlockKey, len(keys))
	for i, k := range keys {
		out[i] = kvstore.BlockKey(k)
		if err := out[i].Validate(); err != nil {
			return nil, &kvstore.BlockError{Key: out[i], Index: i, Err: err}
		}
	}
	return out, nil
}

func keysToProto(keys []kvstore.BlockKey) [][]byte {
	out := make([][]byte, len(keys))
	for i, k := range keys {
		out[i] = []byte(k)
	}
	return out
}

func refFromProto(r *pb.SlotRef) kvstore.SlotRef {
	return kvstore.SlotRef{Slot: r.GetSlot(), Generation: r.GetGeneration()}
}

func refToProto(r kvstore.SlotRef) *pb.SlotRef {
	return &pb.SlotRef{Slot: r.Slot, Generation: r.Generation}
}

func refsToProto(refs []kvstore.SlotRef) []*pb.SlotRef {
	out := make([]*pb.SlotRef, len(refs))
	for i, r := range refs {
		out[i] = refToProto(r)
	}
	return out
}

func fidelityFromProto(f pb.Fidelity) kvstore.Fidelity {
	if f == pb.Fidelity_FIDELITY_LOSSY {
		return kvstore.FidelityLossy
	}
	return kvstore.FidelityExact
}

func fidelityToProto(f kvstore.Fidelity) pb.Fidelity {
	if f == kvstore.FidelityLossy {
		return pb.Fidelity_FIDELITY_LOSSY
	}
	return pb.Fidelity_FIDELITY_EXACT
}

func sessionToProto(s kvstore.Session) *pb.Session {
	return &pb.Session{
		Ref:       &pb.SessionRef{Tenant: string(s.Tenant), SessionId: string(s.ID)},
		LayoutPin: s.Pin[:], BlockKeys: keysToProto(s.Keys), Tokens: s.Tokens, OwnerNodeId: string(s.Owner),
		Epoch: s.Epoch, Version: s.Version, RepinSeq: s.RepinSeq, Fidelity: fidelityToProto(s.Fidelity),
	}
}

func sessionFromProto(s *pb.Session) (kvstore.Session, error) {
	keys, err := keysFromProto("session.block_keys", s.GetBlockKeys(), maxSessionKeys, true)
	if err != nil {
		return kvstore.Session{}, err
	}
	out := kvstore.Session{
		Tenant: kvstore.Tenant(s.GetRef().GetTenant()), ID: kvstore.SessionID(s.GetRef().GetSessionId()),
		Keys: keys, Tokens: s.GetTokens(), Owner: kvstore.NodeID(s.GetOwnerNodeId()),
		Epoch: s.GetEpoch(), Version: s.GetVersion(), RepinSeq: s.GetRepinSeq(), Fidelity: fidelityFromProto(s.GetFidelity()),
	}
	if len(s.GetLayoutPin()) != len(out.Pin) {
		return kvstore.Session{}, invalid("session.layout_pin", len(s.GetLayoutPin()), "32 bytes")
	}
	copy(out.Pin[:], s.GetLayoutPin())
	return out, nil
}

// printable reports whether a name can be shown in a log or a terminal as it is.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// sessionRefFromProto validates a name given by a caller.
func sessionRefFromProto(r *pb.SessionRef) (kvstore.Tenant, kvstore.SessionID, error) {
	if r.GetSessionId() == "" || len(r.GetSessionId()) > 256 {
		return "", "", invalid("session.session_id", len(r.GetSessionId()), "1 to 256 bytes")
	}
	if len(r.GetTenant()) > 128 {
		return "", "", invalid("session.tenant", len(r.GetTenant()), "at most 128 bytes")
	}
	if !printable(r.GetSessionId()) {
		return "", "", invalid("session.session_id", strconv.QuoteToASCII(r.GetSessionId()), "UTF-8 without control characters")
	}
	if !printable(r.GetTenant()) {
		return "", "", invalid("session.tenant", strconv.QuoteToASCII(r.GetTenant()), "UTF-8 without control characters")
	}
	return kvstore.Tenant(r.GetTenant()), kvstore.SessionID(r.GetSessionId()), nil
}

var modes = map[pb.Mode]planner.Mode{
	pb.Mode_MODE_UNSPECIFIED: planner.ModeNone, pb.Mode_MODE_REDIRECT: planner.ModeRedirect, pb.Mode_MODE_FETCH: planner.ModeFetch,
	pb.Mode_MODE_RECOMPUTE: planner.ModeRecompute, pb.Mode_MODE_HYBRID: planner.ModeHybrid, pb.Mode_MODE_BACKGROUND: planner.ModeBackground,
}

func modeFromProto(m pb.Mode) (planner.Mode, error) {
	out, ok := modes[m]
	switch {
	case !ok:
		return 0, invalid("mode", m, "redirect, fetch, recompute, hybrid, or unspecified to let the planner choose")
	case out == planner.ModeBackground:
		return 0, failf(ReasonModeUnavailable, "ask for redirect, fetch, recompute or hybrid, or leave the mode to the planner", "mode %s is not available in this version", out)
	}
	return out, nil
}

func modeToProto(m planner.Mode) pb.Mode {
	for p, d := range modes {
		if d == m {
			return p
		}
	}
	return pb.Mode_MODE_UNSPECIFIED
}

// duration reads an optional relative duration; zero means not given.
func duration(field string, d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, invalid(field, d, "a valid duration")
	}
	out := d.AsDuration()
	if out <= 0 || out > 24*time.Hour {
		return 0, invalid(field, out, "above 0 and at most 24h, or unset")
	}
	return out, nil
}

// flipsToProto are those that were found; none when the inputs are not valid, which planning says elsewhere.
func flipsToProto(r planner.Request, m planner.Model, c planner.Compute, l planner.Link) (out []*pb.PlanFlip) {
	flips, err := planner.Flips(r, m, c, l)
	if err != nil {
		return nil
	}
	for _, f := range flips {
		if f.Found {
			out = append(out, &pb.PlanFlip{Figure: f.Figure.String(), Now: f.Now, At: f.At, Winner: modeToProto(f.Winner)})
		}
	}
	return out
}

// planToProto writes a decision out term by term; modes that this version does not have are left out.
func planToProto(d planner.Decision, computeSource string, crossover float64, crosses bool) *pb.Plan {
	out := &pb.Plan{
		Winner: modeToProto(d.Winner), RunnerUp: modeToProto(d.RunnerUp), MarginSeconds: d.MarginSeconds, MarginRatio: d.MarginRatio,
		Reason: d.Reason, LinkSource: d.LinkSource, ComputeSource: computeSource, RankedByP95: d.RankedByP95, Confidence: d.Confidence,
	}
	if crosses {
		out.CrossoverTokens = &crossover
	}
	for _, m := range []planner.Mode{planner.ModeRedirect, planner.ModeFetch, planner.ModeRecompute, planner.ModeHybrid} {
		p, ok := d.Plan(m)
		if !ok {
			continue
		}
		mp := &pb.ModePlan{
			Mode: modeToProto(m), Seconds: p.Seconds, Eligible: p.Eligible, Reason: p.Reason, Bytes: int64(p.Bytes), PrefillTokens: p.Tokens,
		}
		if p.SigmaSeconds > 0 {
			mp.SigmaSeconds, mp.P95Seconds = &p.SigmaSeconds, &p.P95Seconds
		}
		for _, t := range p.Terms {
			mp.Terms = append(mp.Terms, &pb.PlanTerm{Name: t.Name, Seconds: t.Seconds, Note: t.Note})
		}
		out.Modes = append(out.Modes, mp)
	}
	return out
}
