package kvdump

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/bench/refengine"
	"github.com/kvferry/kvferry/internal/certs"
	"github.com/kvferry/kvferry/internal/daemon"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// startDaemon starts a daemon in this process and returns its socket.
func startDaemon(t *testing.T) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "kvf") // short: a socket's path has at most 103 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	arena, err := os.MkdirTemp("/dev/shm", "kvferry-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(arena) })
	ca, err := certs.NewCA("test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue("r-a", "a")
	if err != nil {
		t.Fatal(err)
	}
	tlsConfig := pair.Material(ca).ServerConfig()
	tlsConfig.RootCAs = tlsConfig.ClientCAs
	socket, lock := filepath.Join(dir, "s"), false
	d, err := daemon.Open(daemon.Config{
		Node: daemon.NodeConfig{ID: "a", Region: "r-a"}, Listen: daemon.ListenConfig{Unix: socket, GRPC: "off", Admin: "off", QUIC: "127.0.0.1:0"},
		Arena: daemon.ArenaConfig{Dir: arena, Bytes: 1 << 20, Lock: &lock}, StateDir: filepath.Join(dir, "state"),
	}, daemon.Parts{TLS: tlsConfig, Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return socket
}

func startEngine(t *testing.T, socket, id string, world int) *refengine.Engine {
	t.Helper()
	e, err := refengine.Open(t.Context(), refengine.Config{Addr: "unix://" + socket, EngineID: id, Model: small(), World: world, PrefillSecondsPerToken: 1e-3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func arenaOf(t *testing.T, socket, id string) *pb.ArenaStatus {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	st, err := pb.NewRegionServiceClient(conn).Status(t.Context(), &pb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range st.GetArenas() {
		if a.GetEngineId() == id {
			return a
		}
	}
	t.Fatalf("no engine %s", id)
	return nil
}

// TestRead records what an engine has committed: its own bytes, in the order of the keys that are there, and leaves the engine as it was,
// with no hold on its blocks.
func TestRead(t *testing.T) {
	socket := startDaemon(t)
	e := startEngine(t, socket, "ref", 2)
	tokens := tokensOf(defaultText[:64])
	res, err := e.Generate(t.Context(), refengine.Request{Tenant: "red", Tokens: tokens[:60], UseCache: true, Commit: true})
	if err != nil || res.CommittedBlocks != 3 {
		t.Fatalf("%+v, %v", res, err)
	}
	want := blocksOf(t, small(), tokens[:48])
	before := arenaOf(t, socket, "ref")
	dir := t.TempDir()
	path := filepath.Join(dir, "pages.kv")
	absent := bytes.Repeat([]byte{7}, 32)
	keys := [][]byte{res.Keys[2], absent, res.Keys[0], res.Keys[1]}

	s, err := Read(t.Context(), Config{Path: path, MaxBytes: 2 * blockBytes}, Daemon{Socket: socket, Tenant: "red", World: 2, Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	h, ps := load(t, path)
	if d := cmp.Diff(append(append([][]byte{}, want[6:9]...), want[0:3]...), ps); d != "" {
		t.Error("the pages are not those of blocks 2 and 0")
	}
	if s.Blocks != 2 || s.Absent != 1 || s.Left != 1 || s.Bytes != 2*blockBytes {
		t.Errorf("summary %+v", s)
	}
	wantHeader := kvfile.Header{
		Model: "kvferry/refengine", Weights: before.GetLayout().GetWeightsVersion(), Source: "engine ref (kvferry-refengine 1)", DType: kvfile.BF16, Kind: kvfile.GQA, Layers: 3, KVHeads: 2,
		HeadDim: 32, Tokens: 16, Pages: 6, PageBytes: 4096, PageLayers: []int{0, 1, 2, 0, 1, 2},
	}
	if d := cmp.Diff(wantHeader, h); d != "" {
		t.Error(d)
	}
	after := arenaOf(t, socket, "ref")
	if after.GetLeases() != 0 || after.GetEngine() != before.GetEngine() || after.GetSlotsCommitted() != 3 || after.GetPath() != before.GetPath() {
		t.Errorf("before %v\nafter %v", before, after)
	}
	if again, err := e.Generate(t.Context(), refengine.Request{Tenant: "red", Tokens: tokens, UseCache: true, Commit: true}); err != nil || again.CommittedBlocks != 4 || len(again.Warnings) > 0 {
		t.Errorf("the engine afterwards: %+v, %v", again, err)
	}
}

// TestReadRefuses: whatever is wrong is said, and neither a file, nor a hold, nor another engine is left.
func TestReadRefuses(t *testing.T) {
	socket := startDaemon(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "pages.kv")
	key := bytes.Repeat([]byte{7}, 32)
	good := Daemon{Socket: socket, Keys: [][]byte{key}}
	refuse := func(name, want string, c Config, edit func(*Daemon)) {
		t.Helper()
		d := good
		if edit != nil {
			edit(&d)
		}
		s, err := Read(t.Context(), c, d)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v, want %q", name, s, err, want)
		}
	}
	c := Config{Path: path}
	refuse("no engine", "no engine is registered", c, nil)
	e := startEngine(t, socket, "ref", 1)
	res, err := e.Generate(t.Context(), refengine.Request{Tokens: tokensOf(defaultText[:32]), UseCache: true, Commit: true})
	if err != nil {
		t.Fatal(err)
	}
	refuse("absent keys", "none of the 1 blocks", c, nil)
	refuse("another tenant", "none of the 2 blocks", c, func(d *Daemon) { d.Keys, d.Tenant = res.Keys, "blue" })
	refuse("another engine", `one of ref`, c, func(d *Daemon) { d.EngineID = "vllm" })
	refuse("another world", "world 1, not 2", c, func(d *Daemon) { d.World = 2 })
	refuse("less than a block", "at least 12288", Config{Path: path, MaxBytes: 100}, func(d *Daemon) { d.Keys = res.Keys })
	refuse("no keys", "keys is 0 keys", c, func(d *Daemon) { d.Keys = nil })
	refuse("a short key", "keys[1] is 7 bytes", c, func(d *Daemon) { d.Keys = [][]byte{key, key[:7]} })
	refuse("a bad world", "world is -1", c, func(d *Daemon) { d.World = -1 })
	refuse("no socket", "socket is", c, func(d *Daemon) { d.Socket = "s" })
	refuse("nobody there", "connect", c, func(d *Daemon) { d.Socket = filepath.Join(dir, "none") })
	refuse("no folder", "no such file", Config{Path: filepath.Join(dir, "none", "x")}, func(d *Daemon) { d.Keys = res.Keys })
	startEngine(t, socket, "other", 1)
	refuse("two engines", "one of other, ref", c, nil)

	// The arena's file is cut off: its engine keeps it until it registers again.
	good.EngineID, good.Keys = "ref", res.Keys
	if err := os.Truncate(arenaOf(t, socket, "ref").GetPath(), 4096); err != nil {
		t.Fatal(err)
	}
	refuse("a file that is cut off", "is cut off", c, nil)
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
	if n := arenaOf(t, socket, "other").GetLeases() + arenaOf(t, socket, "ref").GetLeases(); n != 0 {
		t.Errorf("%d holds are left", n)
	}
	if _, err := Read(t.Context(), Config{Path: dir}, good); err == nil || errors.Is(err, os.ErrExist) {
		t.Errorf("a folder as the file: %v", err)
	}
}

// TestReadCancelled: when ctx ends while blocks are held, they are given back and the file is taken away.
func TestReadCancelled(t *testing.T) {
	socket := startDaemon(t)
	e := startEngine(t, socket, "ref", 1)
	res, err := e.Generate(t.Context(), refengine.Request{Tokens: tokensOf(defaultText[:32]), UseCache: true, Commit: true})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	r := &reader{d: Daemon{Keys: res.Keys}, client: pb.NewEngineServiceClient(conn)}
	if err := r.choose(t.Context(), pb.NewRegionServiceClient(conn)); err != nil {
		t.Fatal(err)
	}
	h, err := r.header()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.join(t.Context(), h); err != nil {
		t.Fatal(err)
	}
	defer r.file.Close()
	lease, found, err := r.hold(t.Context(), func(have int) (int, error) { return have, nil })
	if err != nil || found != 2 || arenaOf(t, socket, "ref").GetLeases() != 1 {
		t.Fatalf("%d blocks, %v, %d leases", found, err, arenaOf(t, socket, "ref").GetLeases())
	}

	dir, stop := t.TempDir(), errors.New("stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	rec, err := Config{Path: filepath.Join(dir, "pages.kv")}.begin(h, 2)
	if err != nil {
		t.Fatal(err)
	}
	cancel(stop)
	if s, err := rec.end(r.copy(ctx, lease.GetSlots(), rec)); s != nil || !errors.Is(err, stop) {
		t.Errorf("%+v, %v", s, err)
	}
	if err := r.release(ctx, lease.GetLeaseId()); err != nil || arenaOf(t, socket, "ref").GetLeases() != 0 {
		t.Errorf("%v, %d leases are left", err, arenaOf(t, socket, "ref").GetLeases())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left, %v", left, err)
	}
}
