package refengine

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/prefill"
	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// An engine that fails, at once or on the way, with an error or by silence: the front ends and says so, the fetch brings the rest once
// the daemon has waited for the front, and the session is whole.
func TestStockEngineFails(t *testing.T) {
	const pace = 500
	refuse := func(w http.ResponseWriter) bool {
		http.Error(w, `{"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}`, 500)
		return true
	}
	for name, c := range map[string]struct {
		before  func(w http.ResponseWriter, r *http.Request, blocks int) bool
		timeout time.Duration // of requests
		status  int
		is      error
	}{
		"dead": {before: func(w http.ResponseWriter, _ *http.Request, _ int) bool { return refuse(w) }, status: 500},
		"dies on the way": {before: func(w http.ResponseWriter, _ *http.Request, blocks int) bool {
			return blocks > 10 && refuse(w)
		}, status: 500},
		"drops the connection": {before: func(_ http.ResponseWriter, _ *http.Request, blocks int) bool {
			if blocks > 10 {
				panic(http.ErrAbortHandler)
			}
			return false
		}},
		"hangs": {before: func(_ http.ResponseWriter, r *http.Request, blocks int) bool {
			if blocks > 10 {
				<-r.Context().Done() // it is let go
				return true
			}
			return false
		}, timeout: 500 * time.Millisecond, is: context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, s, tokens := pacedStock(t, pace, 1000)
				s.before = c.before
				m := p.moveStock(t, s, "s", tokens, func(cfg *prefill.Config) { cfg.RequestTimeout = c.timeout })
				fetch := float64(len(tokens)/16*p.from.cfg.Model.blockBytes()) * 8 / (0.95 * pacedRate)
				t.Logf("fetch alone %.3f s, took %v; %+v, %v", fetch, m.took, m.report, m.err)
				e, ok := errors.AsType[*prefill.EngineError](m.err)
				if !ok || m.report.End != prefill.EndEngine || e.Status != c.status || c.is != nil && !errors.Is(m.err, c.is) {
					t.Errorf("the front ended as %q: %v", m.report.End, m.err)
				}
				const patience, roundTrips = 3.0, 0.5 // the daemon's, before it takes what a front has left
				if m.took.Seconds() > 1.15*fetch+patience+roundTrips {
					t.Errorf("took %v, fetching alone takes %.3f s", m.took, fetch)
				}
				if m.ended.GetState() != kvferryv1.MigrationState_MIGRATION_STATE_COMMITTED || m.res.CachedTokens != len(tokens)/16*16 || m.res.DamagedPages != 0 {
					t.Errorf("%v, %d tokens cached, %d damaged pages", m.ended, m.res.CachedTokens, m.res.DamagedPages)
				}
			})
		})
	}
}

// A link that dies on the way: the front goes on over what does not land, and the whole takes little longer than prefilling everything.
func TestStockLinkDies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pace = 500
		p, s, tokens := pacedStock(t, pace, 1000)
		s.before = func(_ http.ResponseWriter, _ *http.Request, blocks int) bool {
			if blocks > 20 {
				p.bed.Cut()
			}
			return false
		}
		m := p.moveStock(t, s, "s", tokens, nil)
		alone := float64(len(tokens)) / pace
		t.Logf("prefill alone %.3f s, the front was done after %v; requests of %v; %+v, %v\n%v", alone, m.front, s.asked, m.report, m.err, m.ended)
		if m.err != nil || m.front.Seconds() > 1.05*alone+0.2 {
			t.Errorf("the front was done after %v; %v", m.front, m.err)
		}
		if n := int64(len(tokens) / 16); m.ended.GetBlocksUsable() != n || m.ended.GetBlocksMoved() == 0 || m.res.CachedTokens != int(n)*16 || m.res.DamagedPages != 0 {
			t.Errorf("%d tokens were cached, %d damaged pages; %v", m.res.CachedTokens, m.res.DamagedPages, m.ended)
		}
	})
}

// A caller that gives up: the request in flight is cancelled, at the engine too, and the report says what was done.
func TestStockCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s, tokens := pacedStock(t, 500, 1000)
		stream, err := p.bed.Destination.Move.Migrate(t.Context(), &kvferryv1.MigrateRequest{
			RequestId: "s", Session: &kvferryv1.SessionRef{SessionId: "s"}, Mode: kvferryv1.Mode_MODE_HYBRID,
		})
		if err != nil {
			t.Fatal(err)
		}
		first, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		gone := make(chan time.Time, 1)
		s.before = func(_ http.ResponseWriter, r *http.Request, blocks int) bool {
			if blocks < 10 {
				return false
			}
			<-r.Context().Done()
			gone <- time.Now()
			return true
		}
		cause := errors.New("the user left")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(2*time.Second, func() { cancel(cause) })
		rep, err := s.run(ctx, first.GetMigrationId(), tokens, nil)
		n := len(s.asked)
		if !errors.Is(err, cause) || rep.End != prefill.EndCancelled || n < 2 || rep.Requests != n-1 || rep.ComputedBlocks != s.asked[n-2] || rep.GrantedBlocks != s.asked[n-1] {
			t.Errorf("requests of %v blocks, %+v, %v", s.asked, rep, err)
		}
		if late := time.Since(<-gone); late != 0 {
			t.Errorf("the engine was let go %v later", late)
		}
		if _, err := p.bed.Destination.Move.CancelMigration(t.Context(), &kvferryv1.CancelMigrationRequest{MigrationId: first.GetMigrationId()}); err != nil {
			t.Error(err)
		}
		for err == nil || first != nil { // the stream ends
			if first, err = stream.Recv(); err != nil {
				break
			}
		}
	})
}
