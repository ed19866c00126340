package goodput

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvferry/kvferry/bench/arenafile"
	"github.com/kvferry/kvferry/bench/results"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// DaemonsConfig is what RunDaemons takes. Zero means the documented default, negative off where a field says so.
type DaemonsConfig struct {
	// SourceSocket is the unix socket of the daemon on this host that pages come from: an absolute path. Its arena is
	// written through shared memory, so it has to be this host's. Required.
	SourceSocket string
	// DestinationSocket is the unix socket of the daemon that pulls: this host's or one that ssh forwards (ssh -L
	// /tmp/dst.sock:/run/kvferry/kvferry.sock host). Required. Bytes are compared after the move when its arena is on this host;
	// else the daemon's own verification of every page has to do.
	DestinationSocket string
	// SourceNode is the node id that the source must have. Default: whichever answers.
	SourceNode string
	// Bytes a transfer moves, rounded up to whole blocks, at most 64 GiB. Default 256 MiB.
	Bytes int64
	// PageBytes is a page, 4 KiB to 4 MiB in multiples of 512. Default 64 KiB.
	PageBytes int
	// PagesPerBlock is how many pages a block has, 1 to 1024. Default 80.
	PagesPerBlock int
	// MaxRate bounds the average rate of page bytes, bit/s: blocks go in groups of about a quarter second of it, and each group
	// at the link's own pace. Zero or negative: no bound.
	MaxRate float64
	// LinkRate is what the link is known to carry, bit/s, for LinkShare. Zero: not known.
	LinkRate float64
	// Warmup is how many transfers go before the measured ones; at most 100. Default 1; negative: none.
	Warmup int
	// Repeats is how many transfers are measured; at most 1000. Default 3.
	Repeats int
	// Class is how urgent the pages are to the source, which serves classes strictly in order, down to the packet. Default
	// background: a migration that somebody waits for goes first, and the number is what it leaves.
	Class pb.TransferClass
	// ArenaBytes bounds the arena that each daemon is asked for. Default: what Bytes needs, at most 1 GiB; more moves in
	// several migrations a transfer.
	ArenaBytes int64
	// Seed makes the bytes.
	Seed uint64
	// Progress is told several times a second, from one goroutine.
	Progress func(Progress)
}

const (
	defaultArena = 1 << 30
	paceWindow   = 250 * time.Millisecond
	callTimeout  = 30 * time.Second
)

func (c DaemonsConfig) withDefaults() DaemonsConfig {
	c.Bytes = orDefault(c.Bytes, defaultBytes)
	c.PageBytes = orDefault(c.PageBytes, 64<<10)
	c.PagesPerBlock = orDefault(c.PagesPerBlock, 80)
	c.Warmup = max(0, orDefault(c.Warmup, 1))
	c.Repeats = orDefault(c.Repeats, 3)
	c.ArenaBytes = orDefault(c.ArenaBytes, defaultArena)
	c.Class = orDefault(c.Class, pb.TransferClass_TRANSFER_CLASS_BACKGROUND)
	return c
}

// Validate reports every fault, joined; each is an *InputError.
func (c DaemonsConfig) Validate() error {
	c = c.withDefaults()
	errs := []error{checkShape(c.Bytes, c.PageBytes, c.PagesPerBlock), checkRounds(c.Warmup, c.Repeats)}
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, &InputError{field, fmt.Sprint(value), allowed})
		}
	}
	const absolute = "the absolute path of a daemon's unix socket"
	check(len(c.SourceSocket) > 1 && c.SourceSocket[0] == '/', "source", c.SourceSocket, absolute)
	check(len(c.DestinationSocket) > 1 && c.DestinationSocket[0] == '/', "destination", c.DestinationSocket, absolute)
	check(c.DestinationSocket != c.SourceSocket || c.SourceSocket == "", "destination", c.DestinationSocket, "another daemon than the source")
	check(c.MaxRate <= 0 || c.MaxRate >= 1e3, "max rate", c.MaxRate, "1 kbps or more")
	check(pb.TransferClass_name[int32(c.Class)] != "", "class", c.Class, "interactive, background or replication")
	check(c.LinkRate >= 0, "link rate", c.LinkRate, "0 (not known) or bit/s")
	check(c.ArenaBytes >= int64(c.PageBytes)*int64(c.PagesPerBlock), "arena", c.ArenaBytes, "room for a block at least")
	return errors.Join(errs...)
}

// RunDaemons moves seeded blocks from one running daemon to another as replications of named blocks, with the public API
// alone. It registers an engine of its own at each and takes it away again, with its arena; a daemon that still holds the
// blocks then, after a migration that failed, keeps the arena until it ends, or until a run of the same shape and size, and
// a warning says so.
//
// When ctx ends it cancels the migration under way and returns what it has, with Interrupted set. When something fails after
// a transfer was measured, the result of what was measured comes beside the error, with Failure set. Errors: Validate's,
// *NodeError when the daemons are not the ones, gRPC statuses of the daemons, *MigrationError, errors of the arenas' files.
func RunDaemons(ctx context.Context, cfg DaemonsConfig) (_ *Result, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	f := &ferry{cfg: cfg, began: time.Now(), machine: results.ThisMachine()}
	defer func() { err = errors.Join(err, f.close()) }()
	if err := f.open(ctx); err != nil {
		return nil, err
	}
	err = f.run(ctx)
	if ctx.Err() != nil {
		err = nil
	}
	f.cleanUp(ctx)
	res := f.result(ctx.Err() != nil)
	if err != nil && len(res.Configurations) == 0 {
		return nil, err
	}
	res.fail(err)
	return res, err
}

// cleanUp gives the arenas back.
func (f *ferry) cleanUp(ctx context.Context) {
	for _, e := range []*engine{f.source, f.destination} {
		if why := e.unregister(ctx); why != "" {
			f.warned = append(f.warned, fmt.Sprintf("node %s keeps the arena of engine %s until it ends: %s", e.node, e.id, why))
		}
	}
}

// NodeError says that a daemon is not the one that is needed.
type NodeError struct{ Message, Fix string }

// Error is the message with its fix.
func (e *NodeError) Error() string { return e.Message + " (fix: " + e.Fix + ")" }

// MigrationError is a migration that did not end as a fetch of every block.
type MigrationError struct {
	State         pb.MigrationState
	Code, Message string
}

// Error says how the migration ended.
func (e *MigrationError) Error() string {
	return fmt.Sprintf("the migration ended as %s %s: %s", e.State, e.Code, e.Message)
}

// ferry is a run between daemons.
type ferry struct {
	cfg                 DaemonsConfig
	source, destination *engine
	group               int // blocks a migration
	blocks              int
	began               time.Time
	machine             results.Machine
	moved               int64
	seq                 int // of migrations

	cold    *Measure
	runs    []*Measure
	partial *Measure
	stripes int
	path    *Path
	warned  []string
}

// engine is our engine at one daemon.
type engine struct {
	conn    *grpc.ClientConn
	client  pb.EngineServiceClient
	region  pb.RegionServiceClient
	node    string
	version string          // the daemon's release
	host    results.Machine // the daemon's, as far as it says
	id      string
	arenaID string
	proc    daemonProcess
	arena   *arenafile.Arena // nil: not on this host
	slots   int
	values  []byte // of a block, as caches have them
}

func dialEngine(socket string) (*engine, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("daemon at %s: %w", socket, err)
	}
	return &engine{conn: conn, client: pb.NewEngineServiceClient(conn), region: pb.NewRegionServiceClient(conn), proc: findDaemon(socket)}, nil
}

func (e *engine) close() error {
	if e == nil {
		return nil
	}
	_ = e.unregister(context.Background()) // nothing but after an error, which says more
	return errors.Join(e.arena.Close(), e.conn.Close())
}

func (f *ferry) close() error { return errors.Join(f.source.close(), f.destination.close()) }

// open finds both daemons and registers with them.
func (f *ferry) open(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	if f.source, err = dialEngine(f.cfg.SourceSocket); err != nil {
		return err
	}
	if f.destination, err = dialEngine(f.cfg.DestinationSocket); err != nil {
		return err
	}
	for _, e := range []*engine{f.source, f.destination} {
		st, err := e.region.Status(ctx, &pb.StatusRequest{})
		if err != nil {
			return err
		}
		e.node, e.version = st.GetNode().GetNodeId(), st.GetVersion()
		e.host = results.Machine{OS: st.GetHost().GetOs(), Arch: st.GetHost().GetArch(), CPU: st.GetHost().GetCpu(), Cores: int(st.GetHost().GetCores()), Kernel: st.GetHost().GetKernel()}
	}
	if f.destination.host == (results.Machine{}) {
		f.warned = append(f.warned, "the destination's daemon does not say what machine it runs on: a comparison cannot tell it from another")
	}
	if err := f.checkNodes(ctx); err != nil {
		return err
	}
	block := f.blockBytes()
	f.blocks = blocks(f.cfg.Bytes, block)
	want := min(f.blocks, int(max(1, f.cfg.ArenaBytes/block)))
	for _, e := range []*engine{f.source, f.destination} {
		if err := e.register(ctx, f.cfg.PageBytes, f.cfg.PagesPerBlock, want); err != nil {
			return err
		}
	}
	if f.source.arena == nil {
		return &NodeError{"the source's arena is not on this host", "run this on the host of the source's daemon, and forward the destination's socket here"}
	}
	if f.destination.arena == nil {
		f.warned = append(f.warned, "the destination's arena is not on this host: its daemon verified every page, nobody compared bytes")
	}
	f.group = min(want, f.source.slots, f.destination.slots)
	if f.cfg.MaxRate > 0 {
		f.group = max(1, min(f.group, int(f.cfg.MaxRate/8*paceWindow.Seconds()/float64(block))))
	}
	return nil
}

func (f *ferry) blockBytes() int64 { return int64(f.cfg.PageBytes) * int64(f.cfg.PagesPerBlock) }

// checkNodes refuses pairs that cannot work before anything is moved.
func (f *ferry) checkNodes(ctx context.Context) error {
	src, dst := f.source.node, f.destination.node
	switch {
	case src == dst:
		return &NodeError{fmt.Sprintf("both sockets are those of node %q", src), "give the socket of another daemon for one of them"}
	case f.cfg.SourceNode != "" && f.cfg.SourceNode != src:
		return &NodeError{fmt.Sprintf("the source is node %q, not %q", src, f.cfg.SourceNode), "give the socket of that node, or leave the node out"}
	}
	l, err := f.destination.link(ctx, src)
	if err != nil {
		return err
	}
	if l.GetAddress() == "" {
		return &NodeError{fmt.Sprintf("node %q has no peer %q in its configuration", dst, src), "add the source under peers of the destination's configuration"}
	}
	return nil
}

// link is what the daemon says of its link with a node; empty when it knows none.
func (e *engine) link(ctx context.Context, node string) (*pb.LinkStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := e.region.ListLinks(ctx, &pb.ListLinksRequest{})
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(resp.GetLinks(), func(l *pb.LinkStatus) bool { return l.GetPeer().GetNodeId() == node }); i >= 0 {
		return resp.GetLinks()[i], nil
	}
	return &pb.LinkStatus{}, nil
}

func (f *ferry) run(ctx context.Context) error {
	for i := range f.cfg.Warmup {
		m, err := f.once(ctx, fmt.Sprintf("warm-up %d of %d", i+1, f.cfg.Warmup))
		if err != nil {
			return err
		}
		if i == 0 && m.Complete {
			f.cold = m
		}
	}
	for i := range f.cfg.Repeats {
		m, err := f.once(ctx, fmt.Sprintf("repeat %d of %d", i+1, f.cfg.Repeats))
		if err != nil {
			return err
		}
		if !m.Complete {
			f.partial = m
			return nil
		}
		f.runs = append(f.runs, m)
	}
	return nil
}

func (f *ferry) tell(stage string, done int64, bps float64) {
	if f.cfg.Progress != nil {
		f.cfg.Progress(Progress{
			Stage: stage, Done: f.moved + done, GoodputBps: bps,
			Total: int64(f.cfg.Warmup+f.cfg.Repeats) * int64(f.blocks) * f.blockBytes(),
		})
	}
}

func (f *ferry) result(interrupted bool) *Result {
	res := &Result{
		Form: FormDaemons, Interrupted: interrupted, started: f.began, machine: f.machine, seconds: time.Since(f.began).Seconds(), Warnings: f.warned,
		remote:   map[string]results.Machine{"destination": f.destination.host},
		versions: map[string]string{"source": f.source.version, "destination": f.destination.version},
		params: map[string]any{
			"form": FormDaemons, "source": f.source.node, "destination": f.destination.node, "bytes": int64(f.blocks) * f.blockBytes(), "page_bytes": f.cfg.PageBytes,
			"pages_per_block": f.cfg.PagesPerBlock, "max_rate": max(0, f.cfg.MaxRate), "class": className(f.cfg.Class), "warmup": f.cfg.Warmup, "repeats": f.cfg.Repeats, "group_blocks": f.group,
		},
	}
	o := &Outcome{
		Stripes: f.stripes, Path: f.path, Cold: f.cold, Runs: f.runs, Bytes: int64(f.blocks) * f.blockBytes(), Blocks: int64(f.blocks), BlockBytes: f.blockBytes(),
		PageBytes: int64(f.cfg.PageBytes), ChunkBytes: max(chunkBytes, int64(f.cfg.PageBytes)), Warnings: []string{},
	}
	if len(o.Runs) == 0 && f.partial != nil && f.partial.Bytes > 0 {
		o.Runs = []*Measure{f.partial}
		o.warn("the only measured transfer was interrupted at %d of %d bytes", f.partial.Bytes, o.Bytes)
	}
	if len(o.Runs) == 0 {
		return res
	}
	o.medians()
	if f.cfg.LinkRate > 0 {
		o.LinkShare = ptr(o.GoodputBps / f.cfg.LinkRate)
	}
	f.judge(o)
	res.Configurations = []*Outcome{o}
	return res
}

// judge says what set the number, as far as the daemons tell.
func (f *ferry) judge(o *Outcome) {
	o.daemonCPU()
	pages, wire := o.crossed()
	switch share := o.Machine.CPUShare; {
	case wire < pages:
		o.LimitedBy, o.Why = LimitUnknown, fmt.Sprintf("only %d bytes crossed the link for %d bytes of pages: some were there already, or took another way", wire, pages)
		o.warn("this is no goodput of the link: %s", o.Why)
	case o.LinkShare != nil && *o.LinkShare > 1:
		o.LimitedBy, o.Why = LimitUnknown, fmt.Sprintf("pages came at %.2f times the rate that the link was said to have", *o.LinkShare)
		o.warn("the link's rate is not what was said: %s", o.Why)
	case share != nil && *share >= busyShare:
		o.LimitedBy, o.Why = LimitMachine, fmt.Sprintf("the daemons on this host used %.0f %% of its %d processors", 100**share, processors())
		o.warn("the machine, not the link, set this number: %s", o.Why)
	case f.cfg.MaxRate > 0 && o.EffectiveBps >= 0.8*f.cfg.MaxRate:
		o.LimitedBy, o.Why = LimitMaxRate, "the rate that was asked for; what the link can give is not known from this"
	case o.LinkShare != nil && *o.LinkShare >= 0.75:
		o.LimitedBy, o.Why = LimitLink, fmt.Sprintf("%.0f %% of the link's rate are page bytes", 100**o.LinkShare)
	default:
		o.LimitedBy, o.Why = LimitUnknown, "nothing is known of the link's rate, or less than that was reached"
	}
}

// crossed is page bytes, as they travelled, of the runs whose bytes on the link are known, and those.
func (o *Outcome) crossed() (pages, wire int64) {
	for _, m := range o.Runs {
		if m.WireBytes > 0 {
			pages, wire = pages+m.CodedBytes, wire+m.WireBytes
		}
	}
	return pages, wire
}

// daemonCPU pools the daemons' processor time; what is not on this host stays unknown.
func (o *Outcome) daemonCPU() {
	var gb, seconds float64
	var src, dst float64
	known := [2]bool{true, true}
	for _, m := range o.Runs {
		gb, seconds = gb+m.gb(), seconds+m.Seconds
		src, dst = src+m.daemonCPU[0], dst+m.daemonCPU[1]
		known[0], known[1] = known[0] && m.daemonCPU[0] >= 0, known[1] && m.daemonCPU[1] >= 0
	}
	if gb <= 0 || seconds <= 0 {
		return
	}
	var sum float64
	if known[0] {
		o.CPU.Source, sum = ptr(src/gb), sum+src
	}
	if known[1] {
		o.CPU.Destination, sum = ptr(dst/gb), sum+dst
	}
	if known[0] || known[1] {
		o.Machine.CPUShare = ptr(sum / seconds / float64(processors()))
	}
}
