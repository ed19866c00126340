package daemon

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvferry/kvferry/internal/certs"
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

// A destination whose state_dir is full does not ask for what it could not note: the session stays with its owner, which goes on serving it.
func TestDestinationStateFull(t *testing.T) {
	state := tinyFS(t, "1m")
	for _, mode := range []pb.Mode{pb.Mode_MODE_FETCH, pb.Mode_MODE_RECOMPUTE} {
		bubble(t, func(t *testing.T) {
			f := newFleetEdited(t, fast, func(name string, c *Config, p *Parts) {
				if name == "b" {
					c.StateDir, p.NoState = filepath.Join(state, mode.String()), false
				}
			}, "a", "b", "c")
			engines := map[string]*testEngine{}
			for name, n := range f.nodes {
				engines[name] = n.register("e", testLayout(), 1<<20)
			}
			keys := engines["a"].session("s", 20)
			free := fillUp(t, state)
			req := request("s")
			req.Mode = mode
			rep := f.nodes["b"].mustEnd(req, failed, ReasonStorage, unmoved)
			if !strings.Contains(rep.GetMessage(), "free space in state_dir") || !strings.Contains(rep.GetMessage(), "sessions.db") {
				t.Errorf("message %q", rep.GetMessage())
			}
			f.wantOwner("s", "a")
			engines["a"].check("", keys)
			engines["a"].publish("", "s", keys, 20*16+7) // goes on
			f.settle()
			free()
			again := request("s")
			again.Mode = mode
			if mode == pb.Mode_MODE_FETCH {
				f.nodes["b"].mustEnd(again, committed, "", moved)
				engines["b"].check("", keys)
			} else if rep := f.nodes["b"].mustEnd(again, recompute, "", moved); rep.GetTailTokens() != 20*16+7 {
				t.Errorf("report %v", rep)
			}
			f.wantOwner("s", "b")
			f.settle()
		})
	}
}

// A state_dir that can't be written, or a damaged sessions.db, keeps the daemon from starting, with the file and the fix in the error.
func TestBadStateAtStart(t *testing.T) {
	dir := tinyFS(t, "1m")
	ca, err := certs.NewCA("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue("r-a", "a")
	if err != nil {
		t.Fatal(err)
	}
	tls := pair.Material(ca).ServerConfig()
	tls.RootCAs = tls.ClientCAs
	open := func(state string) error {
		d, err := Open(Config{
			Node: NodeConfig{ID: "a", Region: "r-a"}, StateDir: state, Arena: ArenaConfig{Dir: t.TempDir()},
			Listen: ListenConfig{Unix: filepath.Join(t.TempDir(), "s"), GRPC: off, Admin: off, QUIC: "127.0.0.1:0"},
		}, Parts{TLS: tls})
		if err != nil {
			return err
		}
		return d.Close()
	}
	if err := open(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "sessions.db")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, good[:5000], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := open(dir); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "move it away") {
		t.Errorf("a damaged file: %v", err)
	}
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Skipf("mount read-only: %v", err)
	}
	if err := open(dir); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "read-only") {
		t.Errorf("a read-only folder: %v", err)
	}
	if err := open(filepath.Join(dir, "none")); err == nil || !strings.Contains(err.Error(), "state_dir") {
		t.Errorf("a folder that can't be made: %v", err)
	}
}
