package daemon

import (
	"strings"
	"testing"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func (n *realNode) arenaStatus() *pb.ArenaStatus {
	n.t.Helper()
	st, err := n.region.Status(n.t.Context(), &pb.StatusRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	if len(st.GetArenas()) == 0 {
		return nil
	}
	return st.GetArenas()[0]
}

// wantSlots waits for the counts of the node's arena.
func (n *realNode) wantSlots(what string, reserved, committed, draining, leases int64) {
	n.t.Helper()
	eventually(n.t, what, func() bool {
		st := n.arenaStatus()
		return st.GetSlotsReserved() == reserved && st.GetSlotsCommitted() == committed && st.GetSlotsDraining() == draining && st.GetLeases() == leases
	})
}

// What an engine of one process holds ends with it, by kill -9 too; what it committed stays for the next one.
func TestEngineDeath(t *testing.T) {
	n := newRealNode(t, nil)
	p := n.startProcess()
	p.do("register e 0 1")
	slots := strings.Fields(p.do("reserve s 7"))
	p.want("true true true true", "commit 0 1 %s", strings.Join(slots[:4], " "))
	p.want("ok", "acquire s 2")
	n.wantSlots("the engine holds what it took", 3, 4, 0, 1)
	p.kill()
	n.wantSlots("the dead engine's holdings are given back", 0, 4, 0, 0)
	again := n.startProcess()
	again.do("register e 0 1")
	if got := again.do("reserve s 5"); !strings.HasPrefix(got, "PRESENT PRESENT PRESENT PRESENT ") || strings.HasSuffix(got, "PRESENT") {
		t.Errorf("the engine that started again finds %s", got)
	}
}

// Every rank of a tensor-parallel engine is a process: one reserves, or each does and gets the same slots; a block is there
// when all have committed.
func TestRankProcesses(t *testing.T) {
	n := newRealNode(t, nil)
	r0, r1 := n.startProcess(), n.startProcess()
	id := r0.do("register tp 0 2")
	r1.want(id, "register tp 1 2")
	slots := r0.do("reserve s 3")
	r1.want(slots, "reserve s 3")
	r0.want("false false false", "commit 0 2 %s", slots)
	r0.want("LANDING LANDING LANDING", "reserve s 3") // its part is written
	r1.want(slots, "reserve s 3")
	r0.want("INVALID_ARGUMENT", "commit 1 2 %s", slots) // not its rank
	r1.want("true true true", "commit 1 2 %s", slots)
	n.wantSlots("the blocks are there", 0, 3, 0, 0)
	one := n.startProcess()
	one.want("ENGINE_MISMATCH", "register tp 0 1")
}

// When a rank dies, what lacks its part is given up at once, and its memory waits for the ranks that may still write it:
// until they say that they do not, or die.
func TestRankDeath(t *testing.T) {
	n := newRealNode(t, nil)
	r0, r1 := n.startProcess(), n.startProcess()
	id := r0.do("register tp 0 2")
	r1.want(id, "register tp 1 2")
	slots := strings.Fields(r0.do("reserve s 4"))
	r0.want("false", "commit 0 2 %s", slots[0])
	r1.want("false", "commit 1 2 %s", slots[1])
	r1.kill()
	// 0: rank 0 is done with it, free. 1: has the dead one's part, waits for rank 0's. 2, 3: rank 0 may be writing them.
	n.wantSlots("what lacks the dead rank's part is given up", 1, 0, 2, 0)
	r0.want("STALE_GENERATION", "commit 0 2 %s", slots[2])
	r0.want("true", "commit 0 2 %s", slots[1])
	n.wantSlots("a refused commit frees nothing", 0, 1, 2, 0)
	r0.want("ok", "abort %s", slots[2])
	n.wantSlots("the slot that rank 0 gave back is free", 0, 1, 1, 0)
	r0.want("STALE_GENERATION", "abort %s", slots[2])

	// The rank comes back and the block is made again, in another slot.
	r1 = n.startProcess()
	r1.want(id, "register tp 1 2")
	again := strings.Fields(r1.do("reserve s 4"))
	if again[1] != "PRESENT" || again[3] == slots[3] || strings.Split(again[3], "@")[0] == strings.Split(slots[3], "@")[0] {
		t.Errorf("reserved again: %v, before: %v", again, slots)
	}
	n.wantSlots("three blocks are made again", 3, 1, 1, 0)
	r0.kill()
	n.wantSlots("all that waited for rank 0 ends with it, but for what rank 1 may write", 0, 1, 3, 0)
	r1.kill()
	n.wantSlots("nothing outlives the last process", 0, 1, 0, 0)

	// With nobody left the world may change.
	one := n.startProcess()
	one.want(id, "register tp 0 1")
	one.want("true", "commit 0 1 %s", one.do("reserve other 1"))
}

// Calls are taken from processes that have registered since the arena was opened, with its id, and from no others.
func TestCallsNeedRegistration(t *testing.T) {
	n := newRealNode(t, nil)
	p, stranger := n.startProcess(), n.startProcess()
	stranger.want("ok", "arena e 00112233445566778899aabbccddeeff")
	stranger.want("ARENA_STALE", "reserve s 1") // as after a restart of the daemon
	id := p.do("register e 0 1")
	stranger.want("ARENA_STALE", "reserve s 1")
	stranger.want("ok", "arena e %s", id)
	for _, call := range []string{"reserve s 1", "commit 0 1 0@1", "abort 0@1", "acquire s 1"} {
		stranger.want("ARENA_STALE", call)
	}
	p.want("ok", "arena e 00112233445566778899aabbccddeeff")
	for _, call := range []string{"reserve s 1", "commit 0 1 0@1", "abort 0@1", "acquire s 1"} {
		p.want("ARENA_STALE", call)
	}

	_, err := n.engine.LookupBlocks(t.Context(), &pb.LookupBlocksRequest{EngineId: "e", Keys: chain("s", 1)})
	wantError(t, err, ReasonInvalid)
	_, err = n.engine.LookupBlocks(t.Context(), &pb.LookupBlocksRequest{EngineId: "e", ArenaId: id, Keys: chain("s", 1)})
	wantError(t, err, ReasonArenaStale)
	n.wantSlots("nobody got anything", 0, 0, 0, 0)
}

// A call of a process that dies meanwhile must not leave holdings that nobody gives back.
func TestHoldingsOfTheDead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, fast, "a")
		te := f.nodes["a"].register("e", testLayout(), 1<<20)
		e, err := f.nodes["a"].d.engines.get(te.id)
		if err != nil {
			t.Fatal(err)
		}
		te.write("", chain("there", 1))
		dead := &engineProcess{key: processKey{pid: 4242}, ranks: []int{1}} // its death was seen to before the call took anything
		if _, err := e.arena.Reserve(e.owner(), "", keysOf(chain("late", 3))); err != nil {
			t.Fatal(err)
		}
		if _, _, err := e.arena.Acquire(e.processOwner(dead), "", keysOf(chain("there", 1)), -1); err != nil {
			t.Fatal(err)
		}
		e.heldBy(dead)
		if got := f.nodes["a"].idle(); got.Leases != 0 || got.Reserved != 0 || got.Draining != 3 {
			t.Errorf("a dead process holds %+v", got)
		}
		e.arena.ReleaseOwner(e.processOwner(e.process(processKey{})))
		f.settle()
	})
}
