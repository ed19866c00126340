package refengine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/bench/bed"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/prefill"
	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// stock is an engine as a proxy sees it: a completions server, and the daemon's migrations, both watched.
type stock struct {
	t       *testing.T
	engine  *Engine
	daemon  kvferryv1.MigrationServiceClient
	url     string
	client  *http.Client
	handler http.Handler
	// before runs before a completion of so many blocks; true: it has answered.
	before func(w http.ResponseWriter, r *http.Request, blocks int) bool

	mu      sync.Mutex
	granted int   // blocks before it, by the answers so far
	asked   []int // blocks of each completion
	loaded  []int // blocks that a completion found in the daemon: granted, and landed after all
}

// serveStock serves an engine over a pipe in this process.
func serveStock(t *testing.T, e *Engine, d kvferryv1.MigrationServiceClient) *stock {
	s := &stock{t: t, engine: e, daemon: d, url: "http://engine", handler: Handler(e)}
	pipe := pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	srv := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(pipe) }()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return pipe.dial(ctx) }}
	s.client = &http.Client{Transport: tr}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return s
}

// pipeListener is a listener in this process. Read deadlines of net.Pipe hold from one request to the next, which a server needs.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l pipeListener) dial(ctx context.Context) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipeListener) Close() error { close(l.closed); return nil } // once: the server sees to that

func (l pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "engine", Net: "unix"} }

func (s *stock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/v1/completions" {
		body, err := io.ReadAll(r.Body)
		var q struct {
			Prompt    []int
			MaxTokens int               `json:"max_tokens"`
			Params    map[string]string `json:"kv_transfer_params"`
		}
		if err = errors.Join(err, json.Unmarshal(body, &q)); err != nil || q.MaxTokens != 1 || q.Params["kvferry_migration_id"] == "" || len(q.Prompt)%16 != 0 {
			s.t.Errorf("completion %.200s: %v", body, err)
		}
		blocks := len(q.Prompt) / 16
		s.mu.Lock()
		if blocks > s.granted {
			s.t.Errorf("%d blocks are to be prefilled, %d are granted", blocks, s.granted)
		}
		s.asked = append(s.asked, blocks)
		s.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		if s.before != nil && s.before(w, r, blocks) {
			return
		}
		s.complete(w, r)
		return
	}
	s.handler.ServeHTTP(w, r)
}

// complete answers as the handler does, and notes what the completion loaded.
func (s *stock) complete(w http.ResponseWriter, r *http.Request) {
	req, err := decodeCompletion(r.Body, s.engine.cfg.Names, s.engine.cfg.Model)
	if err != nil {
		s.t.Error(err)
		return
	}
	res, err := s.engine.Generate(r.Context(), req)
	if err != nil {
		replyAPIError(w, errorCode(err), err)
		return
	}
	s.mu.Lock()
	s.loaded = append(s.loaded, res.LoadedBlocks...)
	s.mu.Unlock()
	replyCompletion(s.engine, w, req, res)
}

// claims is the daemon's client, and notes what it grants.
type claims struct {
	kvferryv1.MigrationServiceClient
	s *stock
}

func (c claims) ClaimPrefill(ctx context.Context, q *kvferryv1.ClaimPrefillRequest, opts ...grpc.CallOption) (*kvferryv1.ClaimPrefillResponse, error) {
	got, err := c.MigrationServiceClient.ClaimPrefill(ctx, q, opts...)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.granted = max(c.s.granted, int(got.GetGrantedUntil()))
	return got, err
}

// run has a front work for a migration.
func (s *stock) run(ctx context.Context, id string, tokens []int, edit func(*prefill.Config)) (prefill.Report, error) {
	cfg := prefill.Config{Migrations: claims{s.daemon, s}, MigrationID: id, URL: s.url, Client: s.client, Tokens: tokens, BlockTokens: 16}
	if edit != nil {
		edit(&cfg)
	}
	return prefill.Run(ctx, cfg)
}

// moved is a migration beside a front, and the real request after both.
type moved struct {
	report prefill.Report
	err    error // of the front
	front  time.Duration
	res    *Result
	ended  *kvferryv1.MigrationReport
	took   time.Duration // to the end of both
}

// moveStock migrates a session in mode hybrid with a front by prefill-only requests, then has the engine continue.
func (p *pair) moveStock(t *testing.T, s *stock, session string, tokens []int, edit func(*prefill.Config)) moved {
	t.Helper()
	began := time.Now()
	stream, err := p.bed.Destination.Move.Migrate(t.Context(), &kvferryv1.MigrateRequest{
		RequestId: session, Session: &kvferryv1.SessionRef{SessionId: session}, SourceHint: bed.SourceID, Mode: kvferryv1.Mode_MODE_HYBRID, Deadline: durationpb.New(5 * time.Minute),
	})
	if err != nil {
		t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var m moved
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		m.report, m.err = s.run(t.Context(), first.GetMigrationId(), tokens, edit)
		m.front = time.Since(began)
	}()
	for m.ended == nil {
		u, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		m.ended = u.GetReport()
	}
	<-ran
	m.took = time.Since(began)
	m.res, err = p.to.Generate(t.Context(), Request{Session: session, Tokens: tokens, MaxNew: 6, UseCache: true, Commit: true})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const pacedRate = 1e7 // bits a second

// pacedStock is two daemons over a link of 10 Mbit/s and 40 ms, a destination whose engine prefills at a pace, and a session of so
// many tokens; fetching 3,000 takes 5.2 s.
func pacedStock(t *testing.T, pace float64, prompt int) (*pair, *stock, []int) {
	off := false
	p := openPair(t, wan.Model{RTT: 40 * time.Millisecond, Rate: pacedRate, Seed: 1}, func(c *Config) {
		c.Pace = &Pace{PrefillTokensPerSecond: pace, DecodeTokensPerSecond: 1e6}
	}, func(_ string, c *daemon.Config) {
		c.GPU.Enabled = &off
		c.Link.Codec = "off" // raw bytes are what the ideal time counts
	})
	warm := p.turn(t, "warm", prompt/2)
	p.migrate(t, "warm", warm, kvferryv1.Mode_MODE_FETCH)
	return p, serveStock(t, p.to, p.bed.Destination.Move), p.turn(t, "s", prompt)
}

// A front by prefill-only requests takes the time of both ends' rates together, whatever a request costs beyond its tokens as long as that
// is little beside the whole; every page is what its key says, and no block is computed that was not granted.
func TestStockPaced(t *testing.T) {
	for name, c := range map[string]struct {
		pace     float64
		overhead time.Duration
	}{
		"even": {500, 0}, "fast": {2000, 0}, "slow": {125, 0},
		"fast, costly requests": {2000, 20 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, s, tokens := pacedStock(t, c.pace, 3000)
				s.before = func(http.ResponseWriter, *http.Request, int) bool {
					time.Sleep(c.overhead)
					return false
				}
				m := p.moveStock(t, s, "s", tokens, nil)
				blocks := float64(len(tokens) / 16)
				tc, tf := 16*blocks/c.pace, blocks*float64(p.from.cfg.Model.blockBytes())*8/(0.95*pacedRate)
				if c.overhead > 0 {
					tc *= 1.1 // the overhead that a front allows itself
				}
				ideal := tc * tf / (tc + tf)
				t.Logf("prefill alone %.3f s, fetch alone %.3f s, both ideally %.3f s: %.3f s (%.3f of it); requests of %v blocks; %d bytes twice\n%+v, %v",
					tc, tf, ideal, m.took.Seconds(), m.took.Seconds()/ideal, s.asked, m.ended.GetDuplicateBytes(), m.report, m.err)
				if m.err != nil || m.took.Seconds() > 1.15*ideal {
					t.Errorf("%.3f s, want at most %.3f; %v", m.took.Seconds(), 1.15*ideal, m.err)
				}
				if m.ended.GetState() != kvferryv1.MigrationState_MIGRATION_STATE_COMMITTED || m.res.DamagedPages != 0 || len(m.res.Warnings) > 0 {
					t.Errorf("%v, %d damaged pages, %v", m.ended, m.res.DamagedPages, m.res.Warnings)
				}
				if m.res.CachedTokens != len(tokens)/16*16 || m.res.LocalTokens != 16*m.report.ComputedBlocks || m.report.Tokens != 16*m.report.ComputedBlocks {
					t.Errorf("the real request found %d tokens, %d of them in the engine, of %d blocks", m.res.CachedTokens, m.res.LocalTokens, m.report.ComputedBlocks)
				}
				if got := m.report.OverheadSeconds / float64(m.report.Requests); got < 0.9*c.overhead.Seconds()-1e-4 || got > 1.1*c.overhead.Seconds()+1e-3 {
					t.Errorf("%.4f s of overhead a request, want %v", got, c.overhead)
				}
			})
		})
	}
}

// A real transformer behind a stock server, in real time: it continues as one whose front was computed here and whose tail is the
// source's.
func TestStockReal(t *testing.T) {
	p := openPair(t, wan.Model{RTT: 20 * time.Millisecond, Rate: 4e7, Seed: 1}, func(*Config) {}, nil)
	tokens := p.turn(t, "s", 1500)
	s := serveStock(t, p.to, p.bed.Destination.Move)
	m := p.moveStock(t, s, "s", tokens, nil)
	if m.err != nil {
		t.Fatal(m.err)
	}
	t.Logf("%d blocks loaded, %d computed by requests of %v, of %d in %v; %+v", len(m.res.LoadedBlocks), m.report.ComputedBlocks, s.asked, len(tokens)/16, m.took, m.report)
	if n := len(m.res.LoadedBlocks); n == 0 || n == len(tokens)/16 {
		t.Fatalf("%d of %d blocks loaded: both ends should have worked", n, len(tokens)/16)
	}
	loaded := slices.Concat(s.loaded, m.res.LoadedBlocks)
	least := 16 * (m.report.ComputedBlocks - len(s.loaded))
	if n := m.report.Tokens; n < least || n > least+m.report.Requests { // a request that finds everything computes its last token again
		t.Errorf("%d tokens computed, want %d: %v of the blocks granted were loaded", n, least, s.loaded)
	}
	mixed := p.continued(t, tokens, func(block int) bool { return slices.Contains(loaded, block) })
	if diff := cmp.Diff(mixed, m.res.Steps); diff != "" {
		t.Errorf("steps (-oracle +engine):\n%s", diff)
	}
	for name, loaded := range map[string]bool{"the source's": true, "computed": false} {
		if cmp.Equal(p.continued(t, tokens, func(int) bool { return loaded }), m.res.Steps) {
			t.Errorf("a cache that is all %s continues in the same way", name)
		}
	}
}
