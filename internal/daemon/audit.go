package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/transfer"
)

// auditEvent is what an audit line is about. The names are stable.
type auditEvent string

// Events.
const (
	auditStart      auditEvent = "start"       // the daemon, with the configuration that it runs by
	auditLocate     auditEvent = "locate"      // a peer asks who owns a session; refusals only
	auditOffer      auditEvent = "offer"       // a peer asks for a session's blocks
	auditRead       auditEvent = "read"        // a peer begins to read pages; refusals only
	auditHandOver   auditEvent = "hand_over"   // a peer asks for a session
	auditTakeover   auditEvent = "takeover"    // this node takes a session that its owner can't be asked for
	auditYield      auditEvent = "yield"       // a peer says that it owns a session of this node
	auditConfirm    auditEvent = "confirm"     // a peer asks whether a session that it handed over here is known; refusals only
	auditReclaim    auditEvent = "reclaim"     // this node takes back a session that was lost with its new owner
	auditMigrate    auditEvent = "migrate"     // a caller asks for a migration into this node, or acts on one
	auditObserve    auditEvent = "observe"     // a caller reads; refusals only
	auditSocket     auditEvent = "socket"      // a local process calls; refusals only
	auditRegister   auditEvent = "register"    // a local process registers with an engine
	auditUnregister auditEvent = "unregister"  // a local process takes an engine away
	auditInvalidate auditEvent = "invalidate"  // blocks are dropped
	auditCert       auditEvent = "certificate" // certificates are read again
	auditPolicy     auditEvent = "policy"      // the policy file is read again, or offers end by it
)

// auditEvents are all of them.
var auditEvents = []auditEvent{
	auditStart, auditLocate, auditOffer, auditRead, auditHandOver, auditTakeover, auditYield, auditConfirm, auditReclaim, auditMigrate, auditObserve, auditSocket, auditRegister, auditUnregister,
	auditInvalidate, auditCert, auditPolicy,
}

const (
	granted = "granted"
	refused = "refused"
)

// auditor writes a line a grant and refusal: to a file of its own, or into the daemon's log. A line has the attributes
// audit=true, event, decision and what the event has of: peer, region, caller, caller_region, uid, pid, tenant, session_id,
// migration_id, engine_id, bytes, epoch, rule, reason. No key of a block and no page is ever among them.
type auditor struct {
	log     *slog.Logger // the daemon's
	metrics *auditMetrics
	mu      struct {
		sync.Mutex
		path    string
		file    *os.File // nil: none
		handler slog.Handler
		broken  bool // the last line could not be written to the file
		counts  map[auditKey]*auditCount
		closed  bool
	}
}

// auditKey is what lines are counted by, so that one peer's flood hides no other's line.
type auditKey struct {
	event    auditEvent
	decision string
	who      string
}

type auditCount struct {
	since      time.Time
	written    int
	suppressed int
}

const (
	// auditWindow is the time in which at most auditRefusals or auditGrants lines of one event, decision and peer or caller are
	// written; the rest is told in one line when it has passed.
	auditWindow   = 10 * time.Second
	auditRefusals = 10
	auditGrants   = 1000
	// auditKeys bounds the table; who comes when it is full shares a count.
	auditKeys = 512
)

// openAudit opens the file, if one is named. The lines in it are JSON.
func openAudit(path string, log *slog.Logger) (*auditor, error) {
	a := &auditor{log: log}
	a.mu.path, a.mu.counts = path, map[auditKey]*auditCount{}
	return a, a.reopen()
}

// reopen opens the file anew, after somebody has moved it away.
func (a *auditor) reopen() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.path == "" || a.mu.closed {
		return nil
	}
	f, err := os.OpenFile(a.mu.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open audit_log: %w", err)
	}
	if a.mu.file != nil {
		_ = a.mu.file.Close() // every line was written by itself
	}
	a.mu.file, a.mu.handler, a.mu.broken = f, slog.NewJSONHandler(f, nil), false
	return nil
}

func (a *auditor) close() error {
	a.sweep(time.Now().Add(auditWindow))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.closed = true
	if a.mu.file == nil {
		return nil
	}
	f := a.mu.file
	a.mu.file, a.mu.handler = nil, nil
	return f.Close()
}

// grant and refuse write a line. who is the peer or caller that lines are counted by; err is why, its reason goes in.
func (a *auditor) grant(ev auditEvent, who string, attrs ...slog.Attr) {
	a.write(ev, granted, who, slog.LevelInfo, attrs)
}

func (a *auditor) refuse(ev auditEvent, who string, err error, attrs ...slog.Attr) {
	f := classify(err)
	a.metrics.refused(f.Reason)
	attrs = append(attrs, slog.String("reason", string(f.Reason)), slog.String("error", clipped(f.Error())))
	a.write(ev, refused, who, slog.LevelWarn, attrs)
}

// decide is grant without an error, else refuse.
func (a *auditor) decide(ev auditEvent, who string, err error, attrs ...slog.Attr) {
	if err != nil {
		a.refuse(ev, who, err, attrs...)
		return
	}
	a.grant(ev, who, attrs...)
}

// clipped bounds what others' words take in a line.
func clipped(s string) string {
	if len(s) > 300 {
		return s[:300] + "..."
	}
	return s
}

func (a *auditor) write(ev auditEvent, decision, who string, level slog.Level, attrs []slog.Attr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mu.closed {
		return
	}
	now := time.Now()
	c, key := a.countLocked(auditKey{ev, decision, who}, now)
	most := auditGrants
	if decision == refused {
		most = auditRefusals
	}
	if now.Sub(c.since) >= auditWindow {
		a.summariseLocked(key, c)
		*c = auditCount{since: now}
	}
	if c.written >= most {
		c.suppressed++
		a.metrics.suppressed.Inc()
		return
	}
	c.written++
	a.lineLocked(ev, decision, level, attrs)
}

func (a *auditor) countLocked(key auditKey, now time.Time) (*auditCount, auditKey) {
	c := a.mu.counts[key]
	if c == nil && len(a.mu.counts) >= auditKeys {
		key = auditKey{key.event, key.decision, "others"}
		c = a.mu.counts[key]
	}
	if c == nil {
		c = &auditCount{since: now}
		a.mu.counts[key] = c
	}
	return c, key
}

// sweep tells of what was not written in windows that are over, and forgets them.
func (a *auditor) sweep(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, c := range a.mu.counts {
		if now.Sub(c.since) >= auditWindow {
			a.summariseLocked(key, c)
			delete(a.mu.counts, key)
		}
	}
}

func (a *auditor) summariseLocked(key auditKey, c *auditCount) {
	if c.suppressed > 0 {
		a.lineLocked(key.event, key.decision, slog.LevelWarn, []slog.Attr{
			slog.String("who", key.who), slog.Int("suppressed", c.suppressed), slog.Duration("within", auditWindow),
		})
	}
}

// lineLocked writes one line; into the log where the file can't take it.
func (a *auditor) lineLocked(ev auditEvent, decision string, level slog.Level, attrs []slog.Attr) {
	a.metrics.lines.WithLabelValues(string(ev), decision).Inc()
	attrs = append([]slog.Attr{slog.Bool("audit", true), slog.String("event", string(ev)), slog.String("decision", decision)}, attrs...)
	if a.mu.handler != nil {
		r := slog.NewRecord(time.Now(), level, "audit", 0)
		r.AddAttrs(attrs...)
		err := a.mu.handler.Handle(context.Background(), r)
		if err == nil {
			a.mu.broken = false
			return
		}
		a.metrics.lost.Inc()
		if !a.mu.broken {
			a.mu.broken = true
			a.log.LogAttrs(context.Background(), slog.LevelError, "audit_log can't be written: its lines go here", slog.Any("error", err))
		}
	}
	a.log.LogAttrs(context.Background(), level, "audit", attrs...)
}

// peerAttrs are what a line says of a peer.
func peerAttrs(p transfer.Peer) []slog.Attr {
	return []slog.Attr{slog.String("peer", string(p.ID)), slog.String("region", p.Region)}
}

// sessionAttrs are what a line says of a session.
func sessionAttrs(t kvstore.Tenant, id kvstore.SessionID) []slog.Attr {
	return []slog.Attr{slog.String("tenant", clipped(string(t))), slog.String("session_id", clipped(string(id)))}
}

// joinAttrs is its lists as one.
func joinAttrs(lists ...[]slog.Attr) (out []slog.Attr) {
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}
