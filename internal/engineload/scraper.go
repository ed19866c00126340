package engineload

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// accept asks for the text format; exporters that know better ones answer in it too.
const accept = "text/plain;version=0.0.4;q=1,*/*;q=0.1"

// Scraper reads one engine's load and keeps the latest. It is safe for concurrent use.
type Scraper struct {
	cfg    Config
	url    *url.URL
	client *http.Client
	own    bool          // the client is ours
	turn   chan struct{} // capacity 1: one scrape at a time, and the tracker belongs to who holds it
	track  tracker

	mu struct {
		sync.Mutex
		load Load
		good bool  // load is of a scrape
		err  error // of the latest scrape; nil when it was good
		done bool  // a scrape has ended
	}
}

// New returns a scraper that has not scraped and starts no goroutine. Errors are those of [Config.Validate].
func New(cfg Config) (*Scraper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	s := &Scraper{cfg: cfg, turn: make(chan struct{}, 1)}
	s.url, _ = endpoint(cfg.URL) // validated
	s.client, s.own = cfg.client()
	return s, nil
}

// Run scrapes at once and then at every interval, until ctx is done; it returns the context's cause. Failures are kept
// for [Scraper.Load] and do not end it. It is called once.
func (s *Scraper) Run(ctx context.Context) error {
	if s.own {
		defer s.client.CloseIdleConnections()
	}
	if s.cfg.Interval < 0 {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	for {
		_, _ = s.Scrape(ctx) // kept for Load
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Load returns the latest good scrape's load, without waiting. A failure since does not matter until the load is older
// than MaxAge. It returns a [*StaleError], the error of the latest scrape where none was good yet, or [ErrNoScrape].
func (s *Scraper) Load() (Load, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.mu.done:
		return Load{}, ErrNoScrape
	case !s.mu.good:
		return Load{}, s.mu.err
	}
	if age := time.Since(s.mu.load.ScrapedAt); s.cfg.MaxAge > 0 && age > s.cfg.MaxAge {
		return Load{}, &StaleError{Age: age, MaxAge: s.cfg.MaxAge, Err: s.mu.err}
	}
	return s.mu.load, nil
}

// Scrape reads the load once, at this moment, and keeps it for [Scraper.Load]. It waits for a scrape in progress before
// it begins. It returns a [*ScrapeError], or the cause of ctx where that ended it; the latter is not kept.
func (s *Scraper) Scrape(ctx context.Context) (Load, error) {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return Load{}, context.Cause(ctx)
	}
	defer func() { <-s.turn }()
	l, b, err := s.fetch(ctx)
	if err != nil && ctx.Err() != nil {
		return Load{}, context.Cause(ctx)
	}
	if err == nil {
		s.track.observe(&l, b)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.err, s.mu.done = err, true
	if err == nil {
		s.mu.load, s.mu.good = l, true
	}
	return l, err
}

// Close closes idle connections of the scraper's own client. Run does so at its end too. It returns nil.
func (s *Scraper) Close() error {
	if s.own {
		s.client.CloseIdleConnections()
	}
	return nil
}

func (s *Scraper) fetch(ctx context.Context) (Load, basis, error) {
	if s.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, s.cfg.Timeout, fmt.Errorf("no whole answer within %v", s.cfg.Timeout))
		defer cancel()
	}
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url.String(), nil)
	if err != nil {
		return Load{}, basis{}, s.fail(ErrUnreachable, err, "")
	}
	req.Header.Set("Accept", accept)
	req.Header.Set("User-Agent", "kvferry")
	resp, err := s.client.Do(req)
	if err != nil {
		return Load{}, basis{}, s.unreachable(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if err := s.refuse(resp); err != nil {
		return Load{}, basis{}, err
	}
	body, err := decoded(resp)
	if err != nil {
		return Load{}, basis{}, s.unreachable(ctx, err)
	}
	l, b, err := parse(body, s.cfg.MaxBytes, began)
	switch {
	case err == nil:
		return l, b, nil
	case errors.Is(err, ErrTooLarge):
		err = s.fail(ErrTooLarge, nil, fmt.Sprintf("at most %d bytes are read: check that the address is an engine's /metrics", s.cfg.MaxBytes))
	case errors.Is(err, ErrNotAnEngine):
		cause := fmt.Errorf("no known metric, content type %.80q", resp.Header.Get("Content-Type"))
		if errors.Is(err, errBothMakes) {
			cause = errBothMakes
		}
		err = s.fail(ErrNotAnEngine, cause, "check the address, and that SGLang was started with --enable-metrics")
	default:
		err = s.unreachable(ctx, err)
	}
	return Load{}, basis{}, err
}

// refuse says what is wrong with an answer before its body.
func (s *Scraper) refuse(resp *http.Response) error {
	status := fmt.Errorf("status %d", resp.StatusCode)
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return s.fail(ErrNotAnEngine, status, "check the path, and that SGLang was started with --enable-metrics")
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return s.fail(ErrUnreachable, status, "the endpoint wants credentials: give them in the address or by a client of your own")
	case resp.StatusCode != http.StatusOK:
		return s.fail(ErrUnreachable, status, "look at the engine's log")
	case resp.ContentLength > s.cfg.MaxBytes:
		return s.fail(ErrTooLarge, fmt.Errorf("%d bytes", resp.ContentLength), fmt.Sprintf("at most %d bytes are read: check that the address is an engine's /metrics", s.cfg.MaxBytes))
	}
	return nil
}

// decoded undoes the content encoding, where the transport has not.
func decoded(resp *http.Response) (io.Reader, error) {
	switch encoding := resp.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
		return resp.Body, nil
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(resp.Body)
		if err != nil {
			return nil, fmt.Errorf("read gzip: %w", err)
		}
		return z, nil
	default:
		return nil, fmt.Errorf("content encoding %.40q: want gzip or none", encoding)
	}
}

// unreachable is a scrape that broke; it names our own time limit where that was it.
func (s *Scraper) unreachable(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return s.fail(ErrUnreachable, context.Cause(ctx), "the engine hangs or the network drops the packets; look at the engine's log")
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // the address stands in front already
	}
	fix := "check the address and that the engine runs"
	if errors.Is(err, errRedirected) {
		fix = "give the address that it redirects to"
	}
	return s.fail(ErrUnreachable, err, fix)
}

func (s *Scraper) fail(kind, cause error, fix string) error {
	return &ScrapeError{URL: s.url.Redacted(), Kind: kind, Err: cause, Fix: fix}
}
