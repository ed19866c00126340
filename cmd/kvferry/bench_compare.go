package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kvferry/kvferry/bench/compare"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/bench/wanns"
)

// compareFlags are the flags of bench compare.
type compareFlags struct {
	cfg                  compare.Config
	page, warmup, rounds int64
	out                  string
	links                []string
	limit                time.Duration
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

Loopback has no delay and no loss: processors set every number here, and the column Limit says so. With --profile the profiles say
where the time goes: go tool pprof -top DIR/kvferry-source-*.pprof

With --wan, once for each link, it compares over emulated links instead, which takes Linux and root: kvferry, kernel TCP with BBR and
with CUBIC, and rsync over ssh (where rsync, ssh and sshd are installed) between two network namespaces that carry every IPv4 packet.
Each way is measured over fresh connections (cold) and once more over the same ones (warm), as shares of the link's rate. The
machine is also the link: stay at or below 500 Mbit/s, and believe its warnings.`,
		Example: `  kvferry bench compare
  kvferry bench compare --bytes 1GiB --repeats 9 --save compare.json --out compare.svg
  kvferry bench compare --peers kvferry,tcp-tls --profile profiles/
  kvferry bench compare -o json | jq '.results[] | {name, gbps_median}'
  sudo kvferry bench compare --wan rtt=70ms,rate=200Mbps,loss=0 --wan rtt=70ms,rate=200Mbps,loss=1e-3 --repeats 3`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.benchCompare(cmd, b, &c) },
	}
	fl := cmd.Flags()
	names := compare.Names()
	fl.StringSliceVar(&c.cfg.Peers, "peers", nil, "the ways to compare, kvferry among them: "+strings.Join(names, ", ")+"; with --wan: "+strings.Join(compare.WANNames(), ", ")+" (default: all)")
	fl.Var(newBytes(&c.cfg.Bytes, 256<<20, 1, 16<<30), "bytes", "bytes a transfer; each process of a way holds as much, at rest too")
	fl.Var(newBytes(&c.page, 64<<10, 4<<10, 1<<20), "page", "bytes a page, a power of two")
	fl.Var(newCount(&c.warmup, 1, 0, 100), "warmup", "rounds that are not counted; the first has cold connections")
	fl.Var(newCount(&c.rounds, 6, 1, 1000), "repeats", "rounds that are measured; with fewer than 6 a side --diff shows no difference once several figures are compared")
	fl.Uint64Var(&c.cfg.Seed, "seed", 0, "of the bytes")
	fl.StringVar(&c.cfg.ProfileDir, "profile", "", "write a processor profile of each process and transfer to this folder")
	fl.StringVar(&c.out, "out", "", "draw goodput over processor time to this file, .svg or .png")
	fl.StringArrayVar(&c.links, "wan", nil, "compare over this emulated link, as rtt=70ms,rate=200Mbps,loss=1e-3; may be given several times")
	fl.Var(newDuration(&c.limit, 30*time.Second, time.Second), "limit", "cut a transfer short after so long, and count what has landed; with --wan")
	complete(cmd, "peers", append(names, compare.WANNames()[1:]...)...)
	complete(cmd, "wan", "rtt=70ms,rate=200Mbps,loss=0")
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
	wanCfg, err := c.check(cmd)
	if err != nil {
		return err
	}
	if err := b.begin(results.KindCompare); err != nil {
		return err
	}
	ctx := cmd.Context()
	bar := b.progress()
	var res interface {
		File([]string) (*results.File, error)
		Tables() []*results.Table
	}
	var local *compare.Result // with the plot
	if wanCfg != nil {
		wanCfg.Progress = showCompare(bar)
		res, err = compare.RunWAN(ctx, *wanCfg)
	} else {
		c.cfg.Progress = showCompare(bar)
		local, err = compare.Run(ctx, c.cfg)
		res = local
	}
	if err = errors.Join(err, bar.Close()); err != nil {
		return compareFault(err)
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
		err = drawTo(c.out, local.Plot())
	}
	return errors.Join(err, b.end(ctx, f, res.Tables()...))
}

// compareFault gives errors of the system their exit codes.
func compareFault(err error) error {
	for _, cause := range []error{wanns.ErrNotPermitted, wanns.ErrNoTUN, wanns.ErrUnsupported} {
		if errors.Is(err, cause) {
			return &fault{Code: exitRefused, Reason: "REFUSED", Message: err.Error(), Fix: "compare on loopback, without --wan, which needs no rights; or sudo kvferry bench compare --wan ..."}
		}
	}
	return err
}

// check moves the flags to the configuration and refuses what cannot be, before anything is measured. With --wan it returns that
// form's.
func (c *compareFlags) check(cmd *cobra.Command) (*compare.WANConfig, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	c.cfg.Command = []string{self, "bench", "compare-end"}
	c.cfg.PageBytes, c.cfg.Repeats, c.cfg.Warmup = int(c.page), int(c.rounds), int(c.warmup)
	if c.warmup == 0 {
		c.cfg.Warmup = -1
	}
	if len(c.links) > 0 {
		return c.checkWAN(cmd)
	}
	if cmd.Flags().Changed("limit") {
		return nil, usagef("", "--limit beside --wan", "--limit has no meaning on loopback")
	}
	if err := compareUsage(c.cfg.Validate()); err != nil {
		return nil, err
	}
	if dir := c.cfg.ProfileDir; dir != "" {
		if fi, err := os.Stat(dir); err != nil || !fi.IsDir() {
			return nil, usagef(dir, "a folder that exists", "--profile: the folder %s is not there", dir)
		}
	}
	return nil, checkPicture(c.out)
}

func (c *compareFlags) checkWAN(cmd *cobra.Command) (*compare.WANConfig, error) {
	if err := meaningless(cmd, "with --wan", "warmup", "profile", "out"); err != nil {
		return nil, err
	}
	out := &compare.WANConfig{Command: c.cfg.Command, Peers: c.cfg.Peers, Bytes: c.cfg.Bytes, PageBytes: c.cfg.PageBytes, Repeats: c.cfg.Repeats, Limit: c.limit, Seed: c.cfg.Seed}
	for _, text := range c.links {
		m, err := wan.Parse(text)
		if err != nil {
			return nil, usagef(text, "key=value pairs such as rtt=70ms,rate=200Mbps,loss=0", "--wan: %v", err)
		}
		out.Links = append(out.Links, m)
	}
	return out, compareUsage(out.Validate())
}

// compareUsage makes a fault of the configuration one of usage.
func compareUsage(err error) error {
	if in, ok := errors.AsType[*compare.InputError](err); ok {
		return usagef(in.Value, in.Allowed, "%v", err)
	}
	return err
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
