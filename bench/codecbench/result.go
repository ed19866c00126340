package codecbench

import (
	"math"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

// Codec is one codec's medians on pages of one element. A GB is 1e9 bytes of pages before coding.
type Codec struct {
	Name            string  `json:"name"`
	DType           string  `json:"dtype"` // of the values: bf16, fp16, fp8 (E4M3) or fp8_e5m2
	Ratio           float64 `json:"ratio"`
	BoundRatio      float64 `json:"bound_ratio"` // what order-0 entropy allows of the same pages; 0: they are constant, and there is none
	EncodeGBps      float64 `json:"encode_gbps_core"`
	DecodeGBps      float64 `json:"decode_gbps_core"`
	CPUSecondsPerGB float64 `json:"cpu_seconds_per_gb"` // both ends
	RawPages        int     `json:"raw_pages"`          // that do not become shorter, and go as they are
}

// Data is the pages of one element.
type Data struct {
	DType          string  `json:"dtype"`
	Source         string  `json:"source"`
	Model          string  `json:"model,omitempty"` // of a file
	Kind           string  `json:"kind,omitempty"`  // of a file: gqa or mla
	Pages          int     `json:"pages"`           // measured
	Of             int     `json:"of"`              // that there are
	PageBytes      int     `json:"page_bytes"`
	BitsPerElement float64 `json:"bits_per_element"` // of entropy, at order 0
	SHA256         string  `json:"sha256"`           // of the pages that were measured
}

// Result is what Run measured.
type Result struct {
	Codecs []Codec `json:"codecs"`
	Data   []Data  `json:"data"`

	cfg         Config
	runs        []*run
	rounds      int // that are whole
	machine     results.Machine
	started     time.Time
	interrupted bool
}

// newResult takes the medians of the first rounds, which every codec has.
func newResult(c Config, sets []*set, runs []*run, rounds int) *Result {
	r := &Result{cfg: c, runs: runs, rounds: rounds}
	for _, s := range sets {
		r.Data = append(r.Data, s.from)
	}
	for _, m := range runs {
		m.encode, m.decode, m.cpu = m.encode[:rounds], m.decode[:rounds], m.cpu[:rounds]
		bound := m.bound
		if math.IsInf(bound, 0) {
			bound = 0
		}
		r.Codecs = append(r.Codecs, Codec{
			Name: m.name, DType: rowDType(m.dtype), Ratio: float64(m.from.Pages) * float64(m.from.PageBytes) / float64(m.coded), BoundRatio: bound,
			EncodeGBps: results.Median(m.encode), DecodeGBps: results.Median(m.decode), CPUSecondsPerGB: results.Median(m.cpu), RawPages: m.raw,
		})
	}
	return r
}

// params is what numbers depend on: the pages, by their bytes, and the rounds.
type params struct {
	Rounds int    `json:"rounds"`
	Data   []Data `json:"data"`
}

// File returns the result in the schema of all benchmarks. Its metrics are called by element and codec, as encode/bf16/huff.
// command is the command line.
func (r *Result) File(command []string) (*results.File, error) {
	f := results.New(results.KindCodec, command, params{r.cfg.Rounds, r.Data})
	f.Finish(r.interrupted)
	f.Machine, f.Started, f.Seconds = r.machine, r.started, time.Since(r.started).Seconds()
	if err := f.SetBody(r); err != nil {
		return nil, err
	}
	for i, m := range r.runs {
		name := r.Codecs[i].DType + "/" + m.name
		f.Add(results.Metric{Name: "encode/" + name, Unit: "GB/s", Better: results.Higher, Samples: m.encode})
		f.Add(results.Metric{Name: "decode/" + name, Unit: "GB/s", Better: results.Higher, Samples: m.decode})
		f.Add(results.Metric{Name: "cpu/" + name, Unit: "s/GB", Better: results.Lower, Samples: m.cpu})
		ratio := r.Codecs[i].Ratio
		f.Add(results.Metric{Name: "ratio/" + name, Unit: "1", Better: results.Higher, Median: ratio, Low: ratio, High: ratio})
	}
	for _, c := range r.machine.Cautions() {
		if !strings.HasPrefix(c, "net.core.") && !strings.HasPrefix(c, "the clock source") { // no sockets here, and a look at the clock a round
			f.Warn("%s", c)
		}
	}
	return f, nil
}

// Table shows the medians.
func (r *Result) Table() *results.Table {
	t := &results.Table{Title: "codecs on KV values, one core, GB are 1e9 bytes before coding"}
	for _, name := range []string{"values", "codec", "ratio", "bound", "encode GB/s", "decode GB/s", "CPU s/GB", "raw pages"} {
		t.Columns = append(t.Columns, results.Column{Name: name, Left: name == "values" || name == "codec"})
	}
	for _, m := range r.Codecs {
		t.Row(m.DType, m.Name, m.Ratio, m.BoundRatio, m.EncodeGBps, m.DecodeGBps, m.CPUSecondsPerGB, m.RawPages)
	}
	return t
}

// DataTable shows what was coded.
func (r *Result) DataTable() *results.Table {
	t := &results.Table{Title: "pages"}
	for _, name := range []string{"values", "pages", "of", "bytes a page", "bits an element", "from"} {
		t.Columns = append(t.Columns, results.Column{Name: name, Left: name == "values" || name == "from"})
	}
	for _, d := range r.Data {
		from := d.Source
		if d.Model != "" {
			from = strings.TrimSpace(d.Model + ", " + d.Source)
		}
		t.Row(d.DType, d.Pages, d.Of, d.PageBytes, d.BitsPerElement, from)
	}
	return t
}
