// Command kvferryd is the kvferry daemon: one a node.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/internal/daemon"
)

// version is stamped by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "kvferryd:", err)
	var usage *usageError
	if errors.As(err, &usage) {
		os.Exit(2)
	}
	os.Exit(1)
}

// usageError is a bad flag or configuration: exit status 2.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func command() *cobra.Command {
	var file string
	var print bool
	var peers []string
	var over daemon.Config
	cmd := &cobra.Command{
		Use:   "kvferryd",
		Short: "Move KV cache sessions between regions, or say why not",
		Long: `kvferryd is one node. Local engines register over the unix socket; peers pull over QUIC; proxies and operators call
gRPC with mutual TLS. Settings come from a YAML file (--config), then from flags.

Exit status: 0 stopped by a signal, 1 failed, 2 bad flag or configuration.`,
		Example: `  kvferry certs init --dir certs && kvferry certs issue --dir certs --region eu --node eu-1
  kvferryd --node eu-1 --region eu --ca certs/ca.crt --cert certs/eu-1.crt --key certs/eu-1.key \
           --peer us-1@us=us-1.example:7441
  kvferryd --config /etc/kvferry/kvferryd.yaml --print-config`,
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true, Version: version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(file, over, peers)
			if err != nil {
				return &usageError{err}
			}
			if print {
				out, err := cfg.YAML()
				if err == nil {
					_, err = cmd.OutOrStdout().Write(out)
				}
				return err
			}
			return run(cmd.Context(), cfg)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error {
		return &usageError{fmt.Errorf("%w; see kvferryd --help", err)}
	})
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "YAML file; unknown keys are errors")
	f.BoolVar(&print, "print-config", false, "print the effective configuration and exit")
	f.StringVar(&over.Node.ID, "node", "", "node id (node.id)")
	f.StringVar(&over.Node.Region, "region", "", "region id (node.region)")
	f.StringVar(&over.Listen.Unix, "unix", "", "socket for engines (listen.unix)")
	f.StringVar(&over.Listen.GRPC, "grpc", "", `address for proxies and operators, or "off" (listen.grpc)`)
	f.StringVar(&over.Listen.QUIC, "quic", "", "UDP address for peers (listen.quic)")
	f.StringVar(&over.Listen.Admin, "admin", "", `HTTP address of /metrics, /healthz, /readyz, or "off" (listen.admin)`)
	f.StringVar(&over.TLS.CA, "ca", "", "CA certificate, PEM (tls.ca)")
	f.StringVar(&over.TLS.Cert, "cert", "", "node certificate, PEM (tls.cert)")
	f.StringVar(&over.TLS.Key, "key", "", "node key, PEM (tls.key)")
	f.BoolVar(&over.Shadow, "shadow", false, "plan and log migrations, move nothing (shadow)")
	f.StringVar(&over.StateDir, "state-dir", "", "directory of the session directory (state_dir)")
	f.StringVar(&over.Arena.Dir, "arena-dir", "", "memory filesystem for arenas (arena.dir)")
	f.StringVar(&over.LogLevel, "log-level", "", "debug, info, warn or error (log_level)")
	f.StringArrayVar(&peers, "peer", nil, "a peer as node@region=host:port; repeatable, added to peers")
	return cmd
}

// load joins file and flags, fills defaults and validates.
func load(file string, over daemon.Config, peers []string) (daemon.Config, error) {
	var cfg daemon.Config
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return cfg, fmt.Errorf("read --config: %w", err)
		}
		if cfg, err = daemon.ParseConfig(data); err != nil {
			return cfg, fmt.Errorf("%s: %w", file, err)
		}
	}
	cfg = cfg.Override(over)
	for _, p := range peers {
		id, addr, ok := strings.Cut(p, "=")
		node, region, ok2 := strings.Cut(id, "@")
		if !ok || !ok2 {
			return cfg, fmt.Errorf("--peer %q must be node@region=host:port", p)
		}
		cfg.Peers = append(cfg.Peers, daemon.PeerConfig{Node: node, Region: region, Address: addr})
	}
	cfg = cfg.WithDefaults()
	return cfg, cfg.Validate()
}

// run serves until ctx ends.
func run(ctx context.Context, cfg daemon.Config) error {
	again := make(chan os.Signal, 1) // one that waits is as good as many
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: cfg.Level()}))
	d, err := daemon.Open(cfg, daemon.Parts{Log: log, Version: version})
	if err != nil {
		var bad *daemon.ConfigError
		if errors.As(err, &bad) {
			return &usageError{err}
		}
		return err
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-again:
			_ = d.Reload() // logged
		}
	}
	log.LogAttrs(ctx, slog.LevelInfo, "stopping")
	return d.Close()
}
