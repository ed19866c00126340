package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvferry/kvferry/bench/procs"
	"github.com/kvferry/kvferry/bench/refengine"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Region is one daemon with its engine.
type Region struct {
	// Name is the region's id; its only node is Name-1.
	Name string
	// Daemon is a connection to the daemon's unix socket.
	Daemon *grpc.ClientConn

	fleet  *Fleet
	quic   string // where the daemon listens
	relay  string // where peers reach it, through the WAN
	daemon *procs.Process
	engine *procs.Process
	http   *refengine.Client
}

func newRegion(f *Fleet, name string, _ *Config) *Region {
	r := &Region{Name: name, fleet: f}
	r.http = refengine.NewClient(r.engineAddr())
	return r
}

func (r *Region) node() string   { return r.Name + "-1" }
func (r *Region) socket() string { return filepath.Join(r.fleet.Dir, r.Name+".sock") }
func (r *Region) engineAddr() string {
	return "unix://" + filepath.Join(r.fleet.Dir, r.Name+"-engine.sock")
}

func (r *Region) logFile(what string) string {
	return filepath.Join(r.fleet.Dir, r.Name+"-"+what+".log")
}

// EngineID is the engine's id at its daemon. It carries this program's process id: arenas of one host share a directory.
func (r *Region) EngineID() string { return "demo-" + r.Name + "-" + pid() }

// Addr is the daemon's gRPC target.
func (r *Region) Addr() string { return "unix://" + r.socket() }

func (r *Region) peer() *Region {
	if r == r.fleet.East {
		return r.fleet.West
	}
	return r.fleet.East
}

// startDaemon runs kvferryd and waits until it answers.
func (r *Region) startDaemon(ctx context.Context) error {
	path, err := r.fleet.writeConfig(r, r.peer())
	if err != nil {
		return err
	}
	if r.daemon, err = r.fleet.procs.Run(procs.Command{Name: "kvferryd of " + r.Name, Log: r.logFile("kvferryd"), Bin: r.fleet.cfg.Kvferryd, Args: []string{"--config", path}}); err != nil {
		return err
	}
	if r.Daemon == nil {
		if r.Daemon, err = grpc.NewClient(r.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
			return err
		}
	}
	return r.await(ctx, r.daemon, func(ctx context.Context) error {
		_, err := r.Status(ctx)
		return err
	})
}

// startEngine runs the reference engine and waits until it answers.
func (r *Region) startEngine(ctx context.Context, watermark bool) error {
	m, err := r.fleet.cfg.shape()
	if err != nil {
		return err
	}
	shape, err := json.Marshal(m)
	if err != nil {
		return err
	}
	args := []string{"refengine", "--daemon", r.Addr(), "--id", r.EngineID(), "--listen", r.engineAddr(), "--shape", string(shape)}
	if watermark {
		args = append(args, "--watermark", strconv.FormatUint(r.fleet.cfg.Seed+7, 10))
	}
	if r.engine, err = r.fleet.procs.Run(procs.Command{Name: "engine of " + r.Name, Log: r.logFile("engine"), Bin: r.fleet.cfg.Kvferry, Args: args}); err != nil {
		return err
	}
	return r.await(ctx, r.engine, func(ctx context.Context) error {
		_, err := r.http.Status(ctx)
		return err
	})
}

// await polls until ready answers without an error.
func (r *Region) await(ctx context.Context, p *procs.Process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return p.Await(ctx, ready)
}

// Status asks the daemon.
func (r *Region) Status(ctx context.Context) (*pb.StatusResponse, error) {
	return pb.NewRegionServiceClient(r.Daemon).Status(ctx, &pb.StatusRequest{})
}

// Generate runs one turn on the region's engine.
func (r *Region) Generate(ctx context.Context, req refengine.Request) (*refengine.Result, error) {
	res, err := r.http.Generate(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("engine of %s: %w", r.Name, err)
	}
	return res, nil
}

// Forget drops the engine's own cache, so that the next turn reads the arena.
func (r *Region) Forget(ctx context.Context) error { return r.http.Forget(ctx) }

func (r *Region) close() {
	if r.Daemon != nil {
		_ = r.Daemon.Close()
	}
	_ = r.http.Close()
}
