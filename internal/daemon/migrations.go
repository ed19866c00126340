package daemon

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/internal/fault"
	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// sessionKey names a session across tenants.
type sessionKey struct {
	tenant kvstore.Tenant
	id     kvstore.SessionID
}

// migrations is the table of running and remembered migrations.
type migrations struct {
	cfg MigrationConfig
	wg  sync.WaitGroup
	mu  struct {
		sync.Mutex
		byID      map[string]*migration
		byRequest map[string]*migration
		bySession map[sessionKey]*migration // running hand-overs
		order     []*migration              // oldest first
		active    int
		closed    bool
	}
}

func newMigrations(cfg MigrationConfig) *migrations {
	t := &migrations{cfg: cfg}
	t.mu.byID, t.mu.byRequest, t.mu.bySession = map[string]*migration{}, map[string]*migration{}, map[sessionKey]*migration{}
	return t
}

// start runs a new migration, or returns the one with the same request id.
func (t *migrations) start(d *Daemon, q demand) (*migration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.mu.byRequest[q.requestID]; old != nil {
		if old.demand.fingerprint != q.fingerprint {
			f := failf(ReasonRequestMismatch, "use a new request_id, or repeat the request unchanged", "request_id %q was used with other parameters", q.requestID)
			if old.demand.tenant != q.tenant { // who asks may not see it
				return nil, f
			}
			return nil, f.with("migration_id", old.id)
		}
		return old, nil
	}
	if t.mu.closed {
		return nil, failf(ReasonShuttingDown, "ask again when the daemon is back", "the daemon is shutting down")
	}
	key := sessionKey{q.tenant, q.session}
	if old := t.mu.bySession[key]; old != nil && q.session != "" {
		return nil, failf(ReasonAlreadyMigrating, "wait for it, attach with its request_id, or cancel it", "session %q is being migrated here already (migration %s)", string(q.session), old.id).
			with("migration_id", old.id).with("request_id", old.demand.requestID)
	}
	if t.mu.active >= t.cfg.MaxActive {
		return nil, failf(ReasonTooManyMigrations, "try again later, or raise migration.max_active", "%d migrations are running", t.mu.active)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	id := newID()
	m := &migration{d: d, id: id, demand: q, dry: q.shadow, owner: kvstore.Owner("migration/" + id), cancel: cancel, done: make(chan struct{})}
	m.drive.held = map[kvstore.BlockKey]kvstore.LeaseID{}
	m.drive.log = &landedLog{migration: id, tenant: string(q.tenant)}
	m.mu.log = m.drive.log
	m.meeting.kick = make(chan struct{}, 1) // one look is as good as many
	if q.mode == planner.ModeFetch || q.mode == planner.ModeRedirect || len(q.keys) > 0 {
		m.meeting.close(meetingFetch)
	}
	m.mu.changed, m.mu.started = make(chan struct{}), time.Now()
	t.mu.byID[id], t.mu.byRequest[q.requestID] = m, m
	if q.session != "" {
		t.mu.bySession[key] = m
	}
	t.mu.order = append(t.mu.order, m)
	t.mu.active++
	t.wg.Go(func() { m.run(ctx) }) // owner: this table; ends at a terminal state
	return m, nil
}

// ended takes m off the running ones and forgets the oldest ended ones beyond the configured number.
func (t *migrations) ended(m *migration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !fault.Planted(fault.CounterLeaked) || m.state() != stateFailed {
		t.mu.active--
	}
	key := sessionKey{m.demand.tenant, m.demand.session}
	if t.mu.bySession[key] == m {
		delete(t.mu.bySession, key)
	}
	for i := 0; i < len(t.mu.order) && len(t.mu.order)-t.mu.active > t.cfg.Keep; {
		old := t.mu.order[i]
		if !old.state().terminal() {
			i++
			continue
		}
		t.mu.order = append(t.mu.order[:i], t.mu.order[i+1:]...)
		delete(t.mu.byID, old.id)
		delete(t.mu.byRequest, old.demand.requestID)
	}
}

// find returns a migration by either id.
func (t *migrations) find(id, requestID string) (*migration, error) {
	if (id == "") == (requestID == "") {
		return nil, invalid("migration_id, request_id", []string{id, requestID}, "given, exactly one of them")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.mu.byID[id]
	if id == "" {
		m = t.mu.byRequest[requestID]
	}
	if m == nil {
		return nil, noMigration(id + requestID)
	}
	return m, nil
}

func noMigration(id string) error {
	return failf(ReasonMigrationNotFound, "`kvferry migrations list` shows those that are remembered", "no migration %q", id)
}

// list returns migrations, newest first.
func (t *migrations) list(tenant string, activeOnly bool, limit int) []*migration {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []*migration
	for i := len(t.mu.order) - 1; i >= 0 && len(out) < limit; i-- {
		m := t.mu.order[i]
		if tenant != "" && string(m.demand.tenant) != tenant || activeOnly && m.state().terminal() {
			continue
		}
		out = append(out, m)
	}
	return out
}

// migrating reports whether a migration of a session runs here.
func (t *migrations) migrating(tenant kvstore.Tenant, id kvstore.SessionID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.bySession[sessionKey{tenant, id}] != nil
}

func (t *migrations) active() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.active
}

// landings are a tenant's migrations that run at one moment.
type landings []*migration

// landings looks once for a whole call: the table may remember a thousand ended migrations, the call ask for as many blocks.
func (t *migrations) landings(tenant kvstore.Tenant) landings {
	return slices.DeleteFunc(t.list(string(tenant), true, math.MaxInt), func(m *migration) bool { return m.demand.tenant != tenant })
}

// of names the migration that brings a block, if one does, and when its last page is expected.
func (l landings) of(k kvstore.BlockKey) (id string, in *durationpb.Duration) {
	for _, m := range l {
		if m.lands(k) {
			snap, _ := m.snapshot()
			return m.id, expectedIn(snap.GetProgress())
		}
	}
	return "", nil
}

// expectedIn extrapolates a transfer; nil when nothing has landed yet.
func expectedIn(p *pb.MigrationProgress) *durationpb.Duration {
	if p.GetPagesDone() == 0 || p.GetElapsed() == nil {
		return nil
	}
	left := float64(p.GetPagesTotal()-p.GetPagesDone()) / float64(p.GetPagesDone())
	return durationpb.New(time.Duration(left * float64(p.GetElapsed().AsDuration())))
}

// close ends all migrations and waits for them.
func (t *migrations) close() {
	t.mu.Lock()
	t.mu.closed = true
	running := append([]*migration(nil), t.mu.order...)
	t.mu.Unlock()
	for _, m := range running {
		m.cancel(errShutdown)
	}
	t.wg.Wait()
}
