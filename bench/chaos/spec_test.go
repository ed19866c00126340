//go:build chaos

package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/internal/fault"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

const hosts = 3

var names = [hosts]string{"a", "b", "c"}

// event is one thing that happens to hosts or links.
type event struct {
	at   time.Duration
	kind string
	a, b int           // hosts
	last time.Duration // until it is over; of a kill, until the host starts again
}

func (e event) String() string {
	s := fmt.Sprintf("%v %s %s", e.at, e.kind, names[e.a])
	if e.b != e.a {
		s += "-" + names[e.b]
	}
	return s + fmt.Sprintf(" for %v", e.last)
}

// The kinds of events.
const (
	evCut     = "cut"          // both ways between two hosts
	evOneWay  = "cut-one-way"  // from a to b
	evIsolate = "isolate"      // a from all
	evLoss    = "loss"         // 20 % of the packets between two hosts
	evFreeze  = "freeze"       // packets to and from a are held
	evKill    = "kill"         // SIGKILL
	evArena   = "arena-damage" // a's arena is truncated, and its engine registers again
)

// move is one call of a proxy.
type move struct {
	at       time.Duration
	session  int
	to       int
	hint     int // -1: none
	mode     pb.Mode
	class    pb.TransferClass
	deadline time.Duration
	repin    uint64
	takeover bool
	front    bool          // the engine prefills
	cancel   time.Duration // after it began; 0: not
	drop     time.Duration // the stream, to come back later; 0: not
	must     bool          // nothing is in its way that it may not survive: it is committed
	soon     time.Duration // and within that; 0: its deadline
}

func (m move) String() string {
	s := fmt.Sprintf("%v migrate %d to %s %s repin %d deadline %v", m.at, m.session, names[m.to], strings.TrimPrefix(m.mode.String(), "MODE_"), m.repin, m.deadline)
	if m.hint >= 0 {
		s += " hint " + names[m.hint]
	}
	if m.takeover {
		s += " takeover"
	}
	if m.front {
		s += " front"
	}
	if m.cancel > 0 {
		s += fmt.Sprintf(" cancel after %v", m.cancel)
	}
	if m.drop > 0 {
		s += fmt.Sprintf(" drop after %v", m.drop)
	}
	return s
}

// session is one session and how it grows.
type session struct {
	tenant, id string
	chain      string // seed of its keys
	home       int
	blocks     int
	grows      []time.Duration // by two blocks
	repins     bool
}

// hold is an engine that leases a session's blocks for a while.
type hold struct {
	at, last time.Duration
	host     int
	session  int
}

// The kinds of runs.
const (
	gentle  = "gentle"   // nothing strikes that the design does not promise to survive: every migration is committed
	oneHost = "one host" // all of it strikes one host: migrations between the others are committed, and soon
	harsh   = "harsh"    // anything
)

// spec is what a run is to be.
type spec struct {
	seed     uint64
	kind     string
	model    wan.Model
	slots    int
	sessions []session
	moves    []move
	events   []event
	holds    []hold
	fills    []time.Duration // moments at which a host's engine writes other blocks
	lates    []time.Duration // moments at which a late writer comes
	schedule fault.Schedule
	horizon  time.Duration
}

func (s *spec) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %s, rtt %v, %.1f Mbit/s, loss %.4f, %d slots\nfaults: %s\n", s.seed, s.kind, s.model.RTT, s.model.Rate/1e6, s.model.Loss, s.slots, s.schedule)
	for i, x := range s.sessions {
		fmt.Fprintf(&b, "session %d: %q %q at %s, %d blocks, grows %v\n", i, x.tenant, x.id, names[x.home], x.blocks, x.grows)
	}
	for _, m := range s.moves {
		fmt.Fprintln(&b, m)
	}
	for _, e := range s.events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// any is what may strike at boundaries.
func anything() []fault.Choice {
	long := 3 * time.Second
	return []fault.Choice{
		{Boundary: fault.Read, Kind: fault.Fails, Reach: 60},
		{Boundary: fault.Read, Kind: fault.Corrupt, Reach: 60, Run: 20},
		{Boundary: fault.Read, Kind: fault.Stall, Reach: 60, Longest: 5 * time.Second},
		{Boundary: fault.Read, Kind: fault.Kill, Reach: 60},
		{Boundary: fault.Send, Kind: fault.Fails, Reach: 60, Run: 10},
		{Boundary: fault.Send, Kind: fault.Short, Reach: 60, Run: 10},
		{Boundary: fault.Send, Kind: fault.Stall, Reach: 60, Longest: long},
		{Boundary: fault.Send, Kind: fault.Kill, Reach: 60},
		{Boundary: fault.Receive, Kind: fault.Short, Reach: 200, Run: 10},
		{Boundary: fault.Receive, Kind: fault.Corrupt, Reach: 200, Run: 10},
		{Boundary: fault.Receive, Kind: fault.Stall, Reach: 200, Longest: long},
		{Boundary: fault.Receive, Kind: fault.Kill, Reach: 200},
		{Boundary: fault.Decode, Kind: fault.Fails, Reach: 200, Run: 10},
		{Boundary: fault.Decode, Kind: fault.Kill, Reach: 200},
		{Boundary: fault.Verify, Kind: fault.Fails, Reach: 200},
		{Boundary: fault.Verify, Kind: fault.Corrupt, Reach: 200, Run: 10},
		{Boundary: fault.Verify, Kind: fault.Stall, Reach: 200, Longest: long},
		{Boundary: fault.Verify, Kind: fault.Kill, Reach: 200},
		{Boundary: fault.Reserve, Kind: fault.Fails, Reach: 15, Run: 3},
		{Boundary: fault.Reserve, Kind: fault.Kill, Reach: 15},
		{Boundary: fault.Commit, Kind: fault.Fails, Reach: 60, Run: 3},
		{Boundary: fault.Commit, Kind: fault.Stall, Reach: 60, Longest: long},
		{Boundary: fault.Commit, Kind: fault.Kill, Reach: 60},
		{Boundary: fault.HandOver, Kind: fault.Fails, Reach: 4, Run: 3},
		{Boundary: fault.HandOver, Kind: fault.Kill, Reach: 4},
		{Boundary: fault.HandOver, Kind: fault.Stall, Reach: 4, Longest: long},
		{Boundary: fault.HandedOver, Kind: fault.Lose, Reach: 4, Run: 3},
		{Boundary: fault.HandedOver, Kind: fault.Kill, Reach: 4},
		{Boundary: fault.HandedOver, Kind: fault.Stall, Reach: 4, Longest: long},
		{Boundary: fault.Adopt, Kind: fault.Fails, Reach: 4, Run: 2},
		{Boundary: fault.Adopt, Kind: fault.Kill, Reach: 4},
		{Boundary: fault.Adopt, Kind: fault.Stall, Reach: 4, Longest: long},
		{Boundary: fault.Adopted, Kind: fault.Kill, Reach: 4},
		{Boundary: fault.Reply, Kind: fault.Lose, Reach: 40, Run: 4},
		{Boundary: fault.Reply, Kind: fault.Kill, Reach: 40},
		{Boundary: fault.Reply, Kind: fault.Stall, Reach: 40, Longest: long},
		{Boundary: fault.Persist, Kind: fault.Fails, Reach: 15, Run: 4},
		{Boundary: fault.Persist, Kind: fault.Kill, Reach: 15},
	}
}

// mild is what may strike at boundaries and hold no healthy migration up for good. Corruption comes once a run.
func mild() []fault.Choice {
	short := 500 * time.Millisecond
	return []fault.Choice{
		{Boundary: fault.Send, Kind: fault.Fails, Reach: 60},
		{Boundary: fault.Send, Kind: fault.Short, Reach: 60, Run: 3},
		{Boundary: fault.Receive, Kind: fault.Short, Reach: 200, Run: 3},
		{Boundary: fault.Read, Kind: fault.Stall, Reach: 60, Longest: short},
		{Boundary: fault.Send, Kind: fault.Stall, Reach: 60, Longest: short},
		{Boundary: fault.Receive, Kind: fault.Stall, Reach: 200, Longest: short},
		{Boundary: fault.Verify, Kind: fault.Stall, Reach: 200, Longest: short},
		{Boundary: fault.Commit, Kind: fault.Stall, Reach: 60, Longest: short},
		{Boundary: fault.HandOver, Kind: fault.Stall, Reach: 4, Longest: short},
		{Boundary: fault.Adopt, Kind: fault.Stall, Reach: 4, Longest: short},
	}
}

var corruption = []fault.Choice{
	{Boundary: fault.Read, Kind: fault.Corrupt, Reach: 60},
	{Boundary: fault.Receive, Kind: fault.Corrupt, Reach: 200},
	{Boundary: fault.Verify, Kind: fault.Corrupt, Reach: 200},
	{Boundary: fault.Decode, Kind: fault.Fails, Reach: 200},
}

// lostAnswers come once a gentle run: a hand-over is asked for until it is answered.
var lostAnswers = []fault.Choice{{Boundary: fault.HandedOver, Kind: fault.Lose, Reach: 4}}

// plan draws a run from its seed.
func plan(seed uint64) *spec {
	r := rand.New(rand.NewPCG(seed, 0xc4a05))
	s := &spec{seed: seed, kind: []string{gentle, gentle, oneHost, harsh, harsh, harsh}[r.IntN(6)], horizon: time.Duration(8+r.IntN(12)) * time.Second, slots: 48 + r.IntN(80)}
	s.model = wan.Model{RTT: between(r, 2*time.Millisecond, 80*time.Millisecond), Rate: 1e6 * float64(2+r.IntN(40)), Loss: []float64{0, 0, 0.001, 0.01}[r.IntN(4)], Seed: seed}
	n := 3 + r.IntN(3)
	for i := range n {
		x := session{tenant: []string{"", "t1"}[i%2], id: fmt.Sprintf("s%d", i), chain: fmt.Sprintf("chain-%d-%d", seed, i/2), home: r.IntN(hosts), blocks: 3 + r.IntN(18), repins: r.IntN(4) > 0}
		for range r.IntN(3) {
			x.grows = append(x.grows, between(r, 0, s.horizon))
		}
		s.sessions = append(s.sessions, x)
	}
	switch s.kind {
	case gentle:
		s.drawGentle(r)
	case oneHost:
		s.drawOneHost(r)
	default:
		s.drawHarsh(r)
	}
	for range r.IntN(5) {
		s.holds = append(s.holds, hold{at: between(r, 0, s.horizon), last: between(r, 100*time.Millisecond, 4*time.Second), host: r.IntN(hosts), session: r.IntN(n)})
	}
	for range r.IntN(3) {
		s.lates = append(s.lates, between(r, 0, s.horizon))
	}
	slices.SortFunc(s.moves, func(a, b move) int { return int(a.at - b.at) })
	slices.SortFunc(s.events, func(a, b event) int { return int(a.at - b.at) })
	return s
}

func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return (least + time.Duration(r.Int64N(int64(most-least)+1))).Round(time.Millisecond)
}

var classes = []pb.TransferClass{
	pb.TransferClass_TRANSFER_CLASS_UNSPECIFIED, pb.TransferClass_TRANSFER_CLASS_INTERACTIVE, pb.TransferClass_TRANSFER_CLASS_BACKGROUND,
	pb.TransferClass_TRANSFER_CLASS_REPLICATION,
}

// drawGentle has each session migrated by one proxy at a time, and nothing strike that the design does not promise to survive.
func (s *spec) drawGentle(r *rand.Rand) {
	s.slots = 160
	for i := range s.sessions {
		at, where, repin := time.Duration(0), s.sessions[i].home, uint64(0)
		for range 1 + r.IntN(2) {
			at += between(r, 0, s.horizon/2)
			where = (where + 1 + r.IntN(hosts-1)) % hosts
			m := move{at: at, session: i, to: where, hint: -1, mode: pb.Mode_MODE_FETCH, class: classes[r.IntN(4)], deadline: 90 * time.Second, must: true}
			if r.IntN(3) == 0 {
				m.hint = r.IntN(hosts)
			}
			if s.sessions[i].repins {
				repin++
				m.repin = repin
			}
			if r.IntN(3) == 0 {
				m.drop = between(r, 10*time.Millisecond, time.Second)
			}
			s.moves = append(s.moves, m)
		}
	}
	s.schedule = append(s.schedule, fault.Draw(r, r.IntN(4), mild())...)
	if r.IntN(2) == 0 {
		s.schedule = append(s.schedule, fault.Draw(r, 1, corruption)...)
	}
	if r.IntN(2) == 0 {
		s.schedule = append(s.schedule, fault.Draw(r, 1, lostAnswers)...)
		return // with a cut beside it no answer may come for longer than one is waited for
	}
	for range r.IntN(3) {
		e := event{at: between(r, 0, s.horizon), a: r.IntN(hosts), last: between(r, 100*time.Millisecond, 1500*time.Millisecond)}
		e.b = (e.a + 1 + r.IntN(hosts-1)) % hosts
		e.kind = []string{evCut, evOneWay, evLoss, evFreeze}[r.IntN(4)]
		if e.kind == evFreeze {
			e.b = e.a
		}
		s.events = append(s.events, e)
	}
}

// drawOneHost has one host stop, die and be cut off, while sessions of the other two move between these, and others from and to it.
func (s *spec) drawOneHost(r *rand.Rand) {
	s.slots = 160
	lost := r.IntN(hosts)
	for i := range s.sessions {
		x := &s.sessions[i]
		at, repin := time.Duration(0), uint64(0)
		for range 1 + r.IntN(3) {
			at += between(r, 0, s.horizon/2)
			m := move{at: at, session: i, hint: -1, mode: pb.Mode_MODE_FETCH, class: classes[r.IntN(4)], deadline: between(r, 5*time.Second, 30*time.Second)}
			if i%3 < 2 {
				m.must, m.soon, m.deadline = true, 5*time.Second, 60*time.Second
				if x.home == lost {
					x.home = (lost + 1) % hosts
				}
				m.to = hosts - lost - x.home // the third
				if repin%2 == 1 {
					m.to = x.home
				}
			} else {
				m.to = r.IntN(hosts)
			}
			repin++
			if x.repins = true; r.IntN(3) == 0 {
				if m.hint = r.IntN(hosts); m.hint == lost && m.must {
					m.soon += connectTimeout // what a wrong hint may cost
				}
			}
			m.repin = repin
			s.moves = append(s.moves, m)
		}
	}
	for range 1 + r.IntN(3) {
		e := event{at: between(r, 0, s.horizon), kind: []string{evFreeze, evFreeze, evKill, evIsolate, evArena}[r.IntN(5)], a: lost, b: lost}
		e.last = between(r, 100*time.Millisecond, 15*time.Second)
		if e.kind == evKill || e.kind == evArena {
			e.last /= 3
		}
		s.events = append(s.events, e)
	}
}

// drawHarsh draws anything.
func (s *spec) drawHarsh(r *rand.Rand) {
	repins := make([]uint64, len(s.sessions))
	for range 3 + r.IntN(6) {
		m := move{
			at: between(r, 0, s.horizon), session: r.IntN(len(s.sessions)), to: r.IntN(hosts), hint: -1, class: classes[r.IntN(4)],
			deadline: between(r, 2*time.Second, 40*time.Second),
		}
		m.mode = []pb.Mode{pb.Mode_MODE_UNSPECIFIED, pb.Mode_MODE_FETCH, pb.Mode_MODE_FETCH, pb.Mode_MODE_RECOMPUTE, pb.Mode_MODE_HYBRID}[r.IntN(5)]
		m.front = m.mode == pb.Mode_MODE_HYBRID && r.IntN(4) > 0 || m.mode == pb.Mode_MODE_UNSPECIFIED && r.IntN(2) == 0
		if r.IntN(3) == 0 {
			m.hint = r.IntN(hosts)
		}
		if r.IntN(6) == 0 {
			m.cancel = between(r, time.Millisecond, 3*time.Second)
		}
		if r.IntN(4) == 0 {
			m.drop = between(r, 10*time.Millisecond, 2*time.Second)
		}
		s.moves = append(s.moves, m)
	}
	if r.IntN(4) == 0 {
		s.drawTakeover(r)
	}
	slices.SortFunc(s.moves, func(a, b move) int { return int(a.at - b.at) })
	for i := range s.moves {
		m := &s.moves[i]
		if s.sessions[m.session].repins {
			repins[m.session]++
			m.repin = repins[m.session]
			m.takeover = m.takeover || r.IntN(4) == 0
		}
	}
	s.schedule = fault.Draw(r, r.IntN(6), anything())
	kinds := []string{evCut, evOneWay, evIsolate, evLoss, evFreeze, evKill, evKill, evArena}
	for range r.IntN(5) {
		e := event{at: between(r, 0, s.horizon), kind: kinds[r.IntN(len(kinds))], a: r.IntN(hosts)}
		e.b = e.a
		switch e.kind {
		case evCut, evOneWay, evLoss:
			e.b = (e.a + 1 + r.IntN(hosts-1)) % hosts
			e.last = between(r, 100*time.Millisecond, 30*time.Second)
		case evIsolate:
			e.last = between(r, 100*time.Millisecond, 30*time.Second)
		case evFreeze:
			e.last = between(r, 200*time.Millisecond, 20*time.Second)
		case evKill:
			e.last = between(r, 50*time.Millisecond, 5*time.Second)
		case evArena:
			e.last = between(r, 10*time.Millisecond, 3*time.Second)
		}
		s.events = append(s.events, e)
	}
	for range r.IntN(3) {
		s.fills = append(s.fills, between(r, 0, s.horizon))
	}
}

// drawTakeover has a session re-pinned to a host that is then killed, or cut off, for long enough that the session is taken over elsewhere
// meanwhile.
func (s *spec) drawTakeover(r *rand.Rand) {
	i := r.IntN(len(s.sessions))
	s.sessions[i].repins = true
	first, at := (s.sessions[i].home+1)%hosts, between(r, 0, s.horizon/2)
	second := (first + 1 + r.IntN(hosts-1)) % hosts
	lost := event{at: at + 2*time.Second, kind: []string{evKill, evKill, evIsolate, evFreeze}[r.IntN(4)], a: first, b: first, last: between(r, 6*time.Second, 9*time.Second)}
	s.events = append(s.events, lost)
	s.moves = append(s.moves, move{at: at, session: i, to: first, hint: -1, deadline: 30 * time.Second, mode: pb.Mode_MODE_FETCH},
		move{at: lost.at + 200*time.Millisecond, session: i, to: second, hint: []int{-1, first}[r.IntN(2)], deadline: 30 * time.Second, takeover: true})
	s.horizon = max(s.horizon, lost.at+lost.last+time.Second)
}
