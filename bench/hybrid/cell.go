package hybrid

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
)

// Seconds is how long migrations of one kind took, over all draws of a cell.
type Seconds struct {
	Mean float64 `json:"mean"`
	P99  float64 `json:"p99"`
}

// Cell is one setting and how long each way took: seconds until the session is warm.
type Cell struct {
	GoodputBps   float64 `json:"goodput_bps"` // believed: the mean of the true ones
	RTTSeconds   float64 `json:"rtt_seconds"`
	PrefixTokens int64   `json:"prefix_tokens"`
	// PrefillUsPerToken is the recompute's time over the prefix, microseconds a token, attention included.
	PrefillUsPerToken float64 `json:"prefill_us_per_token"`
	Sigma             float64 `json:"sigma"` // of the logarithm of the true goodput
	GPU               string  `json:"gpu"`
	// Equal says that the goodput is the one at which fetch and recompute are expected to take equally long.
	Equal bool `json:"equal"`

	Fetch     Seconds `json:"fetch"`
	Recompute Seconds `json:"recompute"`
	// StaticSplit is a split fixed in advance, at the planner's optimum for the believed goodput.
	StaticSplit Seconds `json:"static_split"`
	// Hybrid is work-stealing as the daemon does it, block by block.
	Hybrid Seconds `json:"hybrid"`
	// Oracle knows the true goodput: the planner's closed form for it, without blocks, claims and windows.
	Oracle Seconds `json:"oracle"`

	// Regret is Hybrid.Mean over Oracle.Mean, less 1. Gain is the better mean of fetch and recompute over Hybrid.Mean.
	Regret float64 `json:"regret"`
	Gain   float64 `json:"gain"`
	// TakenOver is how many transfers a claim took over, and DuplicateBytes what landed of them all the same, both means.
	TakenOver      float64 `json:"taken_over"`
	DuplicateBytes float64 `json:"duplicate_bytes"`
}

// setting is a cell before it is simulated, with what its draws have in common.
type setting struct {
	cell    Cell
	request planner.Request
	model   planner.Model
	compute planner.Compute
	link    planner.Link
	wire    float64 // bytes of a block
	claim   claims
	cum     []float64
}

// claims are how an engine claims.
type claims struct {
	blocks  int
	seconds float64
}

// settings are the cells of a run, in the order of the result: by GPU, prefix, RTT, goodput, sigma.
func settings(cfg Config) ([]setting, error) {
	p, err := kvstore.PresetByName(cfg.Model)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", cfg.Model, err)
	}
	model := planner.Model{
		Name: p.Name, BytesPerToken: planner.Bytes(p.Layout.TokenBytes()), BlockTokens: p.Layout.BlockTokens,
		ParamsActive: p.ParamsActive - p.ParamsEmbedding, Layers: p.Layout.Layers, QueryHeads: p.QueryHeads, AttnHeadDim: p.AttnHeadDim,
	}
	var out []setting
	for _, g := range gpus {
		for _, tokens := range cfg.PrefixTokens {
			tokens -= tokens % int64(model.BlockTokens)
			compute := planner.Compute{PeakFLOPS: g.peak, Source: g.name}
			cum, err := prefillOf(model, compute, tokens)
			if err != nil {
				return nil, err
			}
			for _, rtt := range cfg.RTTs {
				s := setting{
					request: planner.Request{PrefixTokens: tokens, RoundTrips: cfg.RoundTrips, Hybrid: true}, model: model, compute: compute,
					link: planner.Link{RTT: rtt, WindowPackets: -1, CodecRatio: ratio(cfg.CodecRatio)}, cum: cum,
					claim: claims{cfg.ClaimBlocks, cfg.ClaimSeconds},
					wire:  float64(model.BytesPerToken) * float64(model.BlockTokens) / cfg.CodecRatio,
				}
				s.cell = Cell{
					RTTSeconds: rtt.Seconds(), PrefixTokens: tokens, GPU: g.name, PrefillUsPerToken: 1e6 * cum[len(cum)-1] / float64(tokens),
				}
				if slices.Contains(cfg.GPUs, g.name) {
					out = append(out, s.over(cfg)...)
				}
			}
		}
	}
	return out, nil
}

// ratio is the planner's: 0 for pages that go as they are.
func ratio(r float64) float64 {
	if r == 1 {
		return 0
	}
	return r
}

// over gives s every goodput and sigma: those asked for, and the one at which fetch and recompute take equally long, if there is one.
func (s setting) over(cfg Config) []setting {
	var out []setting
	add := func(goodput float64, equal bool) {
		for _, sigma := range cfg.Sigmas {
			c := s
			c.cell.GoodputBps, c.cell.Equal, c.cell.Sigma = goodput, equal, sigma
			c.link.Goodput = planner.Rate(goodput)
			out = append(out, c)
		}
	}
	for _, g := range cfg.Goodputs {
		add(g, false)
	}
	recompute := s.cum[len(s.cum)-1]
	bits := 8 * s.wire * float64(len(s.cum)-1)
	if spare := recompute - cfg.RoundTrips*s.cell.RTTSeconds; spare > 0 && bits/spare <= maxEqual {
		add(bits/spare, true)
	}
	return out
}

// maxEqual is the fastest link that is worth asking about, bits a second.
const maxEqual = 1e13

// prefillOf is what prefill of the first 0, 1, 2... blocks takes, seconds.
func prefillOf(m planner.Model, c planner.Compute, tokens int64) ([]float64, error) {
	n := int(tokens) / m.BlockTokens
	cum := make([]float64, n+1)
	for k := range cum {
		e, err := planner.Evaluate(planner.Request{PrefixTokens: int64(k * m.BlockTokens)}, m, c, planner.Link{})
		if err != nil {
			return nil, fmt.Errorf("price %d blocks: %w", k, err)
		}
		cum[k] = e.Price(planner.ModeRecompute).Seconds
	}
	return cum, nil
}

// normals are the deviates of all draws: every cell has the same, so that cells differ by their settings alone.
func normals(seed uint64, n int) []float64 {
	rng := rand.New(rand.NewPCG(seed, 0x6879627269640000))
	z := make([]float64, n)
	for i := range z {
		z[i] = rng.NormFloat64()
	}
	return z
}

// simulate does all draws of a cell.
func (s *setting) simulate(z []float64, m *meeting) (Cell, error) {
	c := s.cell
	if c.Sigma == 0 {
		z = z[:1] // they are all alike
	}
	believed, err := planner.Evaluate(s.request, s.model, s.compute, s.link)
	if err != nil {
		return Cell{}, fmt.Errorf("plan: %w", err)
	}
	lead := s.request.RoundTrips * c.RTTSeconds
	recompute := s.cum[len(s.cum)-1]
	var fetch, static, hybrid, oracle []float64
	for _, deviate := range z {
		rate := c.GoodputBps * math.Exp(c.Sigma*deviate-c.Sigma*c.Sigma/2) // its mean is what is believed
		link := s.link
		link.Goodput = planner.Rate(rate)
		truth, err := planner.Evaluate(s.request, s.model, s.compute, link)
		if err != nil {
			return Cell{}, fmt.Errorf("plan: %w", err)
		}
		out := m.run(draw{
			cum: s.cum, blockBytes: s.wire, rtt: c.RTTSeconds, lead: lead, rate: rate / 8, believed: c.GoodputBps / 8,
			want: s.claim.blocks, claim: s.claim.seconds,
		})
		fetch = append(fetch, truth.Price(planner.ModeFetch).Seconds)
		oracle = append(oracle, truth.Price(planner.ModeHybrid).Seconds)
		static = append(static, s.fixedSplit(believed.Split.FrontTokens, lead, rate))
		hybrid = append(hybrid, out.seconds)
		c.TakenOver += float64(out.takeovers) / float64(len(z))
		c.DuplicateBytes += out.duplicate / float64(len(z))
	}
	c.Fetch, c.StaticSplit, c.Hybrid, c.Oracle = of(fetch), of(static), of(hybrid), of(oracle)
	c.Recompute = Seconds{recompute, recompute}
	c.Regret = c.Hybrid.Mean/c.Oracle.Mean - 1
	c.Gain = min(c.Fetch.Mean, c.Recompute.Mean) / c.Hybrid.Mean
	return c, nil
}

// fixedSplit prefills so many tokens, to the nearest block, and fetches the others, whatever the link does.
func (s *setting) fixedSplit(tokens, lead, rate float64) float64 {
	n := len(s.cum) - 1
	front := min(n, int(math.Round(tokens/float64(s.model.BlockTokens))))
	if front == n {
		return s.cum[n]
	}
	return max(s.cum[front], lead+8*s.wire*float64(n-front)/rate)
}

func of(x []float64) Seconds {
	var sum float64
	for _, v := range x {
		sum += v
	}
	return Seconds{Mean: sum / float64(len(x)), P99: results.Quantile(x, .99)}
}

// name is the cell's in metrics.
func (c *Cell) name() string {
	goodput := fmt.Sprintf("%gbps", c.GoodputBps)
	if c.Equal {
		goodput = "equal"
	}
	return fmt.Sprintf("%s/%dtokens/%v/%s/sigma%g", c.GPU, c.PrefixTokens, time.Duration(math.Round(1e9*c.RTTSeconds)), goodput, c.Sigma)
}
