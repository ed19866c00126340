package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kvferry/kvferry/bench/goodput"
	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

// goodputFlags are the flags of bench goodput.
type goodputFlags struct {
	link, sourceAddr, source string
	bytes, page, pages       int64
	stripes                  []int
	codec                    string
	warmup, repeats          int64
	cold, yes                bool
	class                    string
	cut                      time.Duration
	maxRate, linkRate        float64
	seed                     uint64
}

func (a *app) newBenchGoodput(b *benchFlags) *cobra.Command {
	var g goodputFlags
	cmd := &cobra.Command{
		Use:   "goodput",
		Short: "Measure what a link gives to pages: goodput, ramp, latency, loss, processor time at both ends",
		Long: `goodput moves seeded pages and measures, in one of two forms.

With --wan it is self-contained: two agents in this process over a model of the link, in real time. Several --stripes are
compared in turns; 0, the default, is as many as the path needs, which is what daemons have by default. The output says so when the
machine, not the link, set the number.

With --source-addr it moves blocks between two running daemons, over the real link: from the one at --source-addr to the one at
--addr. It registers a small engine of its own at both, which is possible over their unix sockets only, so both sockets have to be
on this host. The source's daemon must run here, because pages are written through shared memory; a destination elsewhere is
reached through a forwarded socket:

  ssh -N -L /tmp/dst.sock:/run/kvferry/kvferry.sock user@destination &
  kvferry bench goodput --source-addr unix:///run/kvferry/kvferry.sock --addr unix:///tmp/dst.sock --max-rate 1Gbps

A shared link is saturated unless --max-rate bounds the average; without it you are asked, or have to say --yes. What moves is of
class background, so that the source sends migrations that somebody waits for first; --class interactive competes with them. The
engine and its arena are taken away at the end. Block names are fresh, so nothing of a session is touched or evicted.

Between daemons latency of chunks is not known: they share no clock and tell of no chunk. The ramp is seen in the progress of the first
migration of a transfer; with --max-rate those are too short, and what is left is the ramp of a cold link that the destination's
daemon remembers (path.ramp_seconds). Processor time is known of daemons on this host.

loss is the path's: packets lost over packets sent, whether parity rebuilt them at the destination (repaired_packets) or QUIC had to
send them again (retransmitted_packets, loss_unrepaired). wire_bytes counts parity. RTT is that of QUIC at the source.

When a transfer fails, the result of those before it is printed, then the error, and the exit status is the error's.`,
		Example: `  kvferry bench goodput --wan rtt=70ms,rate=500Mbps,loss=0 --bytes 256MiB
  kvferry bench goodput --wan rtt=70ms,rate=500Mbps,loss=1e-4 --stripes 0,1,8 --repeats 6 --save lossy.json
  kvferry bench goodput --wan rtt=70ms,rate=500Mbps,loss=0 --cut 1s -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := g.check(cmd); err != nil {
				return err
			}
			if err := b.begin(results.KindGoodput); err != nil {
				return err
			}
			bar := b.progress()
			res, err := a.goodput(cmd.Context(), &g, bar)
			if err = errors.Join(err, bar.Close()); err != nil {
				err = goodputFault(err)
			}
			if res == nil {
				return err
			}
			f, ferr := res.File(benchCommand(cmd))
			if errors.Is(ferr, goodput.ErrNothing) && cmd.Context().Err() != nil {
				return interrupted("before anything was measured")
			}
			if ferr != nil {
				return errors.Join(err, ferr)
			}
			f.Versions["kvferry"] = version
			// What was measured is printed and kept, then what went wrong is said.
			return errors.Join(err, b.end(cmd.Context(), f, res.Tables()...))
		},
	}
	g.register(cmd)
	return cmd
}

// register gives cmd the flags.
func (g *goodputFlags) register(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&g.link, "wan", "", "the model link: rtt, rate, loss, and optionally jitter, queue, burst, seed, as rtt=70ms,rate=500Mbps,loss=0")
	fl.StringVar(&g.sourceAddr, "source-addr", "", "the source's daemon, unix:///PATH; --addr is the destination's")
	fl.StringVar(&g.source, "source", "", "the node id that the source must have (default: whichever answers)")
	fl.Var(newBytes(&g.bytes, 256<<20, 1, 64<<30), "bytes", "bytes a transfer, in whole blocks")
	fl.Var(newBytes(&g.page, 64<<10, 4<<10, 4<<20), "page", "bytes a page")
	fl.Var(newCount(&g.pages, 80, 1, 1024), "pages-per-block", "pages a block")
	fl.IntSliceVar(&g.stripes, "stripes", []int{0}, "connections, or several numbers to compare; 0: as many as the path needs; with --wan")
	fl.Var(newCount(&g.warmup, 1, 0, 100), "warmup", "transfers that are not counted, the first over cold connections")
	fl.Var(newCount(&g.repeats, 6, 1, 1000), "repeats", "transfers that are measured; with fewer than 6 a side --diff shows no difference once several figures are compared")
	fl.BoolVar(&g.cold, "cold", false, "fresh connections for every transfer; with --wan")
	fl.Var(newDuration(&g.cut, 0, 0), "cut", "one more transfer whose link is cut for so long at its middle; with --wan")
	fl.Var(newRate(&g.maxRate), "max-rate", "bound the average rate, as 1Gbps; between daemons")
	fl.Var(newRate(&g.linkRate), "link-rate", "what the link is known to carry, for link_share; between daemons")
	fl.Var(newChoice(&g.class, "background", "interactive", "background", "replication"), "class", "interactive, background or replication: what the source sends first; between daemons")
	fl.BoolVar(&g.yes, "yes", false, "do saturate the link between the daemons, without asking")
	fl.StringVar(&g.codec, "codec", "auto", "how pages, BF16 values as caches have them, are coded: auto, off or a codec's name; with --wan")
	fl.Uint64Var(&g.seed, "seed", 0, "of the bytes")
	complete(cmd, "wan", "rtt=70ms,rate=500Mbps,loss=0")
	complete(cmd, "class", "interactive", "background", "replication")
}

// check tells the two forms apart.
func (g *goodputFlags) check(cmd *cobra.Command) error {
	switch {
	case g.link != "" && g.sourceAddr != "":
		return usagef("", "--wan for a model of the link, or --source-addr for two daemons", "--wan and --source-addr exclude each other")
	case cmd.Flags().Changed("wan"):
		return meaningless(cmd, "with --wan", "source", "max-rate", "link-rate", "class", "yes")
	case g.sourceAddr != "":
		return meaningless(cmd, "between daemons, whose own configuration sets the connections", "stripes", "cold", "cut", "codec")
	}
	return usagef("", "--wan rtt=70ms,rate=500Mbps,loss=0 for a model of the link, or --source-addr unix:///PATH for two daemons", "neither --wan nor --source-addr is given")
}

// goodput runs the form that was asked for.
func (a *app) goodput(ctx context.Context, g *goodputFlags, bar *results.Progress) (*goodput.Result, error) {
	warmup := int(g.warmup)
	if warmup == 0 {
		warmup = -1
	}
	if g.sourceAddr == "" {
		model, err := wan.Parse(g.link)
		if err != nil {
			return nil, usagef(g.link, "key=value pairs such as rtt=70ms,rate=500Mbps,loss=0", "--wan: %v", err)
		}
		return goodput.Run(ctx, goodput.Config{
			WAN: model, Bytes: g.bytes, PageBytes: int(g.page), PagesPerBlock: int(g.pages), Stripes: g.stripes, Warmup: warmup, Repeats: int(g.repeats), Cold: g.cold,
			CutFor: g.cut, Codec: g.codec, Seed: g.seed, Progress: showGoodput(bar),
		})
	}
	cfg := goodput.DaemonsConfig{
		SourceNode: g.source, Bytes: g.bytes, PageBytes: int(g.page), PagesPerBlock: int(g.pages), MaxRate: g.maxRate, LinkRate: g.linkRate, Class: classNames[g.class], Warmup: warmup,
		Repeats: int(g.repeats), Seed: g.seed, Progress: showGoodput(bar),
	}
	var ok bool
	if cfg.SourceSocket, ok = unixPath(g.sourceAddr); !ok || cfg.SourceSocket == "" {
		return nil, usagef(g.sourceAddr, "unix:///PATH of the source's daemon on this host", "--source-addr %q is no unix socket", g.sourceAddr)
	}
	if cfg.DestinationSocket, ok = unixPath(a.addr); !ok || cfg.DestinationSocket == "" {
		return nil, usagef(a.addr, "unix:///PATH; forward the destination's socket with ssh -L", "--addr %q is no unix socket: engines register over those only", a.addr)
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := a.consent(ctx, g); err != nil {
		return nil, err
	}
	return goodput.RunDaemons(ctx, cfg)
}

// consent asks before a link is saturated that others may need.
func (a *app) consent(ctx context.Context, g *goodputFlags) error {
	if g.yes || g.maxRate > 0 {
		return nil
	}
	refused := &fault{
		Code: exitRefused, Reason: "NOT_CONFIRMED", Message: "this saturates the link between the two daemons, sessions that migrate meanwhile wait",
		Fix: "bound it with --max-rate, or say --yes",
	}
	if !a.terminal || !term.IsTerminal(int(os.Stdin.Fd())) {
		return refused
	}
	_, _ = fmt.Fprintf(a.stderr, "This moves %d x %s and saturates the link between the two daemons. Go on? [y/N] ", g.warmup+g.repeats, bytesText(g.bytes))
	answer := make(chan string, 1)
	go func() { // ends with the line, or with the process: a read from a terminal cannot be ended
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return interrupted("before anything was measured")
	case line := <-answer:
		if s := strings.ToLower(strings.TrimSpace(line)); s != "y" && s != "yes" {
			return refused
		}
		return nil
	}
}

// showGoodput turns progress into one bar over all transfers, and a line a stage.
func showGoodput(bar *results.Progress) func(goodput.Progress) {
	var stage string
	var done int64
	return func(p goodput.Progress) {
		if stage == "" {
			bar.Stage("goodput", float64(p.Total))
		}
		if p.Stage != stage {
			stage = p.Stage
			bar.Say("%s", stage)
		}
		bar.Add(float64(p.Done - done))
		done = p.Done
	}
}

// goodputFault is the fault of an error of package goodput.
func goodputFault(err error) error {
	if in, ok := errors.AsType[*goodput.InputError](err); ok {
		return usagef(in.Value, in.Allowed, "%v", err)
	}
	if node, ok := errors.AsType[*goodput.NodeError](err); ok {
		return &fault{Code: exitRefused, Reason: "WRONG_NODE", Message: node.Message, Fix: node.Fix}
	}
	if m, ok := errors.AsType[*goodput.MigrationError](err); ok {
		if f := reportFault(stateName(m.State), m.Code, m.Message); f != nil {
			return f
		}
	}
	return err
}
