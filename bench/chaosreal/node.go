package chaosreal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvferry/kvferry/bench/procs"
	"github.com/kvferry/kvferry/bench/refengine"
	"github.com/kvferry/kvferry/internal/daemon"
	"github.com/kvferry/kvferry/kvstore"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// node is one daemon and its engine.
type node struct {
	f           *fleet
	index       int
	name        string
	quic, admin string
	peers       [nodeCount]string // relays to the others
	conn        *grpc.ClientConn
	move        pb.MigrationServiceClient
	status      pb.RegionServiceClient
	engine      *refengine.Client

	life sync.Mutex // held while a process of it starts, ends or is frozen
	turn sync.Mutex // a turn of the engine, and damage to its arena, exclude each other

	mu struct {
		sync.Mutex
		daemon, engine *child
		starts         int             // of the daemon
		damaged        map[uint32]bool // slots that were written over
		broken         bool            // the arena's file was truncated or removed
		ended          []string        // ends of processes that nobody asked for
		mounted        bool
	}
}

// child is a process with what is expected of it.
type child struct {
	*procs.Process
	frozen   bool // guarded by the node's lock
	expected bool // somebody ended it; guarded by the node's lock
	mayDie   bool // its own faults may end it
}

// shape of the engines' KV: 8 KiB pages, 64 KiB blocks.
var shape = refengine.ModelConfig{Layers: 8, Hidden: 64, KVHeads: 2, HeadDim: 64, FFN: 128, Vocab: 512, MaxTokens: 4096, BlockTokens: blockTokens, Seed: 5}

const (
	blockTokens  = 16
	prefillSpeed = 1000 // tokens a second: on the run's path a fetch is the faster way
	decodeSpeed  = 1e6
	arenaSlots   = 512
)

func layout() kvstore.Layout {
	return kvstore.Layout{Kind: kvstore.KindGQA, DType: kvstore.DTypeBF16, Layers: shape.Layers, KVHeads: shape.KVHeads, HeadDim: shape.HeadDim, BlockTokens: blockTokens}
}

func newNode(f *fleet, index int, quic, admin string) *node {
	n := &node{f: f, index: index, name: string(rune('a' + index)), quic: quic, admin: admin}
	n.mu.damaged = map[uint32]bool{}
	n.engine = refengine.NewClient(n.engineAddr())
	return n
}

func (n *node) region() string     { return "r-" + n.name }
func (n *node) socket() string     { return n.f.path(n.name + ".sock") }
func (n *node) engineSock() string { return n.f.path(n.name + "-engine.sock") }
func (n *node) engineAddr() string { return "unix://" + n.engineSock() }
func (n *node) stateDir() string   { return n.f.path(n.name + "-state") }
func (n *node) arenaDir() string   { return filepath.Join(n.f.arenas, n.name) }
func (n *node) daemonLog() string  { return n.f.path(n.name + "-kvferryd.log") }
func (n *node) faultsLog() string  { return n.f.path(n.name + "-faults.log") }

const engineID = "e"

// prepare makes folders and the client.
func (n *node) prepare() (err error) {
	if err := errors.Join(os.Mkdir(n.arenaDir(), 0o755), os.Mkdir(n.stateDir(), 0o700)); err != nil {
		return err
	}
	if n.f.opt.stateMount {
		if err := mountSmall(n.stateDir()); err != nil {
			return err
		}
		n.mu.mounted = true
	}
	fast := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.2, MaxDelay: 200 * time.Millisecond}, MinConnectTimeout: time.Second}
	n.conn, err = grpc.NewClient("unix://"+n.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(fast))
	if err != nil {
		return err
	}
	n.move, n.status = pb.NewMigrationServiceClient(n.conn), pb.NewRegionServiceClient(n.conn)
	return nil
}

func (n *node) unmount() error {
	if !n.mu.mounted {
		return nil
	}
	n.mu.mounted = false
	return unmountSmall(n.stateDir())
}

// config writes the daemon's file.
func (n *node) config() (string, error) {
	lock, gpu := false, false
	f := n.f
	cfg := daemon.Config{
		Node:   daemon.NodeConfig{ID: n.name, Region: n.region()},
		Listen: daemon.ListenConfig{Unix: n.socket(), GRPC: "off", Admin: n.admin, Pprof: true, QUIC: n.quic},
		TLS:    daemon.TLSConfig{CA: f.path("ca.crt"), Cert: f.path(n.name + ".crt"), Key: f.path(n.name + ".key")},
		Arena:  daemon.ArenaConfig{Dir: n.arenaDir(), Bytes: arenaSlots * layout().Stride(), Lock: &lock},
		Link:   daemon.LinkConfig{ConnectTimeout: connectTimeout, ProgressTimeout: progressTimeout},
		Migration: daemon.MigrationConfig{
			Deadline: moveDeadline, LeaseTTL: leaseTTL, CallTimeout: callTimeout,
		},
		GPU:      daemon.GPUConfig{Enabled: &gpu},
		StateDir: n.stateDir(),
		LogLevel: "debug",
	}
	for j, relay := range n.peers {
		if relay != "" {
			peer := f.nodes[j]
			cfg.Peers = append(cfg.Peers, daemon.PeerConfig{Node: peer.name, Region: peer.region(), Address: relay, PriorBps: 0.9 * f.opt.wan.Rate})
		}
	}
	data, err := cfg.WithDefaults().YAML()
	if err != nil {
		return "", err
	}
	path := f.path(n.name + ".yaml")
	return path, os.WriteFile(path, data, 0o600)
}

// watch notes when a process ends that nobody ended. A daemon that ends itself is started again, as a supervisor would.
func (n *node) watch(c *child) {
	n.f.wg.Go(func() { // ends with the process
		<-c.Done()
		n.mu.Lock()
		own := !c.expected && c.mayDie && killedItself(c.Err())
		if !c.expected && !own && !(c == n.mu.engine && n.mu.broken) {
			n.mu.ended = append(n.mu.ended, fmt.Sprintf("%s ended by itself: %v", c.Name(), c.Err()))
		}
		n.mu.Unlock()
		if own && n.f.ctx.Err() == nil {
			pause(n.f.ctx, 200*time.Millisecond)
			_ = n.startDaemon(n.f.ctx, "") // or when all is healed
		}
	})
}

// startDaemon runs kvferryd, with faults of its own, and waits until it answers. One that runs is left alone.
func (n *node) startDaemon(ctx context.Context, faults string) error {
	n.life.Lock()
	defer n.life.Unlock()
	if alive(n.current().daemon) {
		return nil
	}
	path, err := n.config()
	if err != nil {
		return err
	}
	cmd := procs.Command{Name: "kvferryd " + n.name, Log: n.daemonLog(), Bin: n.f.cfg.Kvferryd, Args: []string{"--config", path}, Orphan: syscall.SIGKILL}
	if faults != "" {
		cmd.Env = []string{"KVFERRY_FAULTS=" + faults, "KVFERRY_FAULTS_LOG=" + n.faultsLog()}
	}
	p, err := n.f.procs.Run(cmd)
	if err != nil {
		return err
	}
	c := &child{Process: p, mayDie: faults != ""}
	n.watch(c)
	n.mu.Lock()
	n.mu.daemon = c
	n.mu.starts++
	n.mu.Unlock()
	return n.await(ctx, c, n.answers)
}

// startEngine runs the reference engine and waits until it answers. One that runs is left alone. As a supervisor does it starts one again
// that ended because its daemon went meanwhile.
func (n *node) startEngine(ctx context.Context) error {
	for {
		err := n.tryEngine(ctx)
		if err == nil || alive(n.current().engine) || ctx.Err() != nil || n.answers(ctx) == nil {
			return err
		}
		if err := n.await(ctx, nil, n.answers); err != nil {
			return err
		}
	}
}

// answers asks the daemon for a sign of life.
func (n *node) answers(ctx context.Context) error {
	_, err := n.status.Status(ctx, &pb.StatusRequest{})
	return err
}

func (n *node) tryEngine(ctx context.Context) error {
	n.life.Lock()
	defer n.life.Unlock()
	if alive(n.current().engine) {
		return nil
	}
	_ = os.Remove(n.engineSock()) // of one that was killed
	m, err := json.Marshal(shape)
	if err != nil {
		return err
	}
	p, err := n.f.procs.Run(procs.Command{
		Name: "engine " + n.name, Log: n.f.path(n.name + "-engine.log"), Bin: n.f.cfg.Kvferry, Orphan: syscall.SIGKILL,
		Args: []string{
			"refengine", "--daemon", "unix://" + n.socket(), "--id", engineID, "--listen", n.engineAddr(), "--shape", string(m),
			"--pace-prefill", strconv.Itoa(prefillSpeed), "--pace-decode", strconv.Itoa(decodeSpeed),
		},
	})
	if err != nil {
		return err
	}
	c := &child{Process: p, expected: true} // while it starts it may end for want of a daemon
	n.watch(c)
	n.mu.Lock()
	n.mu.engine = c
	n.mu.broken = false
	n.mu.Unlock()
	err = n.await(ctx, c, func(ctx context.Context) error {
		_, err := n.engine.Status(ctx)
		return err
	})
	if err == nil {
		n.mu.Lock()
		c.expected = false
		n.mu.Unlock()
	}
	return err
}

// await waits until ready answers, or the process has ended; nil for any.
func (n *node) await(ctx context.Context, c *child, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if c != nil {
		return c.Await(ctx, ready)
	}
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for node %s: %w", n.name, err)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// current is the node's processes.
func (n *node) current() (now struct{ daemon, engine *child }) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now.daemon, now.engine = n.mu.daemon, n.mu.engine
	return now
}

// starts counts the daemon's.
func (n *node) starts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.starts
}

func alive(c *child) bool {
	if c == nil {
		return false
	}
	select {
	case <-c.Done():
		return false
	default:
		return true
	}
}

// end has a process end by how, which it must not be blamed for. False: it was not there.
func (n *node) end(c *child, how func(*child) error) (bool, error) {
	n.life.Lock()
	defer n.life.Unlock()
	if !alive(c) {
		return false, nil
	}
	n.mu.Lock()
	c.expected = true
	n.mu.Unlock()
	return true, how(c)
}

func kill(c *child) error { c.Kill(); return nil }

// stop asks the process to end, which must end well.
func stop(c *child) error {
	if err := c.Stop(); err != nil {
		return err
	}
	if err := c.Err(); err != nil && !(c.mayDie && killedItself(err)) {
		return c.Failed()
	}
	return nil
}

// freeze stops a process in its tracks; thaw has it go on.
func (n *node) freeze(c *child) bool { return n.signal(c, syscall.SIGSTOP, true) }
func (n *node) thaw(c *child) bool   { return n.signal(c, syscall.SIGCONT, false) }

func (n *node) signal(c *child, s syscall.Signal, frozen bool) bool {
	n.life.Lock()
	defer n.life.Unlock()
	if !alive(c) {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	c.frozen = frozen
	c.Signal(s)
	return true
}

// close ends the clients.
func (n *node) close() {
	n.mu.Lock()
	for _, c := range []*child{n.mu.daemon, n.mu.engine} {
		if c != nil {
			c.expected = true
		}
	}
	n.mu.Unlock()
	if n.conn != nil {
		_ = n.conn.Close()
	}
	_ = n.engine.Close()
}

// killedItself says that a process ended by SIGKILL.
func killedItself(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	w, ok := exit.Sys().(syscall.WaitStatus)
	return ok && w.Signaled() && w.Signal() == syscall.SIGKILL
}

// mend has both processes run and the engine attached: those that are gone are started, an engine whose arena was hit registers
// again by a start of its own, and, where clean is set, a daemon that still has faults of its own is started without.
func (n *node) mend(ctx context.Context, clean bool) error {
	now := n.current()
	if clean && alive(now.daemon) && now.daemon.mayDie {
		if _, err := n.end(now.daemon, stop); err != nil {
			return err
		}
	}
	if err := n.startDaemon(ctx, ""); err != nil {
		return err
	}
	n.mu.Lock()
	broken := n.mu.broken
	n.mu.Unlock()
	if st, err := n.status.Status(ctx, &pb.StatusRequest{}); err == nil {
		for _, a := range st.GetArenas() {
			broken = broken || a.GetBroken()
		}
	}
	if broken {
		if _, err := n.end(now.engine, kill); err != nil {
			return err
		}
	}
	return errors.Join(n.startEngine(ctx), n.attached(ctx))
}

// attached waits until the daemon and the engine know of each other.
func (n *node) attached(ctx context.Context) error {
	return n.await(ctx, nil, func(ctx context.Context) error {
		st, err := n.status.Status(ctx, &pb.StatusRequest{})
		if err != nil {
			return err
		}
		es, err := n.engine.Status(ctx)
		switch {
		case err != nil:
			return err
		case len(st.GetArenas()) != 1 || st.GetArenas()[0].GetBroken():
			return fmt.Errorf("the daemon has arenas %v", st.GetArenas())
		case es.ArenaPath != st.GetArenas()[0].GetPath() || !es.Counters.EventsAttached:
			return fmt.Errorf("the engine is not attached: %s", es.Counters.EventsError)
		}
		return nil
	})
}

// frozen says that the daemon can't answer because it was stopped in its tracks.
func (n *node) frozen() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.daemon != nil && n.mu.daemon.frozen
}
