package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/compare"
	"github.com/kvferry/kvferry/bench/results"
)

// compareFlags are the flags of bench compare.
type compareFlags struct {
	cfg                  compare.Config
	page, warmup, rounds int64
	out                  string
}

func (a *app) newBenchCompare(b *benchFlags) *cobra.Command {
	var c compareFlags
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Measure kvferry beside stock quic-go, TCP with TLS, HTTP/2 and gRPC, on this machine",
		Long: `compare moves the same seeded pages by several ways over loopback: kvferry, stock quic-go with 1 and 8 connections, TCP with
TLS 1.3, HTTP/2, and a gRPC stream. Each way has a process for its source and one for its destination. All of them use the same
certificates (mutual TLS) and verify a checksum a page before it takes its place, as kvferry does.

Rounds are interleaved: every way has its turn in each, and the first is another one each time. The tables give, for each way, goodput
(median, lowest, highest of the rounds) and processor seconds a GB at source and at destination; then kvferry's numbers over
the others', taken within each round, beside what they should be.

quic-go-memory is the floor: quic-go over in-memory connections, both ends in one process, so QUIC without a system call. What
kvferry takes beyond its processor time is sockets, scheduling and the kernel.

Loopback has no delay and no loss: processors set every number here, and the column Limit says so. For a real or a model link use
bench goodput. With --profile the profiles say where the time goes: go tool pprof -top DIR/kvferry-source.pprof`,
		Example: `  kvferry bench compare
  kvferry bench compare --bytes 1GiB --repeats 9 --save compare.json --out compare.svg
  kvferry bench compare --peers kvferry,tcp-tls --profile profiles/
  kvferry bench compare -o json | jq '.results[] | {name, gbps_median}'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchCompare(cmd, b, &c) },
	}
	fl := cmd.Flags()
	names := compare.Names()
	fl.StringSliceVar(&c.cfg.Peers, "peers", names, "the ways to compare, kvferry among them")
	fl.Var(newBytes(&c.cfg.Bytes, 256<<20, 1, 16<<30), "bytes", "bytes a transfer; each process of a way holds as much, at rest too")
	fl.Var(newBytes(&c.page, 64<<10, 4<<10, 1<<20), "page", "bytes a page, a power of two")
	fl.Var(newCount(&c.warmup, 1, 0, 100), "warmup", "rounds that are not counted; the first has cold connections")
	fl.Var(newCount(&c.rounds, 5, 1, 1000), "repeats", "rounds that are measured; fewer than 4 a side can show no difference with --diff")
	fl.Uint64Var(&c.cfg.Seed, "seed", 0, "of the bytes")
	fl.StringVar(&c.cfg.ProfileDir, "profile", "", "write a processor profile of each process to this folder")
	fl.StringVar(&c.out, "out", "", "draw goodput over processor time to this file, .svg or .png")
	complete(cmd, "peers", names...)
	return cmd
}

// newBenchCompareEnd is one end of bench compare: it starts them.
func (a *app) newBenchCompareEnd() *cobra.Command {
	return &cobra.Command{
		Use:    "compare-end",
		Short:  "One end of bench compare, which starts it and talks to it",
		Args:   noArgs,
		Hidden: true,
		RunE:   func(*cobra.Command, []string) error { return compare.ServeEnd(os.Stdin, a.stdout) },
	}
}

func (a *app) benchCompare(cmd *cobra.Command, b *benchFlags, c *compareFlags) error {
	if err := c.check(); err != nil {
		return err
	}
	if err := b.begin(); err != nil {
		return err
	}
	ctx := cmd.Context()
	bar := b.progress()
	c.cfg.Progress = showCompare(bar)
	res, err := compare.Run(ctx, c.cfg)
	if err = errors.Join(err, bar.Close()); err != nil {
		return err
	}
	f, err := res.File(benchCommand(cmd))
	if errors.Is(err, compare.ErrNothing) && ctx.Err() != nil {
		return interrupted("before a round was measured")
	}
	if err != nil {
		return err
	}
	f.Versions["kvferry"] = version
	if c.out != "" {
		err = drawTo(c.out, res.Plot())
	}
	return errors.Join(err, b.end(ctx, f, res.Tables()...))
}

// check moves the flags to the configuration and refuses what cannot be, before anything is measured.
func (c *compareFlags) check() error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	c.cfg.Command = []string{self, "bench", "compare-end"}
	c.cfg.PageBytes, c.cfg.Repeats, c.cfg.Warmup = int(c.page), int(c.rounds), int(c.warmup)
	if c.warmup == 0 {
		c.cfg.Warmup = -1
	}
	err = c.cfg.Validate()
	if in, ok := errors.AsType[*compare.InputError](err); ok {
		return usagef(in.Value, in.Allowed, "%v", err)
	}
	if err != nil {
		return err
	}
	if dir := c.cfg.ProfileDir; dir != "" {
		if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
			return usagef(dir, "a folder that exists", "--profile: the folder %s is not there", strings.TrimSpace(dir))
		}
	}
	return checkPicture(c.out)
}

// showCompare turns progress into one bar over all transfers, and a line a turn.
func showCompare(bar *results.Progress) func(compare.Progress) {
	var stage string
	var done int64
	return func(p compare.Progress) {
		if stage == "" {
			bar.Stage("compare", float64(p.Total))
		}
		if p.Stage != stage {
			stage = p.Stage
			bar.Say("%s", stage)
		}
		bar.Add(float64(p.Done - done))
		done = p.Done
	}
}
