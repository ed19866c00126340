//go:build e2e

package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/refengine"
	"github.com/kvferry/kvferry/bench/wan"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// binaries are built once from this tree.
var binaries string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kvferry-e2e-")
	if err != nil {
		panic(err)
	}
	build := exec.Command("go", "build", "-o", dir, "../../cmd/...")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		panic(err)
	}
	binaries = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// small is quick: 16 KiB pages, 128 KiB blocks.
func small() Config {
	return Config{
		Shape: refengine.ModelConfig{Layers: 8, Hidden: 64, KVHeads: 4, HeadDim: 64, FFN: 128, Vocab: 512, MaxTokens: 512},
		WAN:   &wan.Model{RTT: 20 * time.Millisecond, Rate: 200e6}, Prefix: 80, Turns: 2,
		Kvferryd: filepath.Join(binaries, "kvferryd"), Kvferry: filepath.Join(binaries, "kvferry"),
	}
}

func start(t *testing.T, cfg Config) *Fleet {
	t.Helper()
	f, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob("/dev/shm/*" + f.East.EngineID() + "*"); len(left) > 0 {
			t.Errorf("left in shared memory: %v", left)
		}
	})
	return f
}

func generate(t *testing.T, r *Region, req refengine.Request) *refengine.Result {
	t.Helper()
	res, err := r.Generate(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// moved migrates and holds the outcome to COMMITTED.
func moved(t *testing.T, f *Fleet, to *Region, session string, repin uint64) *pb.MigrationReport {
	t.Helper()
	rep, err := f.Migrate(t.Context(), to, Move{Session: session, Mode: pb.Mode_MODE_FETCH, RepinSeq: repin}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if rep.GetState() != pb.MigrationState_MIGRATION_STATE_COMMITTED || rep.GetOwnership() != pb.Ownership_OWNERSHIP_MOVED {
		t.Fatalf("migration to %s ended in %v, ownership %v: %s", to.Name, rep.GetState(), rep.GetOwnership(), rep.GetMessage())
	}
	return rep
}

// The proof and its controls, on processes: identical continuation from moved, watermarked KV; not identical without
// it; and every damage to a landed page shows.
func TestDemoEndToEnd(t *testing.T) {
	f := start(t, small())
	talk, err := f.Converse(t.Context(), Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if !talk.Watermarked {
		t.Fatal("the source did not watermark")
	}
	next := talk.Next()
	req := refengine.Request{Session: talk.Session, Tokens: next, MaxNew: proofNew, UseCache: true}
	want := generate(t, f.East, req)
	rep := moved(t, f, f.West, talk.Session, 1)
	got := generate(t, f.West, req)
	if !slices.Equal(got.Steps, want.Steps) {
		t.Fatalf("continuation differs:\n got %v\nwant %v", got.Steps, want.Steps)
	}
	if got.Watermarked || got.Paced || got.LoadedTokens != int(rep.GetBlocksUsable())*16 {
		t.Errorf("the destination: %+v, want %d tokens loaded", got, rep.GetBlocksUsable()*16)
	}
	if tail := got.PrefilledTokens - (len(next) - len(talk.Tokens)); int64(tail) > rep.GetTailTokens() {
		t.Errorf("prefilled %d tokens of the session, the report says %d", tail, rep.GetTailTokens())
	}
	control := generate(t, f.West, refengine.Request{Tokens: next, MaxNew: proofNew})
	if slices.Equal(control.Steps, want.Steps) {
		t.Error("the run from the tokens alone continues like the watermarked one: the watermark proves nothing")
	}
	damage(t, f, req, want, got.Keys[:rep.GetBlocksUsable()])
	back(t, f, talk)
}

// damage spoils landed pages one way at a time.
func damage(t *testing.T, f *Fleet, req refengine.Request, want *refengine.Result, keys [][]byte) {
	t.Helper()
	st, err := f.West.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	arena := st.GetArenas()[0]
	file, err := os.OpenFile(arena.GetPath(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	engine := pb.NewEngineServiceClient(f.West.Daemon)
	reg, err := engine.RegisterEngine(t.Context(), &pb.RegisterEngineRequest{EngineId: f.West.EngineID(), Layout: arena.GetLayout(), World: 1, WriteThrough: true})
	if err != nil {
		t.Fatal(err)
	}
	id := reg.GetArenaId()
	acq, err := engine.AcquireBlocks(t.Context(), &pb.AcquireBlocksRequest{EngineId: f.West.EngineID(), ArenaId: id, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := engine.ReleaseBlocks(t.Context(), &pb.ReleaseBlocksRequest{EngineId: f.West.EngineID(), ArenaId: id, LeaseIds: []uint64{acq.GetLeaseId()}}); err != nil {
		t.Fatal(err)
	}
	page := arena.GetBlockBytes() / int64(arena.GetLayout().GetLayers())
	stride := (arena.GetBlockBytes() + 4095) &^ 4095
	at := func(block, layer int) int64 { return int64(acq.GetSlots()[block].GetSlot())*stride + int64(layer)*page }
	read := func(off int64) []byte {
		b := make([]byte, page)
		if _, err := file.ReadAt(b, off); err != nil {
			t.Fatal(err)
		}
		return b
	}
	write := func(off int64, b []byte) {
		if _, err := file.WriteAt(b, off); err != nil {
			t.Fatal(err)
		}
	}
	same := func() bool {
		if err := f.West.Forget(t.Context()); err != nil {
			t.Fatal(err)
		}
		return slices.Equal(generate(t, f.West, req).Steps, want.Steps)
	}
	for _, c := range []struct {
		name string
		a, b int64 // offsets of the pages that change
		do   func(a, b []byte) ([]byte, []byte)
	}{
		{"two layers of a block swapped", at(1, 2), at(1, 5), func(a, b []byte) ([]byte, []byte) { return b, a }},
		{"two blocks of a layer swapped", at(0, 3), at(2, 3), func(a, b []byte) ([]byte, []byte) { return b, a }},
		{"one page zeroed", at(3, 0), at(3, 0), func(a, _ []byte) ([]byte, []byte) { return make([]byte, len(a)), make([]byte, len(a)) }},
		{"one high bit flipped", at(2, 7), at(2, 7), func(a, _ []byte) ([]byte, []byte) {
			c := bytes.Clone(a)
			c[1001] ^= 0x40 // the top exponent bit of element 500
			return c, c
		}},
	} {
		a, b := read(c.a), read(c.b)
		na, nb := c.do(a, b)
		write(c.a, na)
		write(c.b, nb)
		if same() {
			t.Errorf("%s: the continuation is the same", c.name)
		}
		write(c.a, a)
		write(c.b, b)
	}
	if !same() {
		t.Error("after all pages are restored the continuation differs")
	}
}

// back has the conversation go on in the second region and moves it home: only what the first region lacks moves.
func back(t *testing.T, f *Fleet, talk *Talk) {
	t.Helper()
	before := (len(talk.Tokens) - 1) / 16
	talk.Ask(40)
	if err := f.Speak(t.Context(), f.West, talk, newTokens, Observer{}); err != nil {
		t.Fatal(err)
	}
	after := (len(talk.Tokens) - 1) / 16
	rep := moved(t, f, f.East, talk.Session, 2)
	if rep.GetBlocksPresent() != int64(before) || rep.GetBlocksMoved() != int64(after-before) || rep.GetBlocksMoved() == 0 {
		t.Errorf("moving back: %d blocks were there and %d moved, want %d and %d", rep.GetBlocksPresent(), rep.GetBlocksMoved(), before, after-before)
	}
	req := refengine.Request{Session: talk.Session, Tokens: talk.Next(), MaxNew: proofNew, UseCache: true}
	want := generate(t, f.West, req)
	if got := generate(t, f.East, req); !slices.Equal(got.Steps, want.Steps) {
		t.Error("home again the continuation differs")
	}
}

// Lengths around whole blocks: the last block is never short of its last token, and never counted when it is.
func TestBlockBoundaries(t *testing.T) {
	f := start(t, small())
	for _, tokens := range []int{15, 16, 17, 18, 63, 64, 65, 66} {
		t.Run(fmt.Sprint(tokens), func(t *testing.T) {
			talk, err := f.NewTalk(fmt.Sprintf("n%d", tokens))
			if err != nil {
				t.Fatal(err)
			}
			talk.Ask(tokens - 2)
			if err := f.Speak(t.Context(), f.East, talk, 2, Observer{}); err != nil {
				t.Fatal(err)
			}
			// The engine has no KV of the token it said last: it takes part in no block.
			blocks := int64(tokens-1) / 16
			req := refengine.Request{Session: talk.Session, Tokens: talk.Tokens, MaxNew: proofNew, UseCache: true}
			want := generate(t, f.East, req)
			rep := moved(t, f, f.West, talk.Session, 1)
			if rep.GetBlocksTotal() != blocks || rep.GetTailTokens() != int64(tokens)-16*blocks || rep.GetPages() != 8*blocks {
				t.Errorf("%d blocks, %d tail tokens, %d pages; want %d, %d, %d", rep.GetBlocksTotal(), rep.GetTailTokens(), rep.GetPages(),
					blocks, int64(tokens)-16*blocks, 8*blocks)
			}
			got := generate(t, f.West, req)
			if !slices.Equal(got.Steps, want.Steps) {
				t.Error("continuation differs")
			}
			if int64(got.PrefilledTokens) != rep.GetTailTokens() || int64(got.LoadedTokens) != 16*blocks {
				t.Errorf("prefilled %d and loaded %d, want %d and %d", got.PrefilledTokens, got.LoadedTokens, rep.GetTailTokens(), 16*blocks)
			}
		})
	}
}

// A prompt of whole blocks that was only prefilled: the destination re-evaluates the last token.
func TestWholePrompt(t *testing.T) {
	f := start(t, small())
	talk, err := f.NewTalk("whole")
	if err != nil {
		t.Fatal(err)
	}
	talk.Ask(64)
	if err := f.Speak(t.Context(), f.East, talk, 0, Observer{}); err != nil {
		t.Fatal(err)
	}
	req := refengine.Request{Session: talk.Session, Tokens: talk.Tokens, MaxNew: proofNew, UseCache: true}
	want := generate(t, f.East, req)
	rep := moved(t, f, f.West, talk.Session, 1)
	if rep.GetBlocksTotal() != 4 || rep.GetTailTokens() != 1 {
		t.Errorf("%d blocks and %d tail tokens, want 4 and 1", rep.GetBlocksTotal(), rep.GetTailTokens())
	}
	got := generate(t, f.West, req)
	if !slices.Equal(got.Steps, want.Steps) || got.PrefilledTokens != 1 {
		t.Errorf("prefilled %d, identical %v; want 1 and true", got.PrefilledTokens, slices.Equal(got.Steps, want.Steps))
	}
}

// The command as a user runs it, at its real size: what it prints holds together.
func TestDemoCommand(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, "kvferry"), "demo", "-o", "json")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	var v struct {
		Identical   bool `json:"identical"`
		Watermarked bool `json:"watermarked"`
		Tokens      int  `json:"tokens"`
		Tail        int  `json:"prefilled_tail_tokens"`
		Migration   struct {
			State, Mode  string
			Bytes, Pages int64
			Seconds      float64
		} `json:"migration"`
		Plan struct {
			Modes map[string]struct {
				Seconds *float64 `json:"seconds"`
			} `json:"modes"`
		} `json:"plan"`
		Recompute float64 `json:"recompute_seconds"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &v); err != nil {
		t.Fatalf("%v in\n%s", err, &stdout)
	}
	blocks := int64(v.Tokens-1) / 16
	if !v.Identical || !v.Watermarked || v.Migration.State != "COMMITTED" || v.Migration.Mode != "fetch" || v.Migration.Pages != 80*blocks ||
		v.Migration.Bytes != 80*blocks*65536 || v.Migration.Bytes < 80<<20 || v.Tail != v.Tokens-16*int(blocks) || v.Recompute <= 0 || v.Migration.Seconds <= 0 {
		t.Errorf("result %+v", v)
	}
	for _, m := range []string{"fetch", "recompute", "redirect"} {
		if p, ok := v.Plan.Modes[m]; !ok || p.Seconds == nil || *p.Seconds <= 0 {
			t.Errorf("mode %s has no price", m)
		}
	}
	if !strings.Contains(stderr.String(), "moved KV verified: continuation identical (watermarked)") {
		t.Errorf("the story does not end well:\n%s", &stderr)
	}
}

// Ctrl-C at any moment, or a terminal that closes, leaves no process, file or socket. The moments are chapters of the story, which come
// as fast as the machine is.
func TestDemoInterrupted(t *testing.T) {
	for chapter, sig := range map[string]os.Signal{"starting two regions": os.Interrupt, "a turn in": syscall.SIGHUP, "migrating to": os.Interrupt} {
		tmp := t.TempDir()
		cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, "kvferry"), "demo")
		cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		told := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if !told && strings.Contains(lines.Text(), chapter) {
				told = true
				_ = cmd.Process.Signal(sig)
			}
		}
		err = cmd.Wait()
		var exit *exec.ExitError
		if !told || !errors.As(err, &exit) || exit.ExitCode() != 6 {
			t.Errorf("at %q, which was told %v: %v, want exit status 6", chapter, told, err)
		}
		nothingLeft(t, tmp, cmd.Process.Pid)
	}
}

// A reader that goes away after a few lines leaves nothing either.
func TestDemoIntoClosedPipe(t *testing.T) {
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, "kvferry"), "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	_ = cmd.Wait()
	nothingLeft(t, tmp, cmd.Process.Pid)
}

// A demo that is killed takes its children with it.
func TestDemoKilled(t *testing.T) {
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(binaries, "kvferry"), "demo")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(4*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGKILL) })
	defer timer.Stop()
	_ = cmd.Wait()
	left, _ := filepath.Glob(filepath.Join(tmp, "kvferry-demo-*"))
	for _, dir := range left { // nobody could remove it; its processes must still end
		awaitGone(t, dir)
	}
	shm, _ := filepath.Glob(fmt.Sprintf("/dev/shm/*demo-*-%d*", cmd.Process.Pid))
	if len(shm) > 0 {
		t.Errorf("left in shared memory: %v", shm)
	}
}

func nothingLeft(t *testing.T, tmp string, pid int) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/*demo-*-%d*", pid)); len(left) > 0 {
		t.Errorf("left in shared memory: %v", left)
	}
	awaitGone(t, tmp)
}

// awaitGone polls until no process has dir on its command line.
func awaitGone(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		found := ""
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, l := range lines {
			if data, err := os.ReadFile(l); err == nil && bytes.Contains(data, []byte(dir)) {
				found = string(bytes.ReplaceAll(data, []byte{0}, []byte{' '}))
			}
		}
		if found == "" {
			return
		}
		select {
		case <-ctx.Done():
			t.Errorf("still running: %s", found)
			return
		case <-tick.C:
		}
	}
}
