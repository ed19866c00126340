package compare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/bench/wanns"
)

// WANConfig is what RunWAN takes. Zero means the documented default.
type WANConfig struct {
	// Command starts one end: a program and its arguments, which calls ServeEnd. Required.
	Command []string
	// Links are the emulated links, 1 to 100, each with a Rate.
	Links []wan.Model
	// Peers are the ways to compare, by their names in WANNames; kvferry is among them. Default: all.
	Peers []string
	// Bytes a transfer moves, rounded up to whole chunks, at most 16 GiB. Default 256 MiB.
	Bytes int64
	// PageBytes is a page, 4 KiB to 1 MiB, a power of two. Default 64 KiB.
	PageBytes int
	// Repeats is how many rounds are measured on each link, at most 1000. Default 3.
	Repeats int
	// Limit cuts a transfer short: what has landed by then counts. Default 30 s.
	Limit time.Duration
	// Seed makes the bytes.
	Seed uint64
	// Progress is told before and after each turn, from one goroutine. Bytes count as if no turn were cut short.
	Progress func(Progress)
}

// WANNames lists the ways that can be compared over an emulated link. The caller owns the slice.
func WANNames() []string { return []string{NameKvferry, nameCoded, nameBBR, nameCUBIC, nameRsync} }

func (c WANConfig) withDefaults() WANConfig {
	c.Repeats, c.Limit = orDefault(c.Repeats, 3), orDefault(c.Limit, 30*time.Second)
	c.Peers = slices.Clone(c.Peers)
	if len(c.Peers) == 0 {
		c.Peers = WANNames()
	}
	d := c.base().withDefaults()
	c.Bytes, c.PageBytes = d.Bytes, d.PageBytes
	return c
}

// base is the part that Config has too.
func (c WANConfig) base() Config {
	return Config{Command: c.Command, Bytes: c.Bytes, PageBytes: c.PageBytes, Repeats: c.Repeats, Seed: c.Seed, kv: true}
}

// Validate reports every fault, joined; those of fields are *InputErrors.
func (c WANConfig) Validate() error {
	errs := []error{c.base().Validate()}
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, &InputError{field, fmt.Sprint(value), allowed})
		}
	}
	check(len(c.Links) >= 1 && len(c.Links) <= 100, "links", len(c.Links), "1 to 100")
	for _, l := range c.Links {
		errs = append(errs, l.Validate())
		check(l.Rate > 0, "link", l, "one with a rate: a share of it is measured")
	}
	check(c.Limit >= 0, "limit", c.Limit, "above 0, or 0 for 30s")
	c = c.withDefaults()
	for i, p := range c.Peers {
		check(slices.Contains(WANNames(), p), "peer", p, "one of "+strings.Join(WANNames(), ", "))
		check(!slices.Contains(c.Peers[:i], p), "peer", p, "named once")
	}
	check(slices.Contains(c.Peers, NameKvferry), "peers", strings.Join(c.Peers, ","), NameKvferry+" and what it is compared with")
	return errors.Join(errs...)
}

// RunWAN compares over emulated links between two network namespaces, which takes Linux and root: kernel TCP and rsync over ssh
// beside kvferry. In each round every way opens fresh connections, moves everything once (cold), and once more over the same ones
// (warm); rsync connects anew each time, and has only the first. When ctx ends it returns what it has, with Interrupted set and no
// error. Errors: Validate's; those of wanns.Open; *EndError of an end that failed.
func RunWAN(ctx context.Context, cfg WANConfig) (*WANResult, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	ids, err := newIdentities()
	if err != nil {
		return nil, err
	}
	b := &wanBench{cfg: cfg, ids: ids, began: time.Now(), machine: results.ThisMachine(), cores: min(runtime.GOMAXPROCS(0), runtime.NumCPU())}
	if slices.Contains(cfg.Peers, nameRsync) {
		if b.tools, err = findRsync(); err != nil {
			b.warned = append(b.warned, nameRsync+" is left out: "+err.Error())
			b.cfg.Peers = slices.DeleteFunc(b.cfg.Peers, func(p string) bool { return p == nameRsync })
		}
	}
	for _, link := range cfg.Links {
		c := &WANCell{WAN: link.String(), rate: link.Rate}
		err := b.cell(ctx, link, c)
		if slices.ContainsFunc(c.series, func(s *wanSeries) bool { return len(s.cold) > 0 }) {
			b.cells = append(b.cells, c)
		}
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("over %s: %w", link, err)
		}
	}
	return b.result(ctx.Err() != nil), nil
}

// wanBench is a run under way.
type wanBench struct {
	cfg     WANConfig
	ids     *identities
	tools   *rsyncTools // nil: not measured
	cells   []*WANCell
	began   time.Time
	machine results.Machine
	cores   int
	warned  []string
	turns   int
}

// wanSeries is what one way gave over one link.
type wanSeries struct {
	name       string
	cold, warm []*Turn
}

// cell measures one link.
func (b *wanBench) cell(ctx context.Context, link wan.Model, c *WANCell) (err error) {
	for _, name := range b.cfg.Peers {
		c.series = append(c.series, &wanSeries{name: name})
	}
	id := fmt.Sprintf("kvf%d", os.Getpid())
	path, err := wanns.Open(wanns.Config{A: id + "a", B: id + "b", Model: link})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, path.Close()) }()
	var sync *rsyncEnds
	if b.tools != nil {
		if sync, err = openRsync(ctx, b.tools, path, b.cfg); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sync.close()) }()
	}
	for i := range b.cfg.Repeats {
		for k := range c.series {
			s := c.series[(k+i)%len(c.series)]
			before := path.Stats()
			if s.name == nameRsync {
				err = b.rsyncTurn(ctx, sync, s, i, c)
			} else {
				err = b.pairTurns(ctx, path, s, i, c)
			}
			after := path.Stats()
			c.DeviceDrops += max(0, after.DeviceDropsA-before.DeviceDropsA) + max(0, after.DeviceDropsB-before.DeviceDropsB)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// pairTurns runs a cold transfer and a warm one.
func (b *wanBench) pairTurns(ctx context.Context, path *wanns.Path, s *wanSeries, round int, c *WANCell) (err error) {
	p, err := findPeer(s.name)
	if err != nil {
		return err
	}
	in := func(side wanns.Side) launcher {
		return func(cmd *exec.Cmd) error { return path.Do(side, cmd.Start) } // a process starts where its thread is
	}
	base := b.cfg.base().withDefaults()
	ctx, cancel := context.WithTimeoutCause(ctx, 2*b.cfg.Limit+base.patience(), fmt.Errorf("%s, round %d: no end within %v", s.name, round+1, 2*b.cfg.Limit+base.patience()))
	defer cancel()
	pair, err := newPair(ctx, base, b.ids, p, place{
		host: [2]string{path.Addr(wanns.A).String(), path.Addr(wanns.B).String()}, source: in(wanns.A), destination: in(wanns.B),
	})
	if err != nil {
		return err
	}
	defer func() {
		cerr := pair.close()
		if err == nil && ctx.Err() == nil {
			err = cerr
		}
	}()
	for _, x := range []struct {
		name string
		to   *[]*Turn
	}{{"cold", &s.cold}, {"warm", &s.warm}} {
		b.tell(c, s, x.name, round)
		r, err := pair.move(ctx, true, b.cores, b.cfg.Limit)
		if err != nil {
			return err
		}
		r.round = round
		*x.to = append(*x.to, r)
		b.turns++
		if r.Bytes < b.cfg.Bytes {
			if x.name == "cold" {
				b.turns++ // there is no warm one
			}
			break
		}
	}
	return nil
}

func (b *wanBench) rsyncTurn(ctx context.Context, ends *rsyncEnds, s *wanSeries, round int, c *WANCell) error {
	b.tell(c, s, "cold", round)
	r, err := ends.move(ctx, b.cfg.Limit)
	if err != nil {
		return err
	}
	r.round = round
	s.cold = append(s.cold, r)
	b.turns += 2
	return nil
}

func (b *wanBench) tell(c *WANCell, s *wanSeries, what string, round int) {
	if b.cfg.Progress == nil {
		return
	}
	b.cfg.Progress(Progress{
		Stage: fmt.Sprintf("%s: %s %s, round %d of %d", c.WAN, s.name, what, round+1, b.cfg.Repeats), Done: int64(b.turns) * b.cfg.Bytes,
		Total: int64(2*len(b.cfg.Links)*b.cfg.Repeats*len(b.cfg.Peers)) * b.cfg.Bytes,
	})
}

// rsyncTools are the programs that rsync over ssh takes.
type rsyncTools struct{ rsync, ssh, sshd, keygen string }

// findRsync looks for them, in the folders of administrators too.
func findRsync() (*rsyncTools, error) {
	t := &rsyncTools{}
	for name, to := range map[string]*string{"rsync": &t.rsync, "ssh": &t.ssh, "sshd": &t.sshd, "ssh-keygen": &t.keygen} {
		path, err := exec.LookPath(name)
		if err != nil {
			if path, err = exec.LookPath(filepath.Join("/usr/sbin", name)); err != nil {
				return nil, fmt.Errorf("%s is not installed", name)
			}
		}
		*to = path
	}
	return t, nil
}
