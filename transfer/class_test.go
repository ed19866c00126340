package transfer_test

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// part posts a read of pages [first, first+pages) of p.
func (p *pull) part(t *testing.T, first, pages int, opts transfer.TransferOptions) *transfer.Transfer {
	t.Helper()
	d := func(id transfer.MemoryID) []transfer.Desc {
		return []transfer.Desc{{Memory: id, Offset: uint64(first) * pageBytes, Pages: uint32(pages)}}
	}
	x, err := p.link.Prepare(transfer.Read, d(p.mine), d(p.theirs), opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Post(t.Context()); err != nil {
		t.Fatal(err)
	}
	return x
}

// TestPreemption posts interactive reads into a lower one that fills the link:
// the first of their small pages comes a round trip later and what was sent before
// has left the link's queue of at most one bandwidth-delay product (70 ms each),
// while every stripe has half-written chunks of 88 ms.
func TestPreemption(t *testing.T) {
	const back, small, smallPage = 1600, 1 << 20, 4 << 10
	for _, class := range []transfer.Class{transfer.Background} {
		t.Run(class.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPull(t, overWAN(t, slow), back, nil)
				b, got := random(9, small), make([]byte, small)
				theirs, mine := register(t, p.src, transfer.Bytes(b, smallPage)), register(t, p.dst, transfer.Bytes(got, smallPage))
				waitMemory(t, p.link, theirs)
				x := p.post(t, transfer.TransferOptions{Class: class})
				time.Sleep(3 * time.Second)
				var firsts, wholes []time.Duration
				for range 10 {
					clear(got)
					var mu sync.Mutex
					var first time.Duration
					start := time.Now()
					d := func(id transfer.MemoryID) []transfer.Desc {
						return []transfer.Desc{{Memory: id, Pages: small / smallPage}}
					}
					res, err := run(t, p.link, transfer.Read, d(mine), d(theirs), transfer.TransferOptions{OnLanded: func(int, int, int) {
						mu.Lock()
						defer mu.Unlock()
						if first == 0 {
							first = time.Since(start)
						}
					}})
					if err != nil || !bytes.Equal(b, got) {
						t.Fatalf("interactive: %v", err)
					}
					firsts, wholes = append(firsts, first), append(wholes, res.Duration)
					time.Sleep(137 * time.Millisecond)
				}
				slices.Sort(firsts)
				slices.Sort(wholes)
				t.Logf("first page after %v, whole MiB after %v", firsts, wholes)
				if most := 145 * time.Millisecond; firsts[len(firsts)-1] > most {
					t.Errorf("first page after %v, want %v at most", firsts[len(firsts)-1], most)
				}
				if most := 450 * time.Millisecond; wholes[len(wholes)-1] > most {
					t.Errorf("1 MiB after %v, want %v at most", wholes[len(wholes)-1], most)
				}
				if _, err := x.Wait(t.Context()); err != nil {
					t.Errorf("lower class: %v", err)
				}
				_ = x.Release()
				p.equal(t)
				time.Sleep(time.Second)
				idle(t, p.src, p.dst)
			})
		})
	}
}

// TestStrictClasses: while an interactive read has anything to send, pages of the
// lower ones stop, but for what was sent before; they are not taken for stalled
// however long it lasts, know that they wait, and go on afterwards.
func TestStrictClasses(t *testing.T) {
	const low, high = 160, 2000 // 10 MiB; 125 MiB: 11 s
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var waited []string
		p := newPull(t, overWAN(t, slow), low+low+high, func(_ int, c *transfer.Config) {
			noRepair(0, c) // parity takes time of the link
			c.ProgressTimeout = 4 * time.Second
			c.Share = func(_ transfer.Peer, token []byte) transfer.Share {
				return transfer.Share{Tenant: "of " + string(token)}
			}
			c.OnServed = func(_ transfer.Peer, s transfer.Served) {
				if !s.First {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				waited = append(waited, fmt.Sprint(s.Class, " ", s.Tenant, " ", s.Waited.Round(8*time.Second)))
			}
		})
		// Something half written first, then the high one, then one that never began.
		began := p.part(t, 0, low, transfer.TransferOptions{Class: transfer.Background, Token: []byte("a")})
		time.Sleep(500 * time.Millisecond)
		top := p.part(t, low+low, high, transfer.TransferOptions{Token: []byte("b")})
		time.Sleep(500 * time.Millisecond)
		fresh := p.part(t, low, low, transfer.TransferOptions{Class: transfer.Replication, Token: []byte("c")})
		time.Sleep(5 * time.Second)
		before := began.Progress()
		if q := before.Queue; !q.Waits || q.Transfers != 1 || q.Bytes == 0 || q.Bytes > high*pageBytes {
			t.Errorf("the half-written transfer is told %+v", q)
		}
		if q := fresh.Progress().Queue; !q.Waits || q.Transfers != 2 || q.Bytes < low*pageBytes-before.BytesDone-(16+2)<<20 || q.Bytes > (high+low)*pageBytes {
			t.Errorf("the last transfer is told %+v", q)
		}
		if s := p.src.Links()[0].Stats(); s.QueuedByClass[transfer.Interactive] == 0 || s.QueuedByClass[transfer.Replication] != low*pageBytes ||
			s.QueuedBytes != s.QueuedByClass[0]+s.QueuedByClass[1]+s.QueuedByClass[2] {
			t.Errorf("backlog %+v", s)
		}
		if res, err := top.Wait(t.Context()); err != nil || res.Duration > 12500*time.Millisecond {
			t.Errorf("interactive: %v, %v", res.Duration, err)
		}
		if got := began.Progress(); got.PagesDone != before.PagesDone && got.PagesDone-before.PagesDone > 4 {
			t.Errorf("%d pages of the lower class landed meanwhile", got.PagesDone-before.PagesDone)
		}
		if got := fresh.Progress(); got.PagesDone > 4 {
			t.Errorf("%d pages of the lowest class landed meanwhile", got.PagesDone)
		}
		for _, x := range []*transfer.Transfer{began, fresh} {
			if res, err := x.Wait(t.Context()); err != nil || res.PagesAgain != 0 || res.Queue.Waits {
				t.Errorf("%+v, %v", res, err)
			}
		}
		for _, x := range []*transfer.Transfer{began, top, fresh} {
			_ = x.Release()
		}
		p.equal(t)
		time.Sleep(time.Second)
		idle(t, p.src, p.dst)
		slices.Sort(waited)
		if want := []string{"background of a 0s", "interactive of b 0s", "replication of c 8s"}; !slices.Equal(waited, want) {
			t.Errorf("waits %q, want %q", waited, want)
		}
	})
}

// TestCapOnTheWire: a link's rate holds from end to end, and a rate so low that
// nothing arrives within the progress timeout is no stall.
func TestCapOnTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPull(t, overWAN(t, slow), 48, func(_ int, c *transfer.Config) {
			c.MaxRate, c.ChunkBytes, c.ProgressTimeout = 100_000, pageBytes, 500*time.Millisecond // a page takes 655 ms
		})
		x := p.post(t, transfer.TransferOptions{})
		res, err := x.Wait(t.Context())
		_ = x.Release()
		want := 47 * pageBytes * time.Second / 100_000 // and the last one is not waited for
		if err != nil || res.Duration < want || res.Duration > want+200*time.Millisecond {
			t.Errorf("%v, %v, want %v and a round trip", res.Duration, err, want)
		}
		p.equal(t)
		time.Sleep(time.Second)
		idle(t, p.src, p.dst)
	})
}
