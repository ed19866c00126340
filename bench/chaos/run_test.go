//go:build chaos

package chaos

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/fault"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// result is what came of a run.
type result struct {
	Seed     uint64
	Kind     string
	Failures []failure
	Fired    map[string]int // faults that struck, by kind
	Outcomes map[string]int // ends of migrations
	Text     string         // what was to happen, and what did; of a run with failures
	Took     time.Duration  // of processor or wall
	Virtual  time.Duration
}

// failure is one rule that was broken.
type failure struct{ Check, What string }

// run is one run.
type run struct {
	spec  *spec
	dir   string
	net   *wan.Network
	ca    *certs.CA
	pairs [hosts]*certs.Pair
	hosts [hosts]*host
	cuts  cuts
	began time.Time
	wg    sync.WaitGroup // undertakers, midwives and actors

	injector *fault.Injector

	mu struct {
		sync.Mutex
		failures []failure
		fired    map[string]int
		outcomes map[string]int
		log      strings.Builder
		known    map[string]map[string]struct{} // keys that may be somewhere, by tenant
		length   []int                          // blocks of each session that were published
		moved    []claim                        // ownership as reported
		unmoved  []claim                        // what was reported not to have come to pass; without epochs
	}
}

// claim is an ownership.
type claim struct {
	session      int
	owner        string
	repin, epoch uint64
}

func (c claim) before(d claim) bool {
	return c.repin < d.repin || c.repin == d.repin && c.epoch < d.epoch
}

func (r *run) failf(check, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.failures = append(r.mu.failures, failure{check, fmt.Sprintf(format, args...)})
	fmt.Fprintf(&r.mu.log, "%9.3f BROKEN %s: %s\n", time.Since(r.began).Seconds(), check, fmt.Sprintf(format, args...))
}

func (r *run) logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.mu.log, "%9.3f %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// Write takes a line of the injector's log.
func (r *run) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(&r.mu.log, "%9.3f fault %s", time.Since(r.began).Seconds(), line)
	return len(line), nil
}

// logger takes the daemons' own words, with -v of the harness.
func (r *run) logger(name string) *slog.Logger {
	if !verbose {
		return nil
	}
	return slog.New(slog.NewTextHandler(prefixed{r, name}, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

type prefixed struct {
	r    *run
	name string
}

func (p prefixed) Write(line []byte) (int, error) {
	p.r.logf("%s: %s", p.name, strings.TrimSuffix(string(line), "\n"))
	return len(line), nil
}

func (r *run) count(fired string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.fired[fired]++
}

func (r *run) ended(outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.outcomes[outcome]++
}

// note says that these blocks may be found from here on.
func (r *run) note(tenant string, keys [][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.known[tenant] == nil {
		r.mu.known[tenant] = map[string]struct{}{}
	}
	for _, k := range keys {
		r.mu.known[tenant][string(k)] = struct{}{}
	}
}

// at sleeps until d after the beginning.
func (r *run) at(d time.Duration) { time.Sleep(time.Until(r.began.Add(d))) }

// perform runs s in a bubble.
func perform(t *testing.T, s *spec) (out result) {
	began := time.Now()
	r := &run{spec: s}
	r.mu.fired, r.mu.outcomes, r.mu.known = map[string]int{}, map[string]int{}, map[string]map[string]struct{}{}
	r.mu.length = make([]int, len(s.sessions))
	var virtual time.Duration
	synctest.Test(t, func(t *testing.T) {
		r.began = time.Now()
		r.live(t)
		virtual = time.Since(r.began)
	})
	out = result{Seed: s.seed, Kind: s.kind, Failures: r.mu.failures, Fired: r.mu.fired, Outcomes: r.mu.outcomes, Took: time.Since(began), Virtual: virtual}
	for _, e := range r.injector.Struck() {
		out.Fired[e.Boundary.String()+":"+e.Kind.String()]++
	}
	if len(out.Failures) > 0 || verbose {
		out.Text = s.String() + "\n" + r.mu.log.String()
	}
	return out
}

// folderPattern is what folders of runs are called.
const folderPattern = "kvferry-chaos-"

// memoryFolder is where folders of runs are made: in memory where there is such a place.
func memoryFolder(t *testing.T) string {
	t.Helper()
	const shm = "/dev/shm"
	if st, err := os.Stat(shm); err != nil || !st.IsDir() {
		return t.TempDir()
	}
	return shm
}

// live is a run from beginning to end.
func (r *run) live(t *testing.T) {
	parent := os.Getenv(foldersEnv)
	if parent == "" {
		parent = memoryFolder(t)
	}
	dir, err := os.MkdirTemp(parent, folderPattern)
	if err != nil {
		t.Fatal(err)
	}
	r.dir = dir
	defer func() { _ = os.RemoveAll(dir) }()
	if r.ca, err = certs.NewCA("chaos", 24*365*time.Hour); err != nil {
		t.Fatal(err)
	}
	r.net = wan.NewNetwork(r.spec.model)
	r.net.Tap(r.cuts.judge)
	for i, name := range names {
		if r.pairs[i], err = r.ca.Issue("r-"+name, name); err != nil {
			t.Fatal(err)
		}
		r.hosts[i] = &host{r: r, i: i, name: name, ip: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), birth: make(chan struct{})}
	}
	r.injector = &fault.Injector{Schedule: r.spec.schedule, Kill: r.killAt, Log: r}
	for _, h := range r.hosts {
		if err := h.start(filepath.Join(dir, h.name+"-0")); err != nil {
			t.Fatalf("start %s: %v", h.name, err)
		}
	}
	for i := range r.spec.sessions {
		s := &r.spec.sessions[i]
		keys := chain(s.chain, s.blocks)
		e := r.hosts[s.home].current().current()
		if err := e.write(s.tenant, keys); err != nil {
			t.Fatalf("write session %d: %v", i, err)
		}
		if err := e.publish(s, keys); err != nil {
			t.Fatalf("publish session %d: %v", i, err)
		}
		r.mu.length[i] = s.blocks
	}
	remove := fault.Install(r.injector)
	r.act()
	r.at(r.spec.horizon)
	remove()
	r.logf("all is healed")
	r.cuts.heal()
	for _, h := range r.hosts {
		if n := h.current(); n != nil {
			n.gate.open()
		}
	}
	r.check()
	r.end()
	if err := r.net.Close(); err != nil {
		r.failf("close", "network: %v", err)
	}
}

// killAt kills the host that an arena, a file or a daemon of that name is on.
func (r *run) killAt(at string) {
	name := at
	if rest, ok := strings.CutPrefix(at, "kvferry-"); ok {
		name, _, _ = strings.Cut(rest, "@")
	} else if rest, ok := strings.CutPrefix(at, r.dir+"/"); ok {
		name, _, _ = strings.Cut(rest, "-")
	}
	for _, h := range r.hosts {
		if h.name == name {
			r.count(evKill)
			h.kill(time.Duration(200+137*h.born%3000)*time.Millisecond, "at a boundary")
			return
		}
	}
	r.failf("harness", "nobody is called %q", at)
}

// end closes the daemons and looks at what they leave.
func (r *run) end() {
	for _, h := range r.hosts {
		n := h.current()
		if n == nil {
			continue
		}
		_ = n.conn.Close()
		n.closeEngine()
		if err := n.d.Close(); err != nil {
			r.failf("close", "%s: %v", h.name, err)
		}
		r.checkFiles(n)
	}
	r.wg.Wait()
}

// cuts are what the network does not carry: directed pairs of addresses with a count.
type cuts struct {
	mu sync.RWMutex
	of map[[2]netip.Addr]int
}

func (c *cuts) judge(p wan.Packet) wan.Verdict {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.of[[2]netip.Addr{p.From.Addr().Unmap(), p.To.Addr().Unmap()}] > 0 {
		return wan.Drop
	}
	return wan.Pass
}

func (c *cuts) add(from, to netip.Addr, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = map[[2]netip.Addr]int{}
	}
	c.of[[2]netip.Addr{from, to}] = max(0, c.of[[2]netip.Addr{from, to}]+n)
}

func (c *cuts) heal() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of = nil
}

// safely runs f, whose panic is a rule broken and not the end of everything.
func (r *run) safely(what string, f func()) {
	defer func() {
		if p := recover(); p != nil {
			r.failf("harness", "%s: %v\n%s", what, p, debug.Stack())
		}
	}()
	f()
}

// outcome names a migration's end.
func outcome(rep *pb.MigrationReport) string {
	s := strings.TrimPrefix(rep.GetState().String(), "MIGRATION_STATE_")
	if rep.GetState() == pb.MigrationState_MIGRATION_STATE_FAILED {
		s += " " + rep.GetCode()
	}
	return s
}
