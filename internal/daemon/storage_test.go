package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// fillUp takes all that is left of a filesystem, and returns how to give it back.
func fillUp(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // what counts is that nothing is left
	for page := make([]byte, 4096); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill %s: %v", dir, err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// A state_dir that is full refuses what it cannot put on disk, with the reason STORAGE, and nothing is half done: a session is not
// published, or stays with its owner, until there is room again.
func TestStateDirFull(t *testing.T) {
	state := tinyFS(t, "1m")
	bubble(t, func(t *testing.T) {
		f := newFleetEdited(t, fast, func(name string, c *Config, p *Parts) {
			if name == "a" {
				c.StateDir, p.NoState = state, false
			}
		}, "a", "b")
		const blocks = 1000 // a record of more pages than the file has to spare
		ea, eb := f.nodes["a"].register("e", testLayout(), 2*blocks*8192), f.nodes["b"].register("e", testLayout(), 2*blocks*8192)
		keys := ea.session("s", blocks)
		more := chain("more", blocks)
		ea.write("", more)
		free := fillUp(t, state)

		_, err := f.nodes["a"].engine.PublishSession(context.Background(), &pb.PublishSessionRequest{
			EngineId: "e", Session: &pb.SessionRef{SessionId: "more"}, BlockKeys: more, Tokens: blocks * int64(testLayout().GetBlockTokens()),
		})
		if fl := wantError(t, err, ReasonStorage); !strings.Contains(fl.Fix, "free space in state_dir") {
			t.Errorf("failure %+v", fl)
		}
		if got, err := f.nodes["a"].d.sessions.Get("", "more"); err == nil {
			t.Errorf("a session that could not be stored is there: %+v", got)
		}
		rep := f.nodes["b"].mustEnd(request("s"), failed, ReasonStorage, unmoved)
		if !strings.Contains(rep.GetMessage(), "free space in state_dir") {
			t.Errorf("message %q", rep.GetMessage())
		}
		f.wantOwner("s", "a")
		f.settle()

		free()
		f.nodes["b"].mustEnd(request("s"), committed, "", moved)
		f.wantOwner("s", "b")
		eb.check("", keys)
		ea.publish("", "more", more, blocks*int64(testLayout().GetBlockTokens()))
		f.settle()
	})
}
