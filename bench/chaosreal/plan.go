package chaosreal

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/internal/fault"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Kind is a kind of fault.
type Kind uint8

// The kinds.
const (
	KillDaemon    Kind = iota // SIGKILL, and a start on the same addresses
	RestartDaemon             // SIGTERM, and a start on the same addresses
	KillEngine                // SIGKILL, and a start
	FreezeDaemon              // SIGSTOP, SIGCONT
	FreezeEngine              // SIGSTOP, SIGCONT
	CutOneWay                 // nothing passes from one node to the other
	CutBothWays               // nothing passes between two nodes
	Isolate                   // nothing passes from or to a node
	Lose                      // packets between two nodes are lost, in bursts
	TruncateArena             // the file's second half is gone
	ScribbleArena             // bytes of the file are written over
	DeleteArena               // the file is removed
	FillState                 // the folder of state has no space
	kinds
)

var kindNames = [kinds]string{
	"kill-daemon", "restart-daemon", "kill-engine", "freeze-daemon", "freeze-engine", "cut-one-way", "cut-both-ways", "isolate", "lose",
	"truncate-arena", "scribble-arena", "delete-arena", "fill-state",
}

// String is the kind's name in tables.
func (k Kind) String() string {
	if k < kinds {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Role is a node as a migration sees it.
type Role uint8

// The roles.
const (
	Source Role = iota
	Destination
	Bystander
	roles
)

// String is the role's name.
func (r Role) String() string { return [roles]string{"source", "destination", "bystander"}[r] }

// Fault is one fault of a plan. It strikes once the migration has come to State, and of a transfer to Share.
type Fault struct {
	Migration int               // ordinal in the run, from 0
	State     pb.MigrationState // that it waits for, or a later one
	Share     float64           // of the pages, 0 to 1; in a transfer only
	After     time.Duration     // then
	Kind      Kind
	Role      Role          // who is struck; of a path, its one end: the migration's other node is the other
	Lasts     time.Duration // until it is undone: a start, SIGCONT, a link that is whole
	Salt      uint64        // of what is drawn when it strikes
}

// String is the fault's line in a plan.
func (f Fault) String() string {
	at := strings.ToLower(strings.TrimPrefix(f.State.String(), "MIGRATION_STATE_"))
	if f.State == pb.MigrationState_MIGRATION_STATE_TRANSFERRING {
		at += fmt.Sprintf(" %.0f%%", 100*f.Share)
	}
	if f.After > 0 {
		at += " +" + f.After.String()
	}
	return fmt.Sprintf("migration %d at %s: %s %s %v", f.Migration, at, f.Kind, f.Role, f.Lasts)
}

// move is one migration of a plan.
type move struct {
	session  int
	hop      int // 1 or 2: how many nodes on from the owner
	mode     pb.Mode
	takeover bool
	front    bool    // the destination's engine prefills beside it
	keys     bool    // named blocks are replicated, nothing is handed over
	grow     bool    // the source's engine goes on meanwhile
	reattach float64 // the caller's stream is dropped at this share, and the caller comes back; negative: no
	cancel   float64 // the caller cancels at this share; negative: no
	rash     bool    // the caller does not wait until the destination is ready
}

// String is the move's line in a plan.
func (m move) String() string {
	s := fmt.Sprintf("session %d to +%d %s", m.session, m.hop, strings.ToLower(strings.TrimPrefix(m.mode.String(), "MODE_")))
	for _, opt := range []struct {
		on   bool
		name string
	}{
		{m.takeover, "takeover"}, {m.front, "front"}, {m.keys, "keys"}, {m.grow, "grow"}, {m.reattach >= 0, "reattach"}, {m.cancel >= 0, "cancel"}, {m.rash, "rash"},
	} {
		if opt.on {
			s += " " + opt.name
		}
	}
	return s
}

// plan is a run: a function of its seed, and of whether there can be a small filesystem.
type plan struct {
	seed     uint64
	sessions []seedSession
	waves    [][]move
	faults   []Fault
	daemons  [nodeCount]fault.Schedule // faults of the daemons themselves
}

// seedSession is a session as it begins.
type seedSession struct {
	tenant string
	home   int
	blocks int
}

const (
	planSessions = 3
	planWaves    = 3
	planAtOnce   = 2
	planFaults   = 5 // at most
)

var planModes = []pb.Mode{
	pb.Mode_MODE_FETCH, pb.Mode_MODE_FETCH, pb.Mode_MODE_UNSPECIFIED, pb.Mode_MODE_UNSPECIFIED, pb.Mode_MODE_HYBRID, pb.Mode_MODE_HYBRID, pb.Mode_MODE_RECOMPUTE,
}

var planStates = []pb.MigrationState{
	pb.MigrationState_MIGRATION_STATE_LOCATING, pb.MigrationState_MIGRATION_STATE_OFFERING, pb.MigrationState_MIGRATION_STATE_RESERVING,
	pb.MigrationState_MIGRATION_STATE_TRANSFERRING, pb.MigrationState_MIGRATION_STATE_TRANSFERRING, pb.MigrationState_MIGRATION_STATE_TRANSFERRING,
	pb.MigrationState_MIGRATION_STATE_HANDING_OVER,
}

// newPlan derives a run from a seed.
func newPlan(seed uint64, space bool) plan {
	r := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15))
	p := plan{seed: seed}
	for range planSessions {
		p.sessions = append(p.sessions, seedSession{tenant: []string{"", "t1"}[r.IntN(2)], home: r.IntN(nodeCount), blocks: 12 + r.IntN(37)})
	}
	migrations := 0
	for range planWaves {
		var wave []move
		first := r.IntN(planSessions)
		for i := range planAtOnce {
			m := move{session: (first + i) % planSessions, hop: 1 + r.IntN(2), mode: planModes[r.IntN(len(planModes))], reattach: -1, cancel: -1}
			if i > 0 && r.IntN(5) == 0 { // two destinations want one session
				m.session, m.hop = wave[0].session, 3-wave[0].hop
			}
			m.takeover, m.grow = r.IntN(4) == 0, r.IntN(4) == 0
			m.front = m.mode == pb.Mode_MODE_HYBRID && r.IntN(3) > 0
			m.keys = m.mode == pb.Mode_MODE_FETCH && r.IntN(5) == 0
			if r.IntN(5) == 0 {
				m.reattach = r.Float64()
			}
			if r.IntN(8) == 0 {
				m.cancel = r.Float64()
			}
			m.rash = r.IntN(5) == 0
			wave = append(wave, m)
			migrations++
		}
		p.waves = append(p.waves, wave)
	}
	for range 2 + r.IntN(planFaults-1) {
		f := Fault{
			Migration: r.IntN(migrations), State: planStates[r.IntN(len(planStates))], Share: r.Float64(), After: time.Duration(r.IntN(3)*r.IntN(60)) * time.Millisecond,
			Kind: Kind(r.IntN(int(kinds))), Role: Role(r.IntN(int(roles))), Salt: r.Uint64(),
		}
		if f.Role == Bystander && r.IntN(2) == 0 { // the two ends are of more interest
			f.Role = Role(r.IntN(2))
		}
		f.Lasts = lasts(r, f.Kind)
		if f.Kind == FillState && !space {
			continue
		}
		p.faults = append(p.faults, f)
	}
	for range r.IntN(3) {
		p.daemons[r.IntN(nodeCount)] = fault.Draw(r, 1+r.IntN(2), ownFaults())
	}
	return p
}

// lasts draws how long a fault is left before it is undone.
func lasts(r *rand.Rand, k Kind) time.Duration {
	switch k {
	case TruncateArena, ScribbleArena, DeleteArena:
		return 0
	case KillDaemon, RestartDaemon, KillEngine:
		return time.Duration(r.IntN(1500)) * time.Millisecond
	default:
		return 100*time.Millisecond + time.Duration(r.ExpFloat64()*float64(1500*time.Millisecond)).Truncate(time.Millisecond)
	}
}

// ownFaults are what a daemon may do to itself. The reaches are about what a run crosses.
func ownFaults() (out []fault.Choice) {
	for _, c := range []struct {
		at    fault.Boundary
		reach uint64
		kinds []fault.Kind
	}{
		{fault.Read, 150, []fault.Kind{fault.Fails, fault.Corrupt, fault.Kill, fault.Stall}},
		{fault.Send, 100, []fault.Kind{fault.Fails, fault.Short, fault.Kill, fault.Stall}},
		{fault.Receive, 400, []fault.Kind{fault.Fails, fault.Short, fault.Corrupt, fault.Kill, fault.Stall}},
		{fault.Decode, 400, []fault.Kind{fault.Fails}},
		{fault.Verify, 400, []fault.Kind{fault.Fails, fault.Corrupt, fault.Kill}},
		{fault.Reserve, 8, []fault.Kind{fault.Fails, fault.Kill}},
		{fault.Commit, 150, []fault.Kind{fault.Fails, fault.Kill, fault.Stall}},
		{fault.HandOver, 2, []fault.Kind{fault.Fails, fault.Kill, fault.Stall}},
		{fault.HandedOver, 2, []fault.Kind{fault.Fails, fault.Lose, fault.Kill, fault.Stall}},
		{fault.Adopt, 2, []fault.Kind{fault.Fails, fault.Kill, fault.Stall}},
		{fault.Adopted, 2, []fault.Kind{fault.Kill, fault.Stall}},
		{fault.Reply, 12, []fault.Kind{fault.Fails, fault.Lose, fault.Kill, fault.Stall}},
		{fault.Persist, 10, []fault.Kind{fault.Fails, fault.Kill}},
	} {
		for _, k := range c.kinds {
			choice := fault.Choice{Boundary: c.at, Kind: k, Reach: c.reach, Longest: 3 * time.Second}
			if k == fault.Fails || k == fault.Corrupt {
				choice.Run = 3
			}
			out = append(out, choice)
		}
	}
	return out
}

// fills reports whether a fault of the plan takes the space of the state.
func (p plan) fills() bool {
	return slices.ContainsFunc(p.faults, func(f Fault) bool { return f.Kind == FillState })
}

// String is the plan for people.
func (p plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\n", p.seed)
	for i, s := range p.sessions {
		fmt.Fprintf(&b, "  session %d: tenant %q, %d blocks at %c\n", i, s.tenant, s.blocks, 'a'+s.home)
	}
	n := 0
	for _, wave := range p.waves {
		for _, m := range wave {
			fmt.Fprintf(&b, "  migration %d: %s\n", n, m)
			n++
		}
	}
	for _, f := range p.faults {
		fmt.Fprintf(&b, "  %s\n", f)
	}
	for i, own := range p.daemons {
		if len(own) > 0 {
			fmt.Fprintf(&b, "  daemon %c: KVFERRY_FAULTS=%s\n", 'a'+i, own)
		}
	}
	return b.String()
}
