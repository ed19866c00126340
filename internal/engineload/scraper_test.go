package engineload

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scripted answers requests without a network, so that it can be used under virtual time.
type scripted func(*http.Request) (*http.Response, error)

func (f scripted) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func answer(text string) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: -1, Body: io.NopCloser(strings.NewReader(text))}
}

func newScraper(t *testing.T, cfg Config) *Scraper {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = "http://engine:8000"
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		cfg  Config
		want string // the field; empty: accepted
	}{
		{"plain", Config{URL: "http://127.0.0.1:8000"}, ""},
		{"https and path", Config{URL: "https://[::1]:8000/custom"}, ""},
		{"no address", Config{}, "URL"},
		{"no scheme", Config{URL: "127.0.0.1:8000"}, "URL"},
		{"other scheme", Config{URL: "file:///etc/passwd"}, "URL"},
		{"no host", Config{URL: "http:///metrics"}, "URL"},
		{"fragment", Config{URL: "http://a/#b"}, "URL"},
		{"negative size", Config{URL: "http://a", MaxBytes: -1}, "MaxBytes"},
		{"stale before the next", Config{URL: "http://a", MaxAge: time.Second}, "MaxAge"},
		{"off is allowed", Config{URL: "http://a", Interval: -1, Timeout: -1, MaxAge: -1}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := New(tc.cfg)
			fault, ok := errors.AsType[*ConfigError](err)
			if (tc.want == "") != (err == nil) || ok && fault.Field != tc.want || err != nil && !ok {
				t.Errorf("error %v, want one of field %q", err, tc.want)
			}
		})
	}
	_, err := New(Config{URL: "ftp://user:secret@a", MaxBytes: -1})
	if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "MaxBytes") {
		t.Errorf("error %v, want both faults and no password", err)
	}
	d := Config{}.withDefaults()
	if d.Interval != 2*time.Second || d.Timeout != 2*time.Second || d.MaxAge != 8*time.Second || d.MaxBytes != 8<<20 {
		t.Errorf("defaults %+v", d)
	}
}

// TestScrapeOverHTTP meets real servers that answer, and that do not.
func TestScrapeOverHTTP(t *testing.T) {
	t.Parallel()
	text := read(t, "vllm-0.2x.txt")
	zipped := func(text string) []byte {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(text))
		_ = z.Close()
		return b.Bytes()
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
	t.Cleanup(other.Close)
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, text, code) }
	}
	for _, tc := range []struct {
		name    string
		handler http.HandlerFunc
		cfg     Config
		want    error
		says    string
		check   func(*testing.T, Load)
	}{
		{name: "plain", handler: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/metrics" || r.Method != http.MethodGet || !strings.HasPrefix(r.Header.Get("Accept"), "text/plain") {
				w.WriteHeader(http.StatusTeapot)
			}
			_, _ = io.WriteString(w, text)
		}},
		{name: "gzip as asked", handler: func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Accept-Encoding") != "gzip" {
				w.WriteHeader(http.StatusTeapot)
			}
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zipped(text))
		}},
		{name: "gzip unasked", cfg: Config{Client: &http.Client{Transport: &http.Transport{DisableCompression: true}}}, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zipped(text))
		}},
		{name: "gzip cut", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := zipped(text)
			_, _ = w.Write(z[:len(z)*3/4])
		}, check: truncated},
		{name: "other encoding", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "br")
			_, _ = io.WriteString(w, text)
		}, want: ErrUnreachable, says: "br"},
		{name: "bomb", cfg: Config{MaxBytes: 1 << 20}, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(zipped(strings.Repeat("# 0\n", 1<<19)))
		}, want: ErrTooLarge, says: "1048576"},
		{name: "too large, said", cfg: Config{MaxBytes: 100}, handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			_, _ = io.WriteString(w, text)
		}, want: ErrTooLarge, says: fmt.Sprint(len(text))},
		{name: "endless", cfg: Config{MaxBytes: 1 << 20}, handler: func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, "x 1\n"); err != nil {
					return
				}
			}
		}, want: ErrTooLarge},
		{name: "hangs before the header", cfg: Config{Timeout: 50 * time.Millisecond}, handler: func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
		}, want: ErrUnreachable, says: "50ms"},
		{name: "hangs in the body", cfg: Config{Timeout: 50 * time.Millisecond}, handler: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, text)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, want: ErrUnreachable, says: "50ms"},
		{name: "cut", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(text)))
			_, _ = io.WriteString(w, text[:2*len(text)/3])
		}, check: truncated},
		{name: "cut, chunked", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, text[:2*len(text)/3])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, check: truncated},
		{name: "cut at once", handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "# HELP")
		}, want: ErrUnreachable, says: "unexpected EOF"},
		{name: "hangs up", handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, want: ErrUnreachable},
		{name: "500", handler: status(500), want: ErrUnreachable, says: "status 500"},
		{name: "503", handler: status(503), want: ErrUnreachable, says: "status 503"},
		{name: "204", handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, want: ErrUnreachable, says: "status 204"},
		{name: "401", handler: status(401), want: ErrUnreachable, says: "credentials"},
		{name: "404", handler: status(404), want: ErrNotAnEngine, says: "--enable-metrics"},
		{name: "a page", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<!DOCTYPE html><html><body>vllm:num_requests_running 3</body></html>")
		}, want: ErrNotAnEngine, says: "text/html"},
		{name: "a page of lines", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "<!DOCTYPE html>\n<html>\n</html>\n")
		}, want: ErrNotAnEngine, says: "text/html"},
		{name: "a collector", handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "vllm:num_requests_running 1\nsglang:num_running_reqs 1\n")
		}, want: ErrNotAnEngine, says: "one engine, not of a collector"},
		{name: "same host redirect", handler: func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/metrics/" {
				http.Redirect(w, r, "/metrics/", http.StatusTemporaryRedirect) // as Starlette mounts do
				return
			}
			_, _ = io.WriteString(w, text)
		}},
		{name: "other host redirect", handler: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusFound)
		}, want: ErrUnreachable, says: "another host"},
		{name: "redirect loop", handler: func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/metrics", http.StatusFound)
		}, want: ErrUnreachable, says: "redirects"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			srv := httptest.NewServer(tc.handler)
			t.Cleanup(srv.Close)
			tc.cfg.URL = srv.URL
			if tc.cfg.Timeout == 0 {
				tc.cfg.Timeout = time.Minute // what a busy machine takes to read a mebibyte is not what is held here
			}
			s := newScraper(t, tc.cfg)
			l, err := s.Scrape(t.Context())
			if tc.want == nil {
				if err != nil || l.Engine != VLLM || l.Running != known(8) {
					t.Fatalf("load %v, error %v", l, err)
				}
				if tc.check != nil {
					tc.check(t, l)
				} else if l.Truncated || l.Partial != nil {
					t.Errorf("load %+v", l)
				}
				return
			}
			fault, ok := errors.AsType[*ScrapeError](err)
			if !ok || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), srv.URL) {
				t.Fatalf("error %v, want %v that says %q", err, tc.want, tc.says)
			}
			for _, kind := range []error{ErrUnreachable, ErrNotAnEngine, ErrTooLarge} {
				if errors.Is(err, kind) != (kind == tc.want) {
					t.Errorf("error %v is of kind %v too", err, kind)
				}
			}
			if fault.Fix == "" {
				t.Errorf("error %v has no fix", err)
			}
			if _, kept := s.Load(); !errors.Is(kept, tc.want) {
				t.Errorf("kept error %v, want %v", kept, tc.want)
			}
		})
	}
}

func truncated(t *testing.T, l Load) {
	t.Helper()
	if !l.Truncated || len(l.Partial) == 0 {
		t.Errorf("load %+v, want it marked as cut", l)
	}
}

func TestScrapeNobodyListens(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	s := newScraper(t, Config{URL: strings.Replace(srv.URL, "http://", "http://user:secret@", 1)})
	_, err := s.Scrape(t.Context())
	if !errors.Is(err, ErrUnreachable) || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v", err)
	}
}

func TestScrapeSendsCredentials(t *testing.T) {
	t.Parallel()
	s := newScraper(t, Config{URL: "http://user:secret@engine", Client: &http.Client{Transport: scripted(func(r *http.Request) (*http.Response, error) {
		if user, password, ok := r.BasicAuth(); !ok || user != "user" || password != "secret" {
			return nil, errors.New("no credentials")
		}
		return answer("vllm:num_requests_running 1\n"), nil
	})}})
	if _, err := s.Scrape(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStale runs a scraper under virtual time through an engine's death and return.
func TestStale(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running, requests atomic.Int64
		var dead atomic.Bool
		s := newScraper(t, Config{Client: &http.Client{Transport: scripted(func(*http.Request) (*http.Response, error) {
			requests.Add(1)
			if dead.Load() {
				return nil, errors.New("connection refused")
			}
			return answer(fmt.Sprintf("vllm:num_requests_running %d\n", running.Load())), nil
		})}})
		if _, err := s.Load(); !errors.Is(err, ErrNoScrape) {
			t.Errorf("before the first scrape: %v", err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		var wg sync.WaitGroup
		ended := make(chan error, 1)
		wg.Go(func() { ended <- s.Run(ctx) })
		step := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		running.Store(1)
		begin := time.Now()
		step(0)
		if l, err := s.Load(); err != nil || l.Running != known(1) || !l.ScrapedAt.Equal(begin) {
			t.Errorf("at once: %+v, %v", l, err)
		}
		running.Store(2)
		step(2*time.Second - 1)
		if l, _ := s.Load(); l.Running != known(1) {
			t.Errorf("before the second scrape: %v", l)
		}
		step(1)
		if l, _ := s.Load(); l.Running != known(2) {
			t.Errorf("after the second scrape: %v", l)
		}
		dead.Store(true)
		step(8 * time.Second) // exactly MaxAge
		if l, err := s.Load(); err != nil || l.Running != known(2) {
			t.Errorf("as old as allowed: %v, %v", l, err)
		}
		step(1)
		l, err := s.Load()
		stale, ok := errors.AsType[*StaleError](err)
		if !ok || stale.Age != 8*time.Second+1 || stale.MaxAge != 8*time.Second {
			t.Fatalf("too old: %v", err)
		}
		if !errors.Is(err, ErrStale) || !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("stale error %v, want the cause in it", err)
		}
		if diff := cmp.Diff(Load{}, l); diff != "" {
			t.Errorf("a stale load is handed out:\n%s", diff)
		}
		dead.Store(false)
		step(2 * time.Second)
		if _, err := s.Load(); err != nil {
			t.Errorf("after the return: %v", err)
		}
		// At 0, 2, ... 12 s.
		if got := requests.Load(); got != 7 {
			t.Errorf("%d requests in 12 s, want 7", got)
		}
		stop := errors.New("stop")
		cancel(stop)
		wg.Wait()
		if err := <-ended; !errors.Is(err, stop) {
			t.Errorf("run ended with %v, want the cause", err)
		}
	})
}

// TestTimeout holds the bound on a scrape to the nanosecond, and that a caller's end is not taken for the engine's.
func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScraper(t, Config{Timeout: 3 * time.Second, Client: &http.Client{Transport: scripted(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		})}})
		begin := time.Now()
		if _, err := s.Scrape(t.Context()); !errors.Is(err, ErrUnreachable) || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		gone := errors.New("caller gone")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, gone)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = s.Scrape(t.Context()) })
		synctest.Wait()
		if _, err := s.Scrape(ctx); !errors.Is(err, gone) || errors.Is(err, ErrUnreachable) {
			t.Errorf("while another scrapes: %v", err)
		}
		wg.Wait()
		ctx2, cancel2 := context.WithTimeoutCause(t.Context(), time.Second, gone)
		defer cancel2()
		if _, err := s.Scrape(ctx2); !errors.Is(err, gone) || errors.Is(err, ErrUnreachable) {
			t.Errorf("in the request: %v", err)
		}
	})
}

func TestRunOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newScraper(t, Config{Interval: -1, Client: &http.Client{Transport: scripted(func(*http.Request) (*http.Response, error) {
			t.Error("a request")
			return nil, io.EOF
		})}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := s.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	})
}

// TestPrefillSpeed follows counters by hand: work, skew, rest, restarts, ranks that come.
func TestPrefillSpeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var text string
		s := newScraper(t, Config{Client: &http.Client{Transport: scripted(func(*http.Request) (*http.Response, error) { return answer(text), nil })}})
		start := time.Now()
		vllm := func(seconds, tokens float64) string {
			return fmt.Sprintf("vllm:num_requests_running 1\nvllm:request_prefill_time_seconds_sum %g\nvllm:request_prefill_kv_computed_tokens_sum %g\n", seconds, tokens)
		}
		for _, step := range []struct {
			name     string
			text     string
			wait     time.Duration
			want     Reading
			restarts int
		}{
			{"one scrape tells nothing", vllm(100, 50000), 0, Reading{}, 0},
			{"too little work", vllm(101, 50500), time.Second, Reading{}, 0},
			{"it adds up", vllm(102, 52000), time.Second, known(2.0 / 2000), 0},
			{"rest keeps it", vllm(102, 52000), time.Minute, known(2.0 / 2000), 0},
			{"tokens before seconds", vllm(102, 54000), time.Second, known(2.0 / 2000), 0},
			{"then both", vllm(110, 56000), time.Second, known(8.0 / 4000), 0},
			{"a scrape without", "vllm:num_requests_running 1\n", time.Second, known(8.0 / 4000), 0},
			{"a restart forgets", vllm(1, 60000), time.Second, Reading{}, 1},
			{"and starts again", vllm(2, 61500), time.Second, known(1.0 / 1500), 1},
			{"another start of the process", vllm(3, 63000) + "process_start_time_seconds 5\n", time.Second, known(1.0 / 1500), 1},
			{"seen by its start", vllm(9, 69000) + "process_start_time_seconds 6\n", time.Second, Reading{}, 2},
			{"work again", vllm(10, 71000), time.Second, known(1.0 / 2000), 2},
			{"too long a rest", vllm(10, 71000), prefillHold + 1, Reading{}, 2},
			{"a rank with a past", vllm(10, 71000) + "vllm:num_requests_running{engine=\"1\"} 1\nvllm:request_prefill_time_seconds_sum{engine=\"1\"} 500\nvllm:request_prefill_kv_computed_tokens_sum{engine=\"1\"} 9000\n", time.Second, Reading{}, 2},
		} {
			time.Sleep(step.wait)
			text = step.text
			l, err := s.Scrape(t.Context())
			if err != nil {
				t.Fatal(step.name, err)
			}
			if l.Prefill.SecondsPerToken != step.want || l.Restarts != step.restarts {
				t.Errorf("%s: %+v after %d restarts, want %v after %d", step.name, l.Prefill, l.Restarts, step.want, step.restarts)
			}
			if step.name == "it adds up" {
				want := Prefill{SecondsPerToken: step.want, Tokens: 2000, Since: start, Until: start.Add(2 * time.Second)}
				if diff := cmp.Diff(want, l.Prefill); diff != "" {
					t.Errorf("%s (-want +got):\n%s", step.name, diff)
				}
			}
		}
	})
}

// TestConcurrent is for the race detector.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	text := read(t, "sglang-0.5.txt")
	s := newScraper(t, Config{Client: &http.Client{Transport: scripted(func(*http.Request) (*http.Response, error) { return answer(text), nil })}})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if _, err := s.Scrape(t.Context()); err != nil {
					t.Error(err)
				}
				if l, err := s.Load(); err != nil || l.Running != known(16) {
					t.Error(l, err)
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkParse(b *testing.B) {
	text := read(b, "vllm-0.2x.txt")
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseText(text); err != nil {
			b.Fatal(err)
		}
	}
}
