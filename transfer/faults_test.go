package transfer_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
)

const (
	pageBytes = 64 << 10
	slow      = "rtt=70ms,rate=100Mbps,loss=0" // 1 MiB takes 88 ms with all headers
)

// probe is plain memory that counts, and can be told to misbehave.
type probe struct {
	transfer.Memory
	b       []byte
	landing atomic.Int64 // LandPage calls
	reading atomic.Int64 // ReadPages calls
	onRead  func(d transfer.Desc, first int, dst []byte, sums []uint32) error
	onLand  func(d transfer.Desc, page int) error
}

func newProbe(b []byte) *probe {
	p := &probe{Memory: transfer.Bytes(b, pageBytes), b: b}
	return p
}

func (p *probe) memory() transfer.Memory {
	return transfer.Memory{PageBytes: pageBytes, Length: p.Length, Source: p, Sink: p, RemoteWrite: true}
}

func (p *probe) ReadPages(token []byte, pair int, d transfer.Desc, first int, dst []byte, sums []uint32) error {
	p.reading.Add(1)
	if err := p.Source.ReadPages(token, pair, d, first, dst, sums); err != nil {
		return err
	}
	if p.onRead != nil {
		return p.onRead(d, first, dst, sums)
	}
	return nil
}

func (p *probe) LandPage(pair int, d transfer.Desc, page int, b []byte, sum uint32) error {
	p.landing.Add(1)
	if p.onLand != nil {
		if err := p.onLand(d, page); err != nil {
			return err
		}
	}
	return p.Sink.LandPage(pair, d, page, b, sum)
}

// pull is a read of a whole memory from node 1 to node 2, with its oracle.
type pull struct {
	src, dst     *node
	link         *transfer.Link
	from, to     *probe
	theirs, mine transfer.MemoryID
	pages        uint32
}

func newPull(t *testing.T, f *fleet, pages int, edit func(i int, c *transfer.Config)) *pull {
	t.Helper()
	open := func(i int) *node {
		return f.open(i, func(c *transfer.Config) {
			if edit != nil {
				edit(i, c)
			}
		})
	}
	p := &pull{src: open(1), dst: open(2), pages: uint32(pages)}
	p.from, p.to = newProbe(random(3, pages*pageBytes)), newProbe(make([]byte, pages*pageBytes))
	p.theirs, p.mine = register(t, p.src, p.from.memory()), register(t, p.dst, p.to.memory())
	p.link = connect(t, p.dst, p.src)
	return p
}

func (p *pull) prepare(t *testing.T, opts transfer.TransferOptions) *transfer.Transfer {
	t.Helper()
	x, err := p.link.Prepare(transfer.Read, []transfer.Desc{{Memory: p.mine, Pages: p.pages}},
		[]transfer.Desc{{Memory: p.theirs, Pages: p.pages, Generation: 7}}, opts)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func (p *pull) post(t *testing.T, opts transfer.TransferOptions) *transfer.Transfer {
	t.Helper()
	x := p.prepare(t, opts)
	if err := x.Post(t.Context()); err != nil {
		t.Fatal(err)
	}
	return x
}

// equal holds what landed against the source.
func (p *pull) equal(t *testing.T) {
	t.Helper()
	if !bytes.Equal(p.from.b, p.to.b) {
		t.Error("bytes differ")
	}
}

// idle holds that neither side has anything of a transfer left.
func idle(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		for _, l := range n.Links() {
			if s := l.Stats(); s.Transfers != 0 || s.QueuedBytes != 0 || s.Calls != 0 || s.Streams != 0 {
				t.Errorf("%s: %d transfers, %d streams, %d bytes queued, %d calls", n.name, s.Transfers, s.Streams, s.QueuedBytes, s.Calls)
			}
		}
	}
}

// TestCancel cancels a read midway. Whatever is in flight then, no page lands
// after Release, and the source is free a round trip later.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var done []string
		p := newPull(t, overWAN(t, slow), 512, func(i int, c *transfer.Config) {
			if i == 1 {
				c.OnServed = func(_ transfer.Peer, s transfer.Served) {
					if s.Done {
						done = append(done, string(s.Token))
					}
				}
			}
			c.OnNotify = func(transfer.Peer, []byte) { t.Error("a cancelled transfer notified") }
		})
		x := p.post(t, transfer.TransferOptions{Token: []byte("offer 9"), Notify: []byte("n")})
		time.Sleep(time.Second)
		if err := x.Release(); err != nil {
			t.Fatal(err)
		}
		landed := p.to.landing.Load()
		res, err := x.Wait(t.Context())
		if !errors.Is(err, transfer.ErrCancelled) || res.State != transfer.Cancelled || res.PagesDone == 0 || res.PagesDone == res.PagesTotal {
			t.Errorf("after 1 s: %+v, %v", res, err)
		}
		x.Cancel()
		time.Sleep(5 * time.Second)
		if n := p.to.landing.Load(); n != landed {
			t.Errorf("%d pages landed after Release", n-landed)
		}
		idle(t, p.src, p.dst)
		if len(done) != 1 || done[0] != "offer 9" {
			t.Errorf("source heard of ends %q", done)
		}
		// The link is as good as before.
		if _, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{}); err != nil {
			t.Error(err)
		}
		p.equal(t)
	})
}

// TestCut cuts the link for good: the progress timeout ends the transfer, the
// idle and connect timeouts the link.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, slow)
		p := newPull(t, f, 512, nil)
		stalled, gone := p.post(t, transfer.TransferOptions{}), p.post(t, transfer.TransferOptions{ProgressTimeout: -1})
		time.Sleep(time.Second)
		f.network.Cut(p.src.ip, p.dst.ip)
		start := time.Now()
		if _, err := stalled.Wait(t.Context()); !errors.Is(err, transfer.ErrStalled) {
			t.Errorf("stalled: %v", err)
		}
		if d := time.Since(start); d < 19*time.Second || d > 21*time.Second {
			t.Errorf("stalled after %v, the progress timeout is 20 s", d)
		}
		if _, err := gone.Wait(t.Context()); !errors.Is(err, transfer.ErrPeerGone) {
			t.Errorf("gone: %v", err)
		}
		// 30 s of silence, 10 s of dialling, and the pings in between.
		if d := time.Since(start); d < 30*time.Second || d > 45*time.Second {
			t.Errorf("gone after %v", d)
		}
		if _, err := p.link.Call(t.Context(), nil); !errors.Is(err, transfer.ErrPeerGone) {
			t.Errorf("call on a dead link: %v", err)
		}
		if _, err := p.link.Prepare(transfer.Read, nil, nil, transfer.TransferOptions{}); !errors.Is(err, transfer.ErrPeerGone) {
			t.Errorf("prepare on a dead link: %v", err)
		}
		time.Sleep(time.Minute)
		if n := len(p.src.Links()); n != 0 {
			t.Errorf("the source still has %d links", n)
		}
		f.network.Heal(p.src.ip, p.dst.ip)
		p.link = connect(t, p.dst, p.src)
		if _, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{}); err != nil {
			t.Error(err)
		}
		p.equal(t)
	})
}

// TestHeal cuts the link and heals it, before and after the connections die of
// it: the transfer goes on and every page arrives.
func TestHeal(t *testing.T) {
	for _, cut := range []time.Duration{time.Second, 8 * time.Second, 33 * time.Second} {
		t.Run(cut.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := overWAN(t, slow)
				pages := 512
				if testing.Short() {
					pages = 256 // a second brings half of them
				}
				p := newPull(t, f, pages, nil)
				x := p.post(t, transfer.TransferOptions{ProgressTimeout: -1})
				time.Sleep(time.Second)
				f.network.Cut(p.src.ip, p.dst.ip)
				time.Sleep(cut)
				before := x.Progress().PagesDone
				f.network.Heal(p.src.ip, p.dst.ip)
				res, err := x.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				p.equal(t)
				t.Logf("%d pages before, %+v", before, res)
				if before == 0 || before >= pages {
					t.Errorf("%d of %d pages had come when the link healed: the cut was not in the transfer", before, pages)
				}
				x.Release()
				time.Sleep(time.Second)
				idle(t, p.src, p.dst)
			})
		})
	}
}

// TestStripeLost silences one or more connections of a link. Those that are left
// carry the transfer, and the link is whole again afterwards.
func TestStripeLost(t *testing.T) {
	for _, lost := range []int{1, 7} {
		t.Run(fmt.Sprint(lost), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := overWAN(t, slow)
				p := newPull(t, f, 512, func(_ int, c *transfer.Config) { c.Stripes = 8 })
				var mu sync.Mutex
				dead := make(map[netip.AddrPort]bool)
				f.network.Tap(func(pkt wan.Packet) wan.Verdict {
					mu.Lock()
					defer mu.Unlock()
					port := pkt.From
					if port.Addr() == p.src.ip {
						port = pkt.To
					}
					if len(dead) < lost {
						dead[port] = true
					}
					if dead[port] {
						return wan.Drop
					}
					return wan.Pass
				})
				start := time.Now()
				res, err := func() (transfer.Result, error) {
					x := p.post(t, transfer.TransferOptions{})
					defer x.Release()
					return x.Wait(t.Context())
				}()
				if err != nil {
					t.Fatal(err)
				}
				p.equal(t)
				t.Logf("%+v", res)
				// Half a progress timeout until someone looks, 3 s of probing, 2.8 s
				// for 32 MiB at 100 Mbit/s, and the slow start of what is left.
				if res.Duration > 19*time.Second {
					t.Errorf("took %v", res.Duration)
				}
				time.Sleep(2*time.Minute - time.Since(start))
				if s := p.link.Stats(); s.Stripes != 8 {
					t.Errorf("%d stripes two minutes later", s.Stripes)
				}
				idle(t, p.src, p.dst)
			})
		})
	}
}

// TestCorrupt has the source send a page that does not verify: once is repaired
// over another stripe, always is an error that names the page.
func TestCorrupt(t *testing.T) {
	for _, times := range []int64{1, 1 << 40} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPull(t, overWAN(t, slow), 64, nil)
				var sent atomic.Int64
				p.from.onRead = func(_ transfer.Desc, first int, dst []byte, sums []uint32) error {
					if first <= 37 && 37 < first+len(sums) && sent.Add(1) <= times {
						dst[(37-first)*pageBytes+1000] ^= 4
					}
					return nil
				}
				var landed atomic.Int64
				x := p.post(t, transfer.TransferOptions{OnLanded: func(_, page, _ int) {
					if page == 37 {
						landed.Add(1)
					}
				}})
				defer x.Release()
				res, err := x.Wait(t.Context())
				if times == 1 {
					if err != nil || res.PagesAgain != 1 || landed.Load() != 1 {
						t.Errorf("%+v, %v", res, err)
					}
					p.equal(t)
					return
				}
				ce, ok := errors.AsType[*transfer.ChunkError](err)
				if !ok || ce.Pair != 0 || ce.Page != 37 || ce.Remote || !errors.Is(err, transfer.ErrChecksumMismatch) {
					t.Errorf("error %v", err)
				}
				if !bytes.Equal(p.to.b[37*pageBytes:38*pageBytes], make([]byte, pageBytes)) || landed.Load() != 0 {
					t.Error("the bad page is readable")
				}
				if p.from.reading.Load() < 2 {
					t.Error("it was not asked for again")
				}
				time.Sleep(time.Second)
				idle(t, p.src, p.dst)
			})
		})
	}
}

// TestSwapped has the source swap two pages together with their checksums.
func TestSwapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPull(t, overWAN(t, slow), 16, nil)
		var swapped atomic.Bool
		p.from.onRead = func(_ transfer.Desc, _ int, dst []byte, sums []uint32) error {
			if len(sums) > 1 && swapped.CompareAndSwap(false, true) {
				a, b := dst[:pageBytes], dst[pageBytes:2*pageBytes]
				c := bytes.Clone(a)
				copy(a, b)
				copy(b, c)
				sums[0], sums[1] = sums[1], sums[0]
			}
			return nil
		}
		x := p.post(t, transfer.TransferOptions{})
		defer x.Release()
		if res, err := x.Wait(t.Context()); err != nil || res.PagesAgain != 2 {
			t.Errorf("%+v, %v", res, err)
		}
		p.equal(t)
	})
}

// TestSourceRefuses has each error of a source or sink arrive as itself.
func TestSourceRefuses(t *testing.T) {
	for _, tc := range []struct {
		err, want error
	}{
		{transfer.ErrStaleGeneration, transfer.ErrStaleGeneration},
		{fmt.Errorf("lease 5: %w", transfer.ErrLeaseExpired), transfer.ErrLeaseExpired},
		{transfer.ErrOutOfRange, transfer.ErrOutOfRange},
		{errors.New("disk on fire"), nil},
	} {
		for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
			t.Run(fmt.Sprint(op, tc.err), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					p := newPull(t, overWAN(t, slow), 64, nil)
					p.from.onRead = func(d transfer.Desc, first int, _ []byte, sums []uint32) error {
						if d.Generation == 7 && first <= 40 && 40 < first+len(sums) {
							return tc.err
						}
						return nil
					}
					p.from.onLand = func(d transfer.Desc, page int) error {
						if d.Generation == 7 && page == 40 {
							return tc.err
						}
						return nil
					}
					_, err := run(t, p.link, op, []transfer.Desc{{Memory: p.mine, Pages: p.pages}},
						[]transfer.Desc{{Memory: p.theirs, Pages: p.pages, Generation: 7}}, transfer.TransferOptions{})
					ce, ok := errors.AsType[*transfer.ChunkError](err)
					if !ok || !ce.Remote || ce.Pair != 0 || ce.Page < 32 || ce.Page > 40 {
						t.Fatalf("error %v", err)
					}
					if _, ok := errors.AsType[*transfer.RemoteError](err); !ok || tc.want != nil && !errors.Is(err, tc.want) {
						t.Errorf("error %v", err)
					}
					time.Sleep(time.Second)
					idle(t, p.src, p.dst)
				})
			})
		}
	}
}

// TestRestart replaces the source by a process with another incarnation while
// the link is cut: what began with the old one fails, and the next link works.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, slow)
		p := newPull(t, f, 512, nil)
		back := p.src.Links()[0]
		x := p.post(t, transfer.TransferOptions{ProgressTimeout: -1})
		defer x.Release()
		time.Sleep(time.Second)
		f.network.Cut(p.src.ip, p.dst.ip)
		if err := p.src.Close(); err != nil {
			t.Fatal(err)
		}
		if err := back.Err(); !errors.Is(err, transfer.ErrClosed) {
			t.Errorf("the closed agent's link: %v", err)
		}
		src := f.open(1, nil)
		f.network.Heal(p.src.ip, p.dst.ip)
		if _, err := x.Wait(t.Context()); !errors.Is(err, transfer.ErrPeerRestarted) {
			t.Errorf("transfer: %v", err)
		}
		if err := p.link.Err(); !errors.Is(err, transfer.ErrPeerRestarted) {
			t.Errorf("link: %v", err)
		}
		p.theirs = register(t, src, p.from.memory())
		l := connect(t, p.dst, src)
		if l == p.link || l.Peer() != src.Peer() {
			t.Errorf("link to %v", l.Peer())
		}
		if _, err := readAll(t, l, p.mine, p.theirs, p.pages, transfer.TransferOptions{}); err != nil {
			t.Error(err)
		}
		p.equal(t)
	})
}

// TestDiallerRestart has the side that dials restart: the source drops the old
// process's link at the new one's hello.
func TestDiallerRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, slow)
		p := newPull(t, f, 64, nil)
		old := p.src.Links()[0]
		f.network.Cut(p.src.ip, p.dst.ip)
		if err := p.dst.Close(); err != nil {
			t.Fatal(err)
		}
		f.network.Heal(p.src.ip, p.dst.ip)
		dst := f.open(2, nil)
		l := connect(t, dst, p.src)
		if err := old.Err(); !errors.Is(err, transfer.ErrPeerRestarted) {
			t.Errorf("old link: %v", err)
		}
		mine := register(t, dst, p.to.memory())
		if _, err := readAll(t, l, mine, p.theirs, p.pages, transfer.TransferOptions{}); err != nil {
			t.Error(err)
		}
		p.equal(t)
	})
}

// TestPeerCloses has the source close in an orderly way midway.
func TestPeerCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPull(t, overWAN(t, slow), 512, nil)
		x := p.post(t, transfer.TransferOptions{})
		defer x.Release()
		time.Sleep(time.Second)
		start := time.Now()
		if err := p.src.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Wait(t.Context()); !errors.Is(err, transfer.ErrPeerGone) {
			t.Errorf("transfer: %v", err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("heard of it after %v", d)
		}
	})
}

// noRepair edits a configuration for a test that counts on what the link loses or carries.
func noRepair(_ int, c *transfer.Config) { c.Repair.Parity = -1 }

// TestFair runs a short and a long read side by side, two at a time: in turn, the short one is
// over in about twice its own time.
func TestFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPull(t, overWAN(t, slow), 1024, func(i int, c *transfer.Config) {
			noRepair(i, c) // parity takes time of the link
			c.Concurrency = 2
		})
		long := p.post(t, transfer.TransferOptions{})
		defer long.Release()
		short := make([]byte, 128*pageBytes)
		id := register(t, p.dst, transfer.Bytes(short, pageBytes))
		res, err := readAll(t, p.link, id, p.theirs, 128, transfer.TransferOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(short, p.from.b[:len(short)]) {
			t.Error("bytes differ")
		}
		// Each of the 16 senders has a chunk of the long one in hand at first; then
		// 8 chunks go in turn with as many of the long one: 32 chunks at 88 ms.
		if res.Duration > 3200*time.Millisecond {
			t.Errorf("the short one took %v", res.Duration)
		}
		if pr := long.Progress(); pr.State != transfer.Running || pr.PagesDone < 100 || pr.PagesDone > 500 {
			t.Errorf("the long one is at %+v", pr)
		}
		if _, err := long.Wait(t.Context()); err != nil {
			t.Error(err)
		}
		p.equal(t)
	})
}

// TestNotify delivers a notification once, after the pages, whatever the link
// does, and accounts for every byte that the source gave out.
func TestNotify(t *testing.T) {
	for _, model := range []string{slow, "rtt=70ms,rate=100Mbps,loss=0.01,seed=4"} {
		for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
			t.Run(fmt.Sprint(op, model), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var mu sync.Mutex
					var notes []string
					var served, ends int64
					p := newPull(t, overWAN(t, model), 200, func(i int, c *transfer.Config) {
						c.OnNotify = func(from transfer.Peer, payload []byte) {
							mu.Lock()
							defer mu.Unlock()
							notes = append(notes, fmt.Sprint(i, " ", from.ID, " ", string(payload)))
						}
						c.OnServed = func(_ transfer.Peer, s transfer.Served) {
							mu.Lock()
							defer mu.Unlock()
							served += s.Bytes
							if s.Done {
								ends++
							}
						}
					})
					_, err := run(t, p.link, op, []transfer.Desc{{Memory: p.mine, Pages: p.pages}},
						[]transfer.Desc{{Memory: p.theirs, Pages: p.pages}}, transfer.TransferOptions{Notify: []byte("moved")})
					if err != nil {
						t.Fatal(err)
					}
					time.Sleep(10 * time.Second)
					p.equal(t)
					mu.Lock()
					defer mu.Unlock()
					if len(notes) != 1 || notes[0] != fmt.Sprint(1, " ", p.dst.name, " moved") {
						t.Errorf("notifications %q", notes)
					}
					if op == transfer.Read && (served != int64(len(p.from.b)) || ends != 1) {
						t.Errorf("%d bytes and %d ends accounted for, of %d", served, ends, len(p.from.b))
					}
					idle(t, p.src, p.dst)
				})
			})
		}
	}
}

// TestDeregister takes memories away midway, at either end: the transfer fails
// and no call into the memory is under way once Deregister has returned.
func TestDeregister(t *testing.T) {
	for _, side := range []string{"source", "sink"} {
		t.Run(side, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPull(t, overWAN(t, slow), 512, nil)
				x := p.post(t, transfer.TransferOptions{})
				defer x.Release()
				time.Sleep(time.Second)
				n, id, calls := p.src, p.theirs, &p.from.reading
				if side == "sink" {
					n, id, calls = p.dst, p.mine, &p.to.landing
				}
				if err := n.Deregister(id); err != nil {
					t.Fatal(err)
				}
				before := calls.Load()
				_, err := x.Wait(t.Context())
				if !errors.Is(err, transfer.ErrUnknownMemory) {
					t.Errorf("transfer: %v", err)
				}
				if calls.Load() != before {
					t.Error("the memory was used after Deregister")
				}
				if err := n.Deregister(id); !errors.Is(err, transfer.ErrUnknownMemory) {
					t.Errorf("again: %v", err)
				}
				time.Sleep(time.Second)
				idle(t, p.src, p.dst)
			})
		})
	}
}
