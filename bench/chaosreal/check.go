package chaosreal

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/refengine"
	"github.com/kvferry/kvferry/internal/daemon"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// check holds the healed fleet to what was promised, from outside.
func (r *run) check(ctx context.Context, before [nodeCount]usage) {
	r.fail(r.owners(ctx, false))
	r.settleAsked(ctx)
	r.onward(ctx)
	r.fail(r.owners(ctx, true))
	r.pages(ctx)
	if err := errors.Join(r.idle(ctx), r.grown(ctx, before)); err != nil {
		r.fail(err)
		r.dump(ctx)
	}
	r.logf("stopping")
	r.end()
}

// eventually polls until ok has no error, and returns its last one after settleTimeout.
func eventually(ctx context.Context, ok func() error) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for {
		err := ok()
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// owners holds each session to one owner: the fleet's highest record by (repin_seq, epoch) is the owner's own, and nobody else says
// that it is he. Before the caller has asked again for what was lost (settled false) there may be none.
func (r *run) owners(ctx context.Context, settled bool) error {
	return eventually(ctx, func() error {
		records := map[string][]*pb.Session{} // by session; who says so is in the same place of by
		by := map[string][]string{}
		for _, n := range r.f.nodes {
			list, err := n.status.ListSessions(ctx, &pb.ListSessionsRequest{})
			if err != nil {
				return fmt.Errorf("list sessions of %s: %w", n.name, err)
			}
			for _, st := range list.GetSessions() {
				id := st.GetSession().GetRef().GetTenant() + "/" + st.GetSession().GetRef().GetSessionId()
				records[id], by[id] = append(records[id], st.GetSession()), append(by[id], n.name)
			}
		}
		var errs []error
		for _, s := range r.sessions {
			id := s.tenant + "/" + s.id
			if err := oneOwner(records[id], by[id], settled); err != nil {
				errs = append(errs, fmt.Errorf("session %s: %w", id, err))
			}
		}
		return errors.Join(errs...)
	})
}

// oneOwner looks at the records of one session, each by the node of the same place.
func oneOwner(records []*pb.Session, by []string, settled bool) error {
	newer := func(a, b *pb.Session) int {
		return cmp.Or(cmp.Compare(a.GetRepinSeq(), b.GetRepinSeq()), cmp.Compare(a.GetEpoch(), b.GetEpoch()))
	}
	describe := func() string {
		var out []string
		for i, rec := range records {
			out = append(out, fmt.Sprintf("%s says %s owns it (repin_seq %d, epoch %d, version %d)", by[i], rec.GetOwnerNodeId(), rec.GetRepinSeq(), rec.GetEpoch(), rec.GetVersion()))
		}
		return strings.Join(out, "; ")
	}
	owners, highest := 0, -1
	for i, rec := range records {
		if rec.GetOwnerNodeId() == by[i] {
			owners++
		}
		if highest < 0 || newer(rec, records[highest]) > 0 {
			highest = i
		}
	}
	switch {
	case owners > 1:
		return fmt.Errorf("%d owners: %s", owners, describe())
	case !settled:
		return nil
	case owners == 0:
		return fmt.Errorf("no owner: %s", describe())
	}
	for i, rec := range records {
		if rec.GetOwnerNodeId() == by[i] && newer(rec, records[highest]) < 0 {
			return fmt.Errorf("the owner's record is not the newest: %s", describe())
		}
	}
	return nil
}

// settleAsked asks again, of the same destination, for what a lost answer or a lost daemon has left open.
func (r *run) settleAsked(ctx context.Context) {
	for _, s := range r.sessions {
		if s.asked < 0 {
			continue
		}
		n := r.f.nodes[s.asked]
		req := newRequest(fmt.Sprintf("seed%d-%s-again", r.plan.seed, s.id), s.ref(), pb.Mode_MODE_FETCH, s.nextRepin())
		out, err := callMigrate(ctx, n, req, nil)
		r.logf("%s asked again of %s: %s %s, ownership %v: %s", s.id, n.name, out, out.code, out.report.GetOwnership(), out.report.GetMessage())
		switch {
		case err != nil:
			r.fail(fmt.Errorf("ask %s again of %s: %w", s.id, n.name, err))
		case out.report == nil && out.code != "SESSION_NOT_FOUND", out.report.GetOwnership() == pb.Ownership_OWNERSHIP_UNKNOWN:
			r.fail(fmt.Errorf("%s asked again of %s, healed: %s %s: %s", s.id, n.name, out, out.code, out.report.GetMessage()))
		case out.report != nil:
			s.ended(out, n.index)
		}
	}
}

// onward moves each session once more: the next migration works.
func (r *run) onward(ctx context.Context) {
	for _, s := range r.sessions {
		_, _, from := s.view()
		to := r.f.nodes[(from+1+int(r.plan.seed%2))%nodeCount]
		req := newRequest(fmt.Sprintf("seed%d-%s-next", r.plan.seed, s.id), s.ref(), pb.Mode_MODE_FETCH, s.nextRepin())
		out, err := callMigrate(ctx, to, req, nil)
		r.logf("%s moved on to %s: %s %s, ownership %v, %d of %d blocks usable: %s", s.id, to.name, out, out.code, out.report.GetOwnership(), out.report.GetBlocksUsable(),
			out.report.GetBlocksTotal(), out.report.GetMessage())
		switch {
		case err != nil:
			r.fail(fmt.Errorf("the next migration of %s to %s: %w", s.id, to.name, err))
		case out.report.GetOwnership() != pb.Ownership_OWNERSHIP_MOVED:
			r.fail(fmt.Errorf("the next migration of %s to %s, healed: %s %s: %s", s.id, to.name, out, out.code, out.report.GetMessage()))
		default:
			s.ended(out, to.index)
		}
	}
}

// pages has every engine read every block of every session that its daemon has.
func (r *run) pages(ctx context.Context) {
	for _, n := range r.f.nodes {
		for _, s := range r.sessions {
			_, keys, _ := s.view()
			got, err := n.engine.Verify(ctx, refengine.VerifyRequest{Tenant: s.tenant, Keys: keys})
			if err != nil {
				r.fail(fmt.Errorf("read the blocks of %s at %s: %w", s.id, n.name, err))
				continue
			}
			r.logf("%s at %s: %d of %d blocks, %d damaged", s.id, n.name, got.Present, len(keys), len(got.Damaged))
			for _, d := range got.Damaged {
				n.mu.Lock()
				written := n.mu.damaged[d.Slot]
				n.mu.Unlock()
				if !written { // where somebody wrote into the file that is what is there; anywhere else it is a page gone wrong
					r.fail(fmt.Errorf("block %d of %s at %s: %d pages are not what the key says (slot %d)", d.Block, s.id, n.name, d.Pages, d.Slot))
				}
			}
		}
	}
}

// zero are gauges that go back to zero, by their name and labels.
var zero = regexp.MustCompile(`^(kvferry_arena_slots\{.*state="(reserved|draining)"\}|kvferry_arena_leases\b.*|kvferry_arena_leased_blocks\b.*|` +
	`kvferry_arena_broken\b.*|kvferry_migration_active_migrations|kvferry_egress_offers\b.*|kvferry_egress_backlog_bytes\b.*|kvferry_egress_oldest_offer_seconds|` +
	`kvferry_link_queued_bytes\b.*)$`)

// idle holds every daemon to holding nothing.
func (r *run) idle(ctx context.Context) error {
	return eventually(ctx, func() error {
		var errs []error
		for _, n := range r.f.nodes {
			gauges, err := n.scrape(ctx)
			if err != nil {
				return err
			}
			seen := 0
			for name, v := range gauges {
				if !zero.MatchString(name) {
					continue
				}
				seen++
				if v != 0 {
					errs = append(errs, fmt.Errorf("%s: %s is %g", n.name, name, v))
				}
			}
			if seen < 8 {
				errs = append(errs, fmt.Errorf("%s: %d gauges to look at", n.name, seen))
			}
			links, err := n.status.ListLinks(ctx, &pb.ListLinksRequest{})
			if err != nil {
				return err
			}
			for _, l := range links.GetLinks() {
				if l.GetTransfers() != 0 || l.GetStreams() != 0 {
					errs = append(errs, fmt.Errorf("%s: the link to %s has %d transfers and %d streams", n.name, l.GetPeer().GetNodeId(), l.GetTransfers(), l.GetStreams()))
				}
			}
		}
		return errors.Join(errs...)
	})
}

// dump writes what every daemon's goroutines do, beside the logs.
func (r *run) dump(ctx context.Context) {
	for _, n := range r.f.nodes {
		data, err := n.get(ctx, "/debug/pprof/goroutine?debug=2")
		if err == nil {
			err = os.WriteFile(r.f.path(n.name+"-goroutines.txt"), data, 0o600)
		}
		if err != nil {
			r.logf("dump the goroutines of %s: %v", n.name, err)
		}
	}
}

// get reads a page of the daemon's admin server.
func (n *node) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	return io.ReadAll(io.LimitReader(resp.Body, 64<<20))
}

// scrape reads the daemon's metrics.
func (n *node) scrape(ctx context.Context) (map[string]float64, error) {
	data, err := n.get(ctx, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", n.name, err)
	}
	out := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if at < 0 || strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		v, err := strconv.ParseFloat(lines.Text()[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metrics of %s: %q", n.name, lines.Text())
		}
		out[lines.Text()[:at]] = v
	}
	return out, lines.Err()
}

// usage is what a daemon's process holds.
type usage struct {
	pid, files int
	goroutines int64
}

// How much more a daemon that has lived through a run may hold than before it, when it had no links: sockets of up to a dozen stripes and
// about ten goroutines behind each. A leak with each migration or each restart of a peer shows in Restarts, which has many.
const (
	spareFiles      = 128
	spareGoroutines = 500
)

// usage looks at the daemon's process.
func (n *node) usage(ctx context.Context) (u usage, err error) {
	c := n.current().daemon
	st, err := n.status.Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return u, err
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.PID()))
	if err != nil {
		return u, fmt.Errorf("count the files of %s: %w", n.name, err)
	}
	return usage{c.PID(), len(fds), st.GetGoroutines()}, nil
}

// measure looks at all of them; one that can't be looked at has no numbers.
func (r *run) measure(ctx context.Context) (out [nodeCount]usage) {
	for i, n := range r.f.nodes {
		out[i], _ = n.usage(ctx) //nolint:errcheck // it may be ending by its own faults
	}
	return out
}

// grown holds the daemons that have lived through it to what they held before.
func (r *run) grown(ctx context.Context, before [nodeCount]usage) error {
	return eventually(ctx, func() error {
		var errs []error
		for i, n := range r.f.nodes {
			now, err := n.usage(ctx)
			if err != nil {
				return err
			}
			was := before[i]
			if was.pid != now.pid {
				continue
			}
			if now.files > was.files+spareFiles || now.goroutines > was.goroutines+spareGoroutines {
				errs = append(errs, fmt.Errorf("%s had %d files and %d goroutines, and has %d and %d", n.name, was.files, was.goroutines, now.files, now.goroutines))
			}
		}
		return errors.Join(errs...)
	})
}

// end stops all processes, which must end well and leave nothing, and looks for what they said.
func (r *run) end() {
	for _, n := range r.f.nodes {
		_, err := n.end(n.current().engine, stop)
		r.fail(err)
	}
	errs := make(chan error, nodeCount)
	for _, n := range r.f.nodes {
		go func() { _, err := n.end(n.current().daemon, stop); errs <- err }()
	}
	for range r.f.nodes {
		r.fail(<-errs)
	}
	for _, n := range r.f.nodes {
		n.mu.Lock()
		for _, what := range n.mu.ended {
			r.fail(errors.New(what))
		}
		n.mu.Unlock()
		r.fail(n.leftovers())
		r.fail(n.cries())
	}
}

// stateFiles are what a daemon that has stopped leaves.
var stateFiles = []string{"sessions.db", "paths.json", "calibration.json", "plans.pb", filler}

// arenaFiles are the engine's arena and its index, which outlast the daemon.
func (n *node) arenaFiles() []string {
	arena := daemon.ArenaPrefix(n.name) + engineID
	return []string{arena, arena + "+index"}
}

// leftovers looks for files that should have gone with the processes.
func (n *node) leftovers() error {
	var errs []error
	for _, sock := range []string{n.socket(), n.engineSock()} {
		if _, err := os.Lstat(sock); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("left behind: %s (%w)", sock, err))
		}
	}
	for dir, known := range map[string][]string{n.arenaDir(): n.arenaFiles(), n.stateDir(): stateFiles} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			errs = append(errs, err)
		}
		for _, e := range entries {
			if !slices.Contains(known, e.Name()) {
				errs = append(errs, fmt.Errorf("left behind: %s", filepath.Join(dir, e.Name())))
			}
		}
	}
	return errors.Join(errs...)
}

// cry is what a daemon says only when there is a bug in it.
var cry = regexp.MustCompile(`(?i)panic|BUG:|fatal error|DATA RACE|unexpected fault`)

// cries looks for it in the log.
func (n *node) cries() error {
	data, err := os.ReadFile(n.daemonLog())
	if err != nil {
		return err
	}
	for line := range bytes.Lines(data) {
		if cry.Match(line) {
			return fmt.Errorf("kvferryd %s says: %.2000s", n.name, line)
		}
	}
	return nil
}
