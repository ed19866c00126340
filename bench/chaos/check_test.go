//go:build chaos

package chaos

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/kvferry/kvferry/internal/daemon"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// settle is how long after the healing leases that nobody renews have run out, peers have told one another who owns what, and what a dead
// peer had asked for is dropped: its connections take up to twice their idle timeout to be missed, then its return is waited for.
const settle = 2*30*time.Second + 30*time.Second + connectTimeout + 10*time.Second

// check is what comes after the healing.
func (r *run) check() {
	var last time.Duration
	for _, m := range r.spec.moves {
		last = max(last, m.at+10*time.Second+m.deadline+grace)
	}
	if !r.waitActors(max(0, time.Until(r.began.Add(last))) + 2*grace) {
		r.failf("terminal", "calls of proxies or engines have not returned %v after the healing", time.Since(r.began)-r.spec.horizon)
		panic("BUG: the bubble can't end: " + r.spec.String() + r.logText())
	}
	time.Sleep(settle)
	for _, h := range r.hosts {
		if h.current() == nil {
			r.failf("restart", "%s does not run", h.name)
			return
		}
	}
	r.checkMigrations()
	r.checkGauges("after all is healed")
	owners := r.checkOwners()
	r.checkBlocks("after all is healed")
	r.next(owners)
	time.Sleep(3 * time.Second)
	r.checkGauges("after one more migration of each session")
	r.checkBlocks("after one more migration of each session")
}

func (r *run) logText() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.log.String()
}

// waitActors waits for everything that act set going.
func (r *run) waitActors(d time.Duration) bool {
	done := make(chan struct{})
	go func() { r.wg.Wait(); close(done) }()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// record is what n knows of a session.
func (r *run) record(n *node, i int) (claim, int64, bool) {
	s := &r.spec.sessions[i]
	resp, err := n.region.ListSessions(context.Background(), &pb.ListSessionsRequest{})
	if err != nil {
		return claim{}, 0, false
	}
	for _, x := range resp.GetSessions() {
		if ref := x.GetSession().GetRef(); ref.GetTenant() == s.tenant && ref.GetSessionId() == s.id {
			return claim{session: i, owner: x.GetSession().GetOwnerNodeId(), repin: x.GetSession().GetRepinSeq(), epoch: x.GetSession().GetEpoch()}, x.GetBlocksTotal(), true
		}
	}
	return claim{}, 0, false
}

// checkMigrations holds every migration that a daemon remembers to have ended, once, in time.
func (r *run) checkMigrations() {
	for _, h := range r.hosts {
		n := h.current()
		resp, err := n.mig.ListMigrations(context.Background(), &pb.ListMigrationsRequest{})
		if err != nil {
			r.failf("terminal", "list migrations at %s: %v", h.name, err)
			continue
		}
		for _, m := range resp.GetMigrations() {
			if m.GetReport() == nil || m.GetReport().GetState() != m.GetState() {
				r.failf("terminal", "migration %s at %s is %v with report %v", m.GetRequestId(), h.name, m.GetState(), m.GetReport())
			}
		}
	}
}

// checkOwners finds one owner a session, that no report outdates. It returns the owner of each, -1 for none.
func (r *run) checkOwners() []int {
	out := make([]int, len(r.spec.sessions))
	for i := range r.spec.sessions {
		out[i] = -1
		var owners, all []claim
		for j, h := range r.hosts {
			c, _, ok := r.record(h.current(), i)
			if !ok {
				continue
			}
			all = append(all, c)
			if c.owner == h.name {
				owners = append(owners, c)
				out[i] = j
			}
		}
		r.mu.Lock()
		unmoved := slices.Clone(r.mu.unmoved)
		r.mu.Unlock()
		for _, c := range all {
			if c.epoch = 0; slices.Contains(unmoved, c) {
				r.failf("owner", "session %d was reported not to have moved to %s by repin %d; records %v", i, c.owner, c.repin, all)
			}
		}
		if len(owners) != 1 {
			r.failf("owner", "session %d has %d owners; records %v, reported %v", i, len(owners), all, r.movedOf(i))
			continue
		}
		for _, c := range r.movedOf(i) {
			if owners[0].before(c) {
				r.failf("owner", "session %d is %s's by repin %d, epoch %d; it was reported to be %s's by repin %d, epoch %d", i, owners[0].owner, owners[0].repin, owners[0].epoch, c.owner, c.repin, c.epoch)
			}
		}
		for _, c := range all {
			if owners[0].before(c) {
				r.failf("owner", "session %d is %s's by repin %d, epoch %d; a record says %+v", i, owners[0].owner, owners[0].repin, owners[0].epoch, c)
			}
		}
	}
	return out
}

func newest(all []claim) (c claim) {
	for i, d := range all {
		if i == 0 || c.before(d) {
			c = d
		}
	}
	return c
}

func (r *run) movedOf(i int) []claim {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.mu.moved), func(c claim) bool { return c.session != i })
}

// checkBlocks reads every block that can be read anywhere.
func (r *run) checkBlocks(when string) {
	all := map[string]struct{}{}
	for _, keys := range r.mu.known { // nobody writes any more
		maps.Copy(all, keys)
	}
	var every [][]byte
	for _, k := range slices.Sorted(maps.Keys(all)) {
		every = append(every, []byte(k))
	}
	for _, h := range r.hosts {
		n := h.current()
		e := n.current()
		for _, tenant := range []string{"", "t1", "nobody"} {
			look, err := n.eng.LookupBlocks(context.Background(), &pb.LookupBlocksRequest{EngineId: engineID, ArenaId: e.id, Tenant: tenant, Keys: every})
			if err != nil {
				r.failf("bytes", "look up at %s: %v", h.name, err)
				continue
			}
			var present [][]byte
			for i, b := range look.GetBlocks() {
				switch _, written := r.mu.known[tenant][string(every[i])]; {
				case b.GetState() == pb.BlockState_BLOCK_STATE_ABSENT:
				case !written:
					r.failf("salt", "%s: tenant %q finds block %x at %s, which another wrote", when, tenant, every[i][:4], h.name)
				case b.GetState() != pb.BlockState_BLOCK_STATE_PRESENT:
					r.failf("gauges", "%s: block %x of tenant %q at %s is %v", when, every[i][:4], tenant, h.name, b.GetState())
				default:
					present = append(present, every[i])
				}
			}
			r.read(when, e, tenant, present)
		}
	}
}

// read leases blocks that are present, and compares them.
func (r *run) read(when string, e *engine, tenant string, keys [][]byte) {
	if len(keys) == 0 {
		return
	}
	l := e.acquire(tenant, keys)
	if l == nil || len(l.keys) != len(keys) {
		r.failf("bytes", "%s: %d blocks of tenant %q at %s are present and can't be acquired", when, len(keys), tenant, e.n.h.name)
	}
	if l == nil {
		return
	}
	if err := l.check(); err != nil {
		r.failf("bytes", "%s, at %s: %v", when, e.n.h.name, err)
	}
	if err := l.release(); err != nil {
		r.failf("hold", "%s, at %s: %v", when, e.n.h.name, err)
	}
}

// next migrates each session once more, with nothing in the way.
func (r *run) next(owners []int) {
	for i := range r.spec.sessions {
		from, to := owners[i], (owners[i]+1)%hosts
		switch {
		case from == -1:
			continue // said already
		}
		s, n := &r.spec.sessions[i], r.hosts[to].current()
		var all []claim
		for _, h := range r.hosts {
			if c, _, ok := r.record(h.current(), i); ok {
				all = append(all, c)
			}
		}
		c := newest(all)
		req := &pb.MigrateRequest{RequestId: fmt.Sprintf("next-%d", i), Session: s.ref(), Mode: pb.Mode_MODE_FETCH, RepinSeq: c.repin, Deadline: durationpb.New(30 * time.Second)}
		if c.repin > 0 {
			req.RepinSeq++
		}
		began := time.Now()
		rep, err := r.stream(context.Background(), n, req, move{})
		switch {
		case err != nil:
			r.failf("next", "session %d to %s is refused: %v", i, n.h.name, err)
		case rep.GetOwnership() != pb.Ownership_OWNERSHIP_MOVED || rep.GetState() != pb.MigrationState_MIGRATION_STATE_COMMITTED && rep.GetCode() != "BLOCK_NOT_FOUND":
			if rep.GetCode() == "ARENA_FULL" && int(rep.GetBlocksTotal()) > r.spec.slots {
				continue
			}
			r.failf("next", "session %d from %s to %s ended in %s, ownership %v: %s", i, names[from], n.h.name, outcome(rep), rep.GetOwnership(), rep.GetMessage())
		case time.Since(began) > 10*time.Second:
			r.failf("next", "session %d took %v", i, time.Since(began))
		default:
			r.warm(-1-i, move{session: i}, n, rep)
		}
		r.logf("next %d: %v", i, outcome(rep))
	}
}

// held is what a node holds.
type held struct {
	Reserved, Draining, Leases, LeasedBlocks, Active, Offers, Backlog, Transfers, Streams int64
}

// checkGauges holds every daemon to hold nothing.
func (r *run) checkGauges(when string) {
	for _, h := range r.hosts {
		n := h.current()
		st, err := n.region.Status(context.Background(), &pb.StatusRequest{})
		if err != nil {
			r.failf("gauges", "status of %s: %v", h.name, err)
			continue
		}
		links, err := n.region.ListLinks(context.Background(), &pb.ListLinksRequest{})
		if err != nil {
			r.failf("gauges", "links of %s: %v", h.name, err)
			continue
		}
		got := held{Active: st.GetActiveMigrations(), Offers: st.GetOffers(), Backlog: st.GetEgressBacklogBytes()}
		for _, a := range st.GetArenas() {
			got.Reserved += a.GetSlotsReserved()
			got.Draining += a.GetSlotsDraining()
			got.Leases += a.GetLeases()
			got.LeasedBlocks += a.GetLeasedBlocks()
		}
		for _, l := range links.GetLinks() {
			got.Transfers += l.GetTransfers()
			got.Streams += l.GetStreams()
			got.Backlog += l.GetEgressBacklogBytes()
		}
		if got != (held{}) {
			r.failf("gauges", "%s: %s holds %+v", when, h.name, got)
		}
	}
}

// stateFiles are what a daemon leaves in its folder of state, by prefix.
var stateFiles = []string{"sessions.db", "paths.json", "calibration.json", "plans.pb"}

// checkFiles looks for what should not be left.
func (r *run) checkFiles(n *node) {
	entries, err := os.ReadDir(n.h.state(n.dir))
	if err != nil {
		r.failf("files", "%v", err)
	}
	for _, e := range entries {
		if !slices.Contains(stateFiles, e.Name()) {
			r.failf("files", "%s leaves %s in its folder of state", n.h.name, e.Name())
		}
	}
	entries, err = os.ReadDir(filepath.Join(n.dir, "arena"))
	if err != nil {
		r.failf("files", "%v", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), daemon.ArenaPrefix(n.h.name)+engineID) {
			r.failf("files", "%s leaves %s beside its arena", n.h.name, e.Name())
		}
	}
}
