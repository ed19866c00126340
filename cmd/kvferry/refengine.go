package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/refengine"
)

func (a *app) newRefengine() *cobra.Command {
	cfg := refengine.Config{}
	var listen, shape string
	var watermark uint64
	var pace refengine.Pace
	cmd := &cobra.Command{
		Use:   "refengine",
		Short: "Run the reference engine: a small real transformer that uses a daemon",
		Long: `refengine registers with the daemon on this host, keeps its KV in the daemon's arena, and answers turns over HTTP: POST
/generate, GET /status, POST /forget (JSON). With --pace-prefill and --pace-decode it computes nothing and behaves like a GPU of
that speed.

A turn with "migration" (the id that Migrate answers) and "commit" runs beside a hybrid migration of its session: it prefills the blocks that
it is granted, and loads the others as they land.`,
		Example: `  kvferry refengine --daemon unix:///run/kvferry/kvferry.sock --id ref --listen 127.0.0.1:8000
  curl -s localhost:8000/generate -d '{"tokens":[1,2,3],"max_new":8,"use_cache":true}'
  curl -s localhost:8000/generate -d '{"session":"chat-17","tokens":[1,2,3],"max_new":29,"use_cache":true,"commit":true,"publish":true}'
  curl -s localhost:8000/generate -d '{"session":"chat-17","tokens":[1,2,3],"max_new":8,"use_cache":true,"commit":true,"migration":"ID"}'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Addr == "" {
				cfg.Addr = a.addr
			}
			if shape != "" {
				if err := parseShape(shape, &cfg.Model); err != nil {
					return err
				}
			}
			if cmd.Flags().Changed("watermark") {
				cfg.Watermark = &refengine.Watermark{Seed: watermark}
			}
			if cmd.Flags().Changed("pace-prefill") || cmd.Flags().Changed("pace-decode") {
				pace.Seed = cfg.Model.Seed
				cfg.Pace = &pace
			}
			if err := cfg.Validate(); err != nil {
				return usagef("", "values in range; see 'kvferry refengine --help'", "%v", err)
			}
			ctx := cmd.Context()
			e, err := refengine.Open(ctx, cfg)
			if err != nil {
				return err
			}
			defer func() { _ = e.Close() }()
			return refengine.Serve(ctx, listen, e, func(at net.Addr) {
				_, _ = fmt.Fprintf(a.stderr, "refengine %s serves on %s\n", cfg.EngineID, at)
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&cfg.Addr, "daemon", "", "the daemon's socket (default: --addr)")
	fl.StringVar(&cfg.EngineID, "id", "refengine", "engine id")
	fl.StringVar(&listen, "listen", "127.0.0.1:8000", "HTTP address, host:port or unix:///PATH")
	fl.StringVar(&shape, "shape", "", "model shape, JSON; zero fields have small defaults")
	fl.Int64Var(&cfg.ArenaBytes, "arena-bytes", 0, "arena to ask for (default: the daemon's)")
	fl.IntVar(&cfg.World, "world", 1, "tensor-parallel ranks to play")
	fl.Uint64Var(&watermark, "watermark", 0, "perturb committed blocks with this seed (default: do not)")
	fl.Float64Var(&pace.PrefillTokensPerSecond, "pace-prefill", 0, "imitate a GPU: prefill tokens a second")
	fl.Float64Var(&pace.DecodeTokensPerSecond, "pace-decode", 0, "imitate a GPU: decode tokens a second")
	return cmd
}

// parseShape reads the value of --shape, one JSON object, into m.
func parseShape(shape string, m *refengine.ModelConfig) error {
	d := json.NewDecoder(strings.NewReader(shape))
	d.DisallowUnknownFields()
	err := d.Decode(m)
	if err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the JSON object")
		}
	}
	if err != nil {
		return usagef(shape, `JSON such as {"layers":4,"hidden":64,"kv_heads":2,"head_dim":32}`, "--shape: %v", err)
	}
	return nil
}
