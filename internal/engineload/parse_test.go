package engineload

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func known(v float64) Reading { return Reading{v, true} }

func read(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func parseText(text string) (Load, error) { return Parse(strings.NewReader(text), noon) }

// What engines of several releases export is read in full; see testdata/README.md for what the texts are.
func TestParseReleases(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		want Load
	}{
		{"vllm-0.6.txt", Load{
			Engine: VLLM, Model: "meta-llama/Llama-3.1-8B-Instruct", Ranks: 1,
			Running: known(7), Waiting: known(4), KVUsage: known(0.625),
			PromptTokens: known(812345), PrefillSeconds: known(80.5), Preemptions: known(3),
			QueueSeconds: known(12.25), QueueRequests: known(249),
			Partial: []string{
				"vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total",
				"vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total", "vllm:request_prefill_kv_computed_tokens_sum",
			},
		}},
		{"vllm-0.8.txt", Load{
			Engine: VLLM, Model: "Qwen/Qwen2.5-7B", Ranks: 1,
			Running: known(2), Waiting: known(0), KVUsage: known(0.12502),
			PrefixQueries: known(1000 * 16), PrefixHits: known(250 * 16), // counted in blocks of 16
			PromptTokens: known(16100), ComputedTokens: known(16100 - 250*16), PrefillSeconds: known(4), Preemptions: known(0),
			QueueSeconds: known(0.5), QueueRequests: known(20),
			Partial: []string{
				"vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_queries_total",
				"vllm:request_prefill_kv_computed_tokens_sum",
			},
		}},
		{"vllm-0.2x.txt", Load{
			Engine: VLLM, Model: `org/"quoted\ name`, Ranks: 2,
			Running: known(8), Waiting: known(6), KVUsage: known(0.75),
			PrefixQueries: known(100000), PrefixHits: known(30000), ExternalQueries: known(70000), ExternalHits: known(10000),
			PromptTokens: known(98500), ComputedTokens: known(58000), PrefillSeconds: known(21), Preemptions: known(3),
			QueueSeconds: known(15), QueueRequests: known(150),
		}},
		{"sglang-0.4.txt", Load{
			Engine: SGLang, Model: "meta-llama/Llama-3.1-8B-Instruct", Ranks: 1,
			Running: known(9), Waiting: known(2), KVUsage: known(0.25),
			PrefixQueries: known(80000), PrefixHits: known(30000), PromptTokens: known(80000), ComputedTokens: known(50000),
			Partial: []string{
				"sglang:num_retracted_requests_total", "sglang:per_stage_req_latency_seconds_sum", "sglang:prefill_effective_tokens_total",
				"sglang:queue_time_seconds_count", "sglang:queue_time_seconds_sum",
			},
		}},
		{"sglang-0.5.txt", Load{
			Engine: SGLang, Model: "Qwen/Qwen3-32B", Ranks: 2,
			Running: known(16), Waiting: known(4), KVUsage: known(0.5),
			PrefixQueries: known(12150), PrefixHits: known(3750), ExternalHits: known(400),
			PromptTokens: known(11500), ComputedTokens: known(8000), PrefillSeconds: known(3), Preemptions: known(3),
			QueueSeconds: known(2), QueueRequests: known(50),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			text := read(t, tc.name)
			tc.want.ScrapedAt = noon
			got, err := parseText(text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("load (-want +got):\n%s", diff)
			}
			slow, err := Parse(iotest.OneByteReader(strings.NewReader(text)), noon)
			if diff := cmp.Diff(tc.want, slow); diff != "" || err != nil {
				t.Errorf("byte by byte: %v, (-want +got):\n%s", err, diff)
			}
			open, err := parseText(strings.ReplaceAll(text, "\n", " # {trace_id=\"x\"} 1 2\n") + "# EOF")
			if open.Partial = nil; err != nil || open.Running != tc.want.Running || open.Truncated {
				t.Errorf("with exemplars: %+v, %v", open, err)
			}
			againstExpfmt(t, text)
		})
	}
}

// againstExpfmt holds our reading of samples against Prometheus' own parser, where that accepts the text.
func againstExpfmt(t *testing.T, text string) {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return
	}
	x, err := readExposition(strings.NewReader(text), DefaultMaxBytes)
	if err != nil {
		t.Fatal(err)
	}
	for name := range wanted {
		f := x.families[name]
		if f == nil {
			f = &family{}
		}
		want, fine := values(families, name)
		if !fine || glued(text, name) {
			continue
		}
		got := map[string]int{}
		for _, s := range f.samples {
			if s.value >= 0 {
				got[Reading{s.value, true}.String()]++
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-expfmt +ours):\n%s\n%q", name, diff, text)
		}
	}
}

// glued says whether a line of text has something right behind name that is neither blank nor a brace. expfmt reads a
// value there. We refuse it: "name.5 1" is a sample of another name, with a dot, and not one half of this.
func glued(text, name string) bool {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if ok && rest != "" && len(sampleName([]byte(name+rest))) == len(name) && !strings.ContainsAny(rest[:1], " \t{") {
			return true
		}
	}
	return false
}

// A value right behind a name is not that name's: the line is another name's, or none.
func TestGlued(t *testing.T) {
	t.Parallel()
	for _, rest := range []string{".5 1", "+0", "-0", "\"x\" 1", "\xc3\xa9 1"} {
		l, err := parseText("vllm:num_requests_waiting 2\nvllm:num_requests_running" + rest + "\n")
		if err != nil || l.Running.Known || l.Waiting != known(2) {
			t.Errorf("%q: running %v, waiting %v, %v", rest, l.Running, l.Waiting, err)
		}
	}
}

// values are the usable values of an exact sample name as expfmt understood it, each with how often it occurs; fine is
// false where expfmt folds lines together, as it does for summaries and histograms.
func values(families map[string]*dto.MetricFamily, name string) (got map[string]int, fine bool) {
	got = map[string]int{}
	add := func(v float64) {
		if v >= 0 && !math.IsInf(v, 0) {
			got[known(v+0).String()]++
		}
	}
	for family, mf := range families {
		for _, m := range mf.Metric {
			switch mf.GetType() {
			case dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE_HISTOGRAM:
				if name == family+"_sum" && m.Histogram.SampleSum != nil {
					add(m.Histogram.GetSampleSum())
				}
				if name == family+"_count" {
					return nil, false // an integer there
				}
			case dto.MetricType_SUMMARY:
				if strings.HasPrefix(name, family) {
					return nil, false
				}
			case dto.MetricType_COUNTER:
				if name == family {
					add(m.Counter.GetValue())
				}
			case dto.MetricType_GAUGE:
				if name == family {
					add(m.Gauge.GetValue())
				}
			default:
				if name == family {
					add(m.Untyped.GetValue())
				}
			}
		}
	}
	return got, true
}

func TestParseReadings(t *testing.T) {
	t.Parallel()
	running := func(l Load) Reading { return l.Running }
	waiting := func(l Load) Reading { return l.Waiting }
	usage := func(l Load) Reading { return l.KVUsage }
	queries := func(l Load) Reading { return l.PrefixQueries }
	hits := func(l Load) Reading { return l.PrefixHits }
	for _, tc := range []struct {
		name, text string
		get        func(Load) Reading
		want       Reading
	}{
		{"no labels", "vllm:num_requests_running 3\n", running, known(3)},
		{"zero is known", "vllm:num_requests_running 0\n", running, known(0)},
		{"absent is unknown", "vllm:num_requests_waiting 0\n", running, Reading{}},
		{"time", "vllm:num_requests_running 3 1712345678000\n", running, known(3)},
		{"CRLF and blanks", " vllm:num_requests_running {engine = \"0\" , } \t 3 \r\n", running, known(3)},
		{"longer name does not count", "vllm:num_requests_running_total 9\nvllm:num_requests_waiting 1\n", running, Reading{}},
		{"prefix of a name", "vllm:num_requests_waiting_by_reason{reason=\"deferred\"} 9\n", waiting, Reading{}},
		{"capacity before all", "vllm:num_requests_waiting 9\nvllm:num_requests_waiting_by_reason{reason=\"capacity\"} 2\n", waiting, known(2)},
		{"deferred only", "vllm:num_requests_waiting 9\nvllm:num_requests_waiting_by_reason{reason=\"deferred\"} 9\n", waiting, known(9)},
		{"NaN", "vllm:num_requests_running NaN\n", running, Reading{}},
		{"Inf", "vllm:num_requests_running +Inf\n", running, Reading{}},
		{"negative", "vllm:num_requests_running -1\n", running, Reading{}},
		{"hexadecimal", "vllm:num_requests_running 0x10p0\n", running, Reading{}},
		{"one bad rank spoils the sum", "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} NaN\n", running, Reading{}},
		{"malformed", "vllm:num_requests_running{engine=\"0} 1\nvllm:num_requests_waiting 1\n", running, Reading{}},
		{"bad escape", "vllm:num_requests_running{engine=\"\\t\"} 1\n", running, Reading{}},
		{"two values", "vllm:num_requests_running 1 2 3\n", running, Reading{}},
		{"sum overflows", "vllm:num_requests_running{engine=\"0\"} 1.7e308\nvllm:num_requests_running{engine=\"1\"} 1.7e308\n", running, Reading{}},
		{"same series twice", "vllm:num_requests_running{engine=\"0\"} 2\nvllm:num_requests_running{engine=\"0\"} 2\n", running, known(2)},
		{"usage above 1", "vllm:kv_cache_usage_perc 62.5\n", usage, Reading{}},
		{"usage rounded", "vllm:kv_cache_usage_perc 1.0000001\n", usage, known(1)},
		{"old name where the new is bad", "vllm:kv_cache_usage_perc NaN\nvllm:gpu_cache_usage_perc 0.5\n", usage, known(0.5)},
		{"fullest rank", "vllm:kv_cache_usage_perc{engine=\"0\"} 0.9\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.1\n", usage, known(0.9)},
		{"created twin", "vllm:prefix_cache_queries_created 1.7e9\nvllm:prefix_cache_queries_total 5\n", queries, known(5)},
		{"without total", "vllm:prefix_cache_queries 5\n", queries, known(5)},
		{"both spellings", "vllm:prefix_cache_queries 4\nvllm:prefix_cache_queries_total 5\n", queries, known(5)},
		{"new name before old", "# HELP vllm:gpu_prefix_cache_queries_total queried tokens\nvllm:gpu_prefix_cache_queries_total 4\nvllm:prefix_cache_queries_total 5\n", queries, known(5)},
		{"old name in tokens", "# HELP vllm:gpu_prefix_cache_queries_total queried tokens\nvllm:gpu_prefix_cache_queries_total 4\n", queries, known(4)},
		{"old name, OpenMetrics", "# HELP vllm:gpu_prefix_cache_queries queried tokens\nvllm:gpu_prefix_cache_queries_total 4\n", queries, known(4)},
		{"old name, unit unknown", "vllm:gpu_prefix_cache_queries_total 4\n", queries, Reading{}},
		{"old name, block unknown", "# HELP vllm:gpu_prefix_cache_queries_total queried blocks\nvllm:gpu_prefix_cache_queries_total 4\n", queries, Reading{}},
		{
			"old name, blocks differ", "# HELP vllm:gpu_prefix_cache_queries_total queried blocks\nvllm:gpu_prefix_cache_queries_total 4\n" +
				"vllm:cache_config_info{block_size=\"16\",engine=\"0\"} 1\nvllm:cache_config_info{block_size=\"32\",engine=\"1\"} 1\n", queries, Reading{},
		},
		{"hits of another counter", "sglang:prefill_effective_tokens_total{mode=\"input\"} 4\nsglang:cached_tokens_total 9\n", hits, Reading{}},
		{"ranks that share work", "sglang:num_running_reqs{tp_rank=\"0\"} 4\nsglang:num_running_reqs{tp_rank=\"1\"} 4\n", running, known(4)},
		{"priorities without a total", "sglang:num_queue_reqs{priority=\"1\"} 4\nsglang:num_queue_reqs{priority=\"2\"} 3\n", waiting, known(7)},
		{"priorities with a total", "sglang:num_queue_reqs{priority=\"1\"} 4\nsglang:num_queue_reqs{priority=\"\"} 7\n", waiting, known(7)},
		{"line too long", "vllm:num_requests_running{a=\"" + strings.Repeat("x", maxLine) + "\"} 1\nvllm:num_requests_waiting 1\n", running, Reading{}},
		{"after a line too long", "# HELP x " + strings.Repeat("x", 3*maxLine) + "\nvllm:num_requests_running 1\n", running, known(1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l, err := parseText(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if got := tc.get(l); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want       error
	}{
		{"nothing", "", ErrNotAnEngine},
		{"a page", "<!DOCTYPE html>\n<html><body>vllm:num_requests_running 3</body></html>\n", ErrNotAnEngine},
		{"another exporter", "# TYPE up gauge\nup 1\nprocess_start_time_seconds 1.7e9\n", ErrNotAnEngine},
		{"only twins", "vllm:prompt_tokens_created 1.7e9\n", ErrNotAnEngine},
		{"a router", "vllm_router:num_requests_running 1\nray_vllm:num_requests_running 1\n", ErrNotAnEngine},
		{"two makes", "vllm:num_requests_running 1\nsglang:num_running_reqs 1\n", ErrNotAnEngine},
		{"a line without end", "up 1\nvllm:num_req", ErrNotAnEngine},
		{"too large", "vllm:num_requests_running 1\n" + strings.Repeat("x 1\n", DefaultMaxBytes/4), ErrTooLarge},
		{"too large in one line", strings.Repeat("x", DefaultMaxBytes+1), ErrTooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			l, err := parseText(tc.text)
			if !errors.Is(err, tc.want) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			if diff := cmp.Diff(Load{}, l); diff != "" {
				t.Errorf("a load comes with the error:\n%s", diff)
			}
		})
	}
	broken := errors.New("broken")
	if _, err := Parse(io.MultiReader(strings.NewReader("vllm:num_requests_running 1\n"), iotest.ErrReader(broken)), noon); !errors.Is(err, broken) {
		t.Errorf("error %v, want the reader's", err)
	}
	if _, err := Parse(io.MultiReader(strings.NewReader("up 1\nvllm:num_req"), iotest.ErrReader(io.ErrUnexpectedEOF)), noon); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut before the first metric: %v", err)
	}
	exact := "vllm:num_requests_running 1\n"
	if _, _, err := parse(strings.NewReader(exact), int64(len(exact)), noon); err != nil {
		t.Errorf("a text of exactly the bound: %v", err)
	}
}

// TestParseCut cuts the texts at every byte: what is there is never another number than in the whole text.
func TestParseCut(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"vllm-0.2x.txt", "sglang-0.5.txt"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := read(t, name)
			e := engines[0]
			if strings.HasPrefix(name, "sglang") {
				e = engines[1]
			}
			// Readings seen in cut texts; one may come from a lesser source while the better one has not come.
			seen := map[int][]Reading{}
			for n := 1; n < len(text); n += 11 {
				l, err := Parse(io.MultiReader(strings.NewReader(text[:n]), iotest.ErrReader(io.ErrUnexpectedEOF)), noon)
				if err != nil {
					if !errors.Is(err, io.ErrUnexpectedEOF) {
						t.Fatalf("cut at %d: %v", n, err)
					}
					continue
				}
				if !l.Truncated {
					t.Fatalf("cut at %d: not marked", n)
				}
				for i, s := range e.series {
					got := *s.into(&l)
					if !got.Known {
						continue
					}
					if !containsReading(seen[i], got) {
						seen[i] = append(seen[i], got)
					}
				}
			}
			whole, err := parseText(text)
			if err != nil {
				t.Fatal(err)
			}
			allowed := map[string][]Reading{
				"vllm:num_requests_waiting_by_reason":         {known(8)},                                   // all reasons
				"vllm:request_prefill_kv_computed_tokens_sum": {known(59000), known(98500 - 30000 - 10000)}, // by source, by difference
			}
			for i, s := range e.series {
				first := s.sources[0].name
				want := append([]Reading{*s.into(&whole)}, allowed[first]...)
				for _, got := range seen[i] {
					if !containsReading(want, got) {
						t.Errorf("%s: a cut text gives %v, want one of %v", first, got, want)
					}
				}
			}
		})
	}
}

func containsReading(list []Reading, r Reading) bool {
	for _, have := range list {
		if have == r {
			return true
		}
	}
	return false
}

func FuzzParse(f *testing.F) {
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(names) == 0 {
		f.Fatal("no texts", err)
	}
	for _, name := range names {
		// Every ninth line: whole texts keep the fuzzer busy making them smaller.
		var few strings.Builder
		for i, line := range strings.SplitAfter(read(f, filepath.Base(name)), "\n") {
			if i%9 == 4 {
				few.WriteString(line)
			}
		}
		f.Add(few.String()[:min(few.Len(), 1000)])
	}
	f.Add("sglang:num_queue_reqs+0\n")
	f.Add("vllm:num_requests_running{a=\"\\\\\\n\\\"\",} 1 2\n")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := parseText(text)
		if err != nil {
			return
		}
		for _, e := range engines {
			for _, s := range e.series {
				r := *s.into(&l)
				if math.IsNaN(r.Value) || math.IsInf(r.Value, 0) || r.Value < 0 || !r.Known && r.Value != 0 {
					t.Errorf("%s: %+v", s.sources[0].name, r)
				}
			}
		}
		if l.KVUsage.Value > 1 || l.Engine == "" || l.Ranks < 0 || (l.Ranks > 0) != l.Running.Known {
			t.Errorf("load %+v", l)
		}
		// The same text gives the same load, bit by bit.
		again, err := parseText(text)
		if diff := cmp.Diff(l, again); diff != "" || err != nil {
			t.Errorf("second reading: %v\n%s", err, diff)
		}
		if !l.Truncated {
			againstExpfmt(t, text)
		}
	})
}

// The table of the texts names each of them, and nothing else: a text without a word on where it comes from is none.
func TestTextsAreLabelled(t *testing.T) {
	t.Parallel()
	readme := read(t, "README.md")
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(names) == 0 {
		t.Fatal("no texts", err)
	}
	for _, name := range names {
		if !strings.Contains(readme, "| `"+filepath.Base(name)+"` |") {
			t.Errorf("testdata/README.md says nothing of %s", name)
		}
	}
	if rows := strings.Count(readme, ".txt` |"); rows != len(names) {
		t.Errorf("testdata/README.md has %d rows for %d texts", rows, len(names))
	}
}
