package planner

// Places of the terms in Price.Terms.
const (
	maxTerms = 7

	atComputeQueue, atComputeFixed, atPrefillLinear, atPrefillAttention, atTailWait = 0, 1, 2, 3, 4 // recompute, hybrid

	atEgressQueue, atFetchQueue, atRTT, atFetchFixed, atRamp, atBytes, atCodec = 0, 1, 2, 3, 4, 5, 6 // fetch
)

var (
	redirectTerms  = []string{TermDetour}
	fetchTerms     = []string{TermEgressQueue, TermFetchQueue, TermRTT, TermFixed, TermRamp, TermBytes, TermCodec}
	recomputeTerms = []string{TermComputeQueue, TermFixed, TermPrefillLinear, TermPrefillAttention}
	hybridTerms    = []string{TermComputeQueue, TermFixed, TermPrefillLinear, TermPrefillAttention, TermTailWait}
)

// termNames are the names of a mode's terms in order. Read only.
func termNames(m Mode) []string {
	switch m {
	case ModeRedirect:
		return redirectTerms
	case ModeFetch:
		return fetchTerms
	case ModeRecompute:
		return recomputeTerms
	case ModeHybrid:
		return hybridTerms
	case ModeNone, ModeBackground:
	}
	return nil
}

// Price is what one mode costs, in numbers alone. [ModePlan] says the same with texts; fields of the same name mean the same.
type Price struct {
	Mode                              Mode
	Priced, Eligible                  bool
	Refusal                           Refusal
	Seconds, SigmaSeconds, P95Seconds float64
	Bytes                             Bytes
	Tokens                            int64
	// Terms are the addends of Seconds, in the order of ModePlan.Terms; the rest is 0. See [Price.Term].
	Terms [maxTerms]float64
}

// Term returns the seconds of the term with that name, 0 and false if the price has none.
func (p Price) Term(name string) (seconds float64, ok bool) {
	if !p.Priced {
		return 0, false
	}
	for i, n := range termNames(p.Mode) {
		if n == name {
			return p.Terms[i], true
		}
	}
	return 0, false
}

// price fills in the terms and their sum, and makes p eligible.
func (p *Price) price(terms ...float64) {
	p.Seconds = 0
	for i, t := range terms {
		p.Terms[i] = t
		p.Seconds += t
	}
	p.Priced, p.Eligible = true, true
}

// refuse makes p not eligible. What is priced stays.
func (p *Price) refuse(why Refusal) { p.Eligible, p.Refusal = false, why }

// z95 is the 95th percentile of the standard normal distribution.
const z95 = 1.6448536269514722

// spread sets the deviation of what is priced; relative is over its seconds, 0 if not known.
func (p *Price) spread(relative float64) {
	if relative > 0 {
		p.SigmaSeconds = relative * p.Seconds
		p.P95Seconds = p.Seconds + z95*p.SigmaSeconds
	}
}

// spreadKnown says that p can be ranked by what it takes in bad cases: redirect has no spread to know.
func (p *Price) spreadKnown() bool {
	return p.Mode == ModeRedirect || p.SigmaSeconds > 0 || p.Seconds == 0
}

// plan is p with a note for each of its terms; one with none is left out.
func (p *Price) plan(notes ...string) ModePlan {
	out := ModePlan{
		Mode: p.Mode, Priced: p.Priced, Eligible: p.Eligible, Refusal: p.Refusal, Bytes: p.Bytes, Tokens: p.Tokens,
		Seconds: p.Seconds, SigmaSeconds: p.SigmaSeconds, P95Seconds: p.P95Seconds,
	}
	if !p.Priced {
		return out
	}
	names := termNames(p.Mode)
	out.Terms = make([]Term, 0, len(names))
	for i, name := range names {
		if notes[i] != "" {
			out.Terms = append(out.Terms, Term{Name: name, Seconds: p.Terms[i], Note: notes[i]})
		}
	}
	return out
}
