package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

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
	daemon *process
	engine *process
	http   *http.Client
}

func newRegion(f *Fleet, name string, _ *Config) *Region {
	r := &Region{Name: name, fleet: f}
	r.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.engineSocket())
	}}}
	return r
}

func (r *Region) node() string         { return r.Name + "-1" }
func (r *Region) socket() string       { return filepath.Join(r.fleet.Dir, r.Name+".sock") }
func (r *Region) engineSocket() string { return filepath.Join(r.fleet.Dir, r.Name+"-engine.sock") }
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
	if r.daemon, err = r.fleet.procs.run("kvferryd of "+r.Name, r.logFile("kvferryd"), r.fleet.cfg.Kvferryd, "--config", path); err != nil {
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
	args := []string{"refengine", "--daemon", r.Addr(), "--id", r.EngineID(), "--listen", "unix://" + r.engineSocket(), "--shape", string(shape)}
	if watermark {
		args = append(args, "--watermark", strconv.FormatUint(r.fleet.cfg.Seed+7, 10))
	}
	if r.engine, err = r.fleet.procs.run("engine of "+r.Name, r.logFile("engine"), r.fleet.cfg.Kvferry, args...); err != nil {
		return err
	}
	return r.await(ctx, r.engine, func(ctx context.Context) error {
		return r.call(ctx, http.MethodGet, "/status", nil, &refengine.Status{})
	})
}

// await polls until ready answers without an error.
func (r *Region) await(ctx context.Context, pr *process, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var last error
	for {
		attempt, done := context.WithTimeout(ctx, time.Second)
		last = ready(attempt)
		done()
		if last == nil {
			return nil
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pr.done:
			timer.Stop()
			return pr.failed()
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("wait for %s: %w (last: %w)", pr.name, context.Cause(ctx), last)
		case <-timer.C:
		}
	}
}

// Status asks the daemon.
func (r *Region) Status(ctx context.Context) (*pb.StatusResponse, error) {
	return pb.NewRegionServiceClient(r.Daemon).Status(ctx, &pb.StatusRequest{})
}

// Generate runs one turn on the region's engine.
func (r *Region) Generate(ctx context.Context, req refengine.Request) (*refengine.Result, error) {
	var res refengine.Result
	if err := r.call(ctx, http.MethodPost, "/generate", req, &res); err != nil {
		return nil, fmt.Errorf("engine of %s: %w", r.Name, err)
	}
	return &res, nil
}

// Forget drops the engine's own cache, so that the next turn reads the arena.
func (r *Region) Forget(ctx context.Context) error {
	return r.call(ctx, http.MethodPost, "/forget", struct{}{}, &struct{}{})
}

func (r *Region) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body)
	if err != nil {
		return err
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		var fail struct {
			Error string `json:"error"`
		}
		if json.Unmarshal(data, &fail) == nil && fail.Error != "" {
			return errors.New(fail.Error)
		}
		return fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return json.Unmarshal(data, out)
}

func (r *Region) close() {
	if r.Daemon != nil {
		_ = r.Daemon.Close()
	}
	r.http.CloseIdleConnections()
}
