package results

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Schema names the format that this package reads and writes.
const Schema = "kvferry.bench/1"

// MaxFileBytes bounds a result on disk, in bytes. Reading and writing more is refused.
const MaxFileBytes = 64 << 20

// maxRemote bounds the machines of one result.
const maxRemote = 16

// MaxMetrics bounds the metrics of one result.
const MaxMetrics = 10_000

// The kinds of results, one a benchmark.
const (
	KindGoodput   = "goodput"
	KindCrossover = "crossover"
	KindQueue     = "queue"
	KindCompare   = "compare"
	KindCodec     = "codec"
	KindHybrid    = "hybrid"
	KindWAN       = "wan"
)

// Kinds returns the kinds that [File.Validate] knows, sorted. The caller owns the slice.
func Kinds() []string {
	return []string{KindCodec, KindCompare, KindCrossover, KindGoodput, KindHybrid, KindQueue, KindWAN}
}

// Direction says which way of a metric is the better one.
type Direction string

// The directions of a metric.
const (
	Higher  Direction = "higher"  // more is better: goodput
	Lower   Direction = "lower"   // less is better: seconds, CPU seconds per GB
	Neither Direction = "neither" // neither is better: a measured crossover
)

// Metric is one number of a result with how sure it is: what [Diff] compares.
type Metric struct {
	// Name is unique in its File: 1 to 200 characters of a-z, A-Z, 0-9 and _ . / : = , + -, like "fetch.seconds/8192".
	Name string `json:"name"`
	// Unit is the unit of all numbers here (see the package's Units), never empty: "1" for a plain number.
	Unit string `json:"unit"`
	// Better has no default: it is Higher, Lower or Neither.
	Better Direction `json:"better"`
	// Samples are independent measurements in the order they were made, warm-up left out. Empty for a number that comes
	// from elsewhere, as from a fit.
	Samples []float64 `json:"samples,omitempty"`
	// Median is the median of Samples; without samples it is the estimate.
	Median float64 `json:"median"`
	// Low and High bound an interval that holds the true median with 95 % confidence, whatever the distribution; with
	// fewer than six samples they are the extremes, which are less sure. Without samples they are an interval of the
	// estimate, and equal to it for a number without noise (a count, virtual time).
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// File is one result. Its fields may be read and set freely before Save, by one goroutine at a time.
type File struct {
	Schema string `json:"schema"` // Schema
	Kind   string `json:"kind"`   // one of Kinds
	// Command is the command line that made the result, for doing it again. It is stored and reported as it is: no secrets.
	Command []string  `json:"command"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"` // wall-clock duration, >= 0
	Machine Machine   `json:"machine"`
	// Remote are the other machines that took part, by what they did, as "destination": at most 16. Diff compares them as it
	// does Machine.
	Remote map[string]Machine `json:"remote,omitempty"`
	// Versions are those of what took part: "go", "kvferry", "quic-go"; a benchmark adds its own ("vllm").
	Versions map[string]string `json:"versions"`
	// Commit is the revision kvferry was built from, with "+dirty" after it when files had changed; empty when unknown.
	Commit string `json:"commit"`
	// Params are what the measurement depends on. Two results with different ones are unlike (see Diff): leave out what
	// does not matter (where output goes) and what differs each time (addresses, ports). Numbers are json.Number.
	Params map[string]any `json:"params"`
	// Interrupted says that the run was cut short: the result holds what was measured until then.
	Interrupted bool `json:"interrupted"`
	// Warnings say what a reader must know before believing the numbers, as that the processor set them and not the link.
	Warnings []string        `json:"warnings"`
	Metrics  []Metric        `json:"metrics"`
	Body     json.RawMessage `json:"body,omitempty"` // a JSON object, the kind's own

	err error // of New's params, for Validate
}

// New returns a result that starts now, on this machine, from this build. params is a struct or a map that encodes to a
// JSON object, or nil; one that does not is reported by Validate and Save. command is copied.
func New(kind string, command []string, params any) *File {
	f := &File{
		Schema: Schema, Kind: kind, Command: slices.Clone(command), Started: time.Now(), Machine: ThisMachine(),
		Versions: map[string]string{}, Params: map[string]any{}, Warnings: []string{}, Metrics: []Metric{},
	}
	f.Versions["go"] = f.Machine.GoVersion
	if b, ok := debug.ReadBuildInfo(); ok {
		f.Commit = commitOf(b)
		f.Versions["kvferry"] = b.Main.Version
		for _, d := range b.Deps {
			if d.Path == "github.com/quic-go/quic-go" {
				f.Versions["quic-go"] = d.Version
			}
		}
	}
	if params == nil {
		return f
	}
	b, err := json.Marshal(params)
	if err == nil && !isObject(b) {
		err = fmt.Errorf("%T encodes to %.40s, want an object", params, b)
	}
	if err == nil {
		err = decodeNumbers(b, &f.Params)
	}
	if err != nil {
		f.err = fmt.Errorf("params: %w: pass a struct or a map with string keys", err)
	}
	return f
}

// commit is stamped by the linker in builds that do not ask the version control system.
var commit string

// commitOf returns the revision of a build, or nothing.
func commitOf(b *debug.BuildInfo) string {
	if commit != "" {
		return commit
	}
	var revision, dirty string
	for _, s := range b.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if revision == "" {
		return ""
	}
	return revision + dirty
}

// SetBody sets the kind's own part from v, which must encode to a JSON object without the fields "schema" and "run". v is
// not retained.
func (f *File) SetBody(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode body: %w", err)
	}
	if err := checkBody(b); err != nil {
		return err
	}
	f.Body = b
	return nil
}

// DecodeBody decodes the kind's own part into v, a pointer. Fields that v lacks are an error, so is an absent body.
func (f *File) DecodeBody(v any) error {
	if len(f.Body) == 0 {
		return fmt.Errorf("decode body of a %q result: it has none", f.Kind)
	}
	d := json.NewDecoder(bytes.NewReader(f.Body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("decode body of a %q result: %w", f.Kind, err)
	}
	return nil
}

// Add adds a metric. When it has samples and Median, Low and High are all zero, they are computed ([MedianInterval] at
// 95 %). The samples are copied. A metric that cannot be is reported by Validate and Save.
func (f *File) Add(m Metric) {
	m.Samples = slices.Clone(m.Samples)
	if len(m.Samples) > 0 && m.Median == 0 && m.Low == 0 && m.High == 0 {
		e := MedianInterval(m.Samples, 0)
		m.Median, m.Low, m.High = e.Value, e.Low, e.High
	}
	f.Metrics = append(f.Metrics, m)
}

// Metric returns the metric of that name.
func (f *File) Metric(name string) (Metric, bool) {
	i := slices.IndexFunc(f.Metrics, func(m Metric) bool { return m.Name == name })
	if i < 0 {
		return Metric{}, false
	}
	return f.Metrics[i], true
}

// Warn adds a warning, once.
func (f *File) Warn(format string, args ...any) {
	if w := fmt.Sprintf(format, args...); !slices.Contains(f.Warnings, w) {
		f.Warnings = append(f.Warnings, w)
	}
}

// Finish sets Seconds, the time since Started, and Interrupted.
func (f *File) Finish(interrupted bool) {
	f.Seconds = max(0, time.Since(f.Started).Seconds())
	f.Interrupted = interrupted
}

var metricName = regexp.MustCompile(`^[a-zA-Z0-9_./:=,+-]{1,200}$`)

// Validate returns every violation joined, nil if there is none. Save does it first and Load last.
func (f *File) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if f.err != nil {
		errs = append(errs, f.err)
	}
	if f.Schema != Schema {
		bad("schema is %q, want %q: the file is no result, or of another version of kvferry", f.Schema, Schema)
	}
	if !slices.Contains(Kinds(), f.Kind) {
		bad("kind is %q, want one of %s", f.Kind, strings.Join(Kinds(), ", "))
	}
	if f.Started.IsZero() || f.Started.Year() < 2000 || f.Started.Year() > 9999 {
		bad("started is %v, want a time in the years 2000 to 9999", f.Started)
	}
	if !finite(f.Seconds) || f.Seconds < 0 {
		bad("seconds is %v, want a finite number >= 0", f.Seconds)
	}
	if len(f.Remote) > maxRemote {
		bad("remote has %d machines, want at most %d", len(f.Remote), maxRemote)
	}
	for _, role := range slices.Sorted(maps.Keys(f.Remote)) {
		if !metricName.MatchString(role) {
			bad("remote has %.80q, want a name as metrics have", role)
		}
		if err := f.Remote[role].validate(); err != nil {
			bad("remote %s: %w", role, err)
		}
	}
	if err := f.Machine.validate(); err != nil {
		errs = append(errs, err)
	}
	if len(f.Metrics) > MaxMetrics {
		bad("metrics: there are %d, at most %d are allowed", len(f.Metrics), MaxMetrics)
		return errors.Join(errs...)
	}
	seen := map[string]bool{}
	for i, m := range f.Metrics {
		if seen[m.Name] {
			bad("metrics[%d]: name %q is there twice", i, m.Name)
		}
		seen[m.Name] = true
		if err := m.validate(); err != nil {
			bad("metrics[%d] %q: %w", i, m.Name, err)
		}
	}
	if len(f.Body) > 0 {
		if err := checkBody(f.Body); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// validate returns the first violation.
func (m Metric) validate() error {
	switch {
	case !metricName.MatchString(m.Name):
		return fmt.Errorf("name is %.210q, want 1 to 200 characters of a-z A-Z 0-9 _ . / : = , + -", m.Name)
	case m.Unit == "" || len(m.Unit) > 40:
		return fmt.Errorf("unit is %.50q, want 1 to 40 bytes (\"1\" for a plain number)", m.Unit)
	case m.Better != Higher && m.Better != Lower && m.Better != Neither:
		return fmt.Errorf("better is %q, want higher, lower or neither", m.Better)
	case !finite(m.Median) || !finite(m.Low) || !finite(m.High):
		return fmt.Errorf("median %v, low %v and high %v must be finite", m.Median, m.Low, m.High)
	case m.Low > m.Median || m.Median > m.High:
		return fmt.Errorf("low %v, median %v and high %v must ascend", m.Low, m.Median, m.High)
	}
	for i, s := range m.Samples {
		if !finite(s) {
			return fmt.Errorf("samples[%d] is %v, want a finite number", i, s)
		}
	}
	if len(m.Samples) > 0 {
		if med := Median(m.Samples); !near(m.Median, med, 1e-9) {
			return fmt.Errorf("median is %v, the samples' is %v: leave median, low and high out to have them computed", m.Median, med)
		}
	}
	return nil
}

// Save writes the result to path in the nested form, as [WriteFile] does. An invalid result is not written.
func (f *File) Save(path string) error {
	b, err := f.encode()
	if err != nil {
		return fmt.Errorf("save result %s: %w", path, err)
	}
	if err := WriteFile(path, b); err != nil {
		return fmt.Errorf("save result: %w", err)
	}
	return nil
}

// encode returns the nested form of a valid result.
func (f *File) encode() ([]byte, error) {
	if err := f.Validate(); err != nil {
		return nil, err
	}
	b, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if len(b)+1 > MaxFileBytes {
		return nil, fmt.Errorf("the result takes %d bytes, at most %d are allowed: keep fewer samples", len(b)+1, MaxFileBytes)
	}
	return append(b, '\n'), nil
}

// WriteFlat writes the result in the flat form: the body's fields at the top in their order, all else under "run". Parse
// and Load read it back. An invalid result is not written.
func (f *File) WriteFlat(w io.Writer) error {
	if _, err := f.encode(); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	head := *f
	head.Body = nil
	run, err := json.Marshal(&head)
	if err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	body := bytes.TrimSpace(f.Body)
	var flat bytes.Buffer
	if len(body) == 0 || isObject(body) && len(bytes.TrimSpace(body[1:len(body)-1])) == 0 {
		flat.WriteByte('{')
	} else {
		flat.Write(body[:len(body)-1])
		flat.WriteByte(',')
	}
	fmt.Fprintf(&flat, "%q:%s}", runField, run)
	var out bytes.Buffer
	if err := json.Indent(&out, flat.Bytes(), "", "  "); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	out.WriteByte('\n')
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// near says whether a and b differ by at most the share tol of the larger.
func near(a, b, tol float64) bool {
	return math.Abs(a-b) <= tol*max(math.Abs(a), math.Abs(b))
}
