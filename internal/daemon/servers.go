package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// servers are the daemon's listeners and what serves them.
type servers struct {
	local, remote *grpc.Server
	admin         *http.Server
	health        *health.Server
	wg            sync.WaitGroup
}

// maxMessage bounds a gRPC message: a session of a million tokens has 65,536 keys of 64 bytes.
const maxMessage = 16 << 20

// serve opens the listeners that parts lacks and serves them all.
func (d *Daemon) serve(parts Parts) (_ *servers, err error) {
	var opened []net.Listener
	defer func() {
		if err != nil {
			for _, l := range opened {
				_ = l.Close()
			}
		}
	}()
	open := func(given net.Listener, name, network, addr string) (net.Listener, error) {
		if given != nil || addr == off {
			return given, nil
		}
		l, err := net.Listen(network, addr)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", name, err)
		}
		opened = append(opened, l)
		return l, nil
	}
	if parts.Local == nil {
		if err := prepareSocket(d.cfg.Listen.Unix); err != nil {
			return nil, err
		}
	}
	if parts.Local, err = open(parts.Local, "listen.unix", "unix", d.cfg.Listen.Unix); err != nil {
		return nil, err
	}
	if l, ok := parts.Local.(*net.UnixListener); ok && len(opened) > 0 {
		if err := restrictSocket(l.Addr().String(), d.cfg.Arena.Group); err != nil {
			return nil, err
		}
	}
	if parts.Remote, err = open(parts.Remote, "listen.grpc", "tcp", d.cfg.Listen.GRPC); err != nil {
		return nil, err
	}
	if parts.Admin, err = open(parts.Admin, "listen.admin", "tcp", d.cfg.Listen.Admin); err != nil {
		return nil, err
	}
	s := &servers{health: health.NewServer()}
	s.local = d.grpcServer(s.health, localCreds{}, true)
	s.run(d, "local gRPC", func() error { return s.local.Serve(d.bounded(parts.Local, "unix", maxConns, 0)) })
	if parts.Remote != nil {
		s.remote = d.grpcServer(s.health, credentials.NewTLS(d.remoteTLS(parts.TLS)), false)
		s.run(d, "remote gRPC", func() error { return s.remote.Serve(d.bounded(parts.Remote, "grpc", maxConns, maxConnsAddr)) })
	}
	if parts.Admin != nil {
		s.admin = adminServer(d.adminHandler())
		s.run(d, "admin HTTP", func() error { return s.admin.Serve(d.bounded(parts.Admin, "admin", maxAdminConns, 0)) })
	}
	return s, nil
}

// run serves on a goroutine that close waits for.
func (s *servers) run(d *Daemon, name string, serve func() error) {
	s.wg.Go(func() {
		if err := serve(); err != nil && !errors.Is(err, grpc.ErrServerStopped) && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			d.log.LogAttrs(context.Background(), slog.LevelError, "server ended", slog.String("server", name), slog.Any("error", err))
		}
	})
}

// close gives calls in flight a moment, then cuts them.
func (s *servers) close() {
	s.health.Shutdown()
	stopped := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		s.local.GracefulStop()
		if s.remote != nil {
			s.remote.GracefulStop()
		}
		close(stopped)
	})
	timer := time.NewTimer(time.Second)
	select {
	case <-stopped:
	case <-timer.C:
		s.local.Stop()
		if s.remote != nil {
			s.remote.Stop()
		}
	}
	timer.Stop()
	wg.Wait()
	if s.admin != nil {
		_ = s.admin.Close()
	}
	s.wg.Wait()
}

func (d *Daemon) grpcServer(h *health.Server, creds credentials.TransportCredentials, local bool) *grpc.Server {
	codec := newLenientCodec()
	options := append(grpcLimits(), grpc.Creds(creds), grpc.ForceServerCodecV2(codec),
		grpc.ChainUnaryInterceptor(d.unaryErrors), grpc.ChainStreamInterceptor(d.streamErrors))
	if local {
		options = append(options, grpc.ChainUnaryInterceptor(d.localUnary), grpc.ChainStreamInterceptor(d.localStream))
	}
	srv, services := grpc.NewServer(options...), registrar{codec: codec}
	services.ServiceRegistrar = srv
	if local {
		pb.RegisterEngineServiceServer(services, &engineService{d: d})
	}
	pb.RegisterMigrationServiceServer(services, &migrationService{d: d})
	pb.RegisterPlannerServiceServer(services, plannerService{d: d})
	pb.RegisterRegionServiceServer(services, &regionService{d: d})
	healthpb.RegisterHealthServer(srv, h)
	reflection.Register(srv)
	return srv
}

// unaryErrors and streamErrors give every error its status and details, and keep a panic in one call from ending the
// daemon: the call fails, the stack is logged.
func (d *Daemon) unaryErrors(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = d.panicked(ctx, info.FullMethod, r)
		}
		err = toStatus(err)
	}()
	return handler(ctx, req)
}

func (d *Daemon) streamErrors(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = d.panicked(stream.Context(), info.FullMethod, r)
		}
		err = toStatus(err)
	}()
	return handler(srv, stream)
}

// panicked logs the stack of a call that panicked and returns what its caller is told.
func (d *Daemon) panicked(ctx context.Context, call string, r any) error {
	d.log.LogAttrs(ctx, slog.LevelError, "call panicked", slog.String("call", call), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
	return failf(ReasonInternal, "report this, with the daemon's log", "BUG: %s panicked: %v", call, r)
}

// prepareSocket makes the socket's directory and removes a socket that nobody answers on.
func prepareSocket(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create directory of listen.unix: %w", err)
	}
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return &ConfigError{"listen.unix", path, "a path that no running daemon uses"}
	}
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove stale socket: %w", err)
		}
	}
	return nil
}

// restrictSocket lets the owner and the group connect.
func restrictSocket(path string, group int) error {
	if err := os.Chmod(path, 0o660); err != nil {
		return fmt.Errorf("restrict listen.unix: %w", err)
	}
	if group != 0 {
		if err := os.Chown(path, -1, group); err != nil {
			return fmt.Errorf("give listen.unix to group %d: %w", group, err)
		}
	}
	return nil
}

// adminHandler serves metrics and health.
func (d *Daemon) adminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 8}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-d.closing:
			http.Error(w, "shutting down", http.StatusServiceUnavailable)
		default:
			_, _ = fmt.Fprintln(w, "ok")
		}
	})
	if d.cfg.Listen.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	}
	return mux
}
