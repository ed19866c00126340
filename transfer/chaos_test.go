package transfer_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// TestChaos runs transfers of random shapes and fates over a link that loses,
// corrupts and is cut now and then, against the plain copy as oracle.
func TestChaos(t *testing.T) {
	seeds := uint64(2)
	if raceEnabled {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := overWAN(t, fmt.Sprintf("rtt=30ms,rate=300Mbps,loss=0.001,seed=%d", seed))
				p := newPull(t, f, 400, nil)
				rng := rand.New(rand.NewPCG(seed, 1))
				var flips atomic.Int64
				p.from.onRead = func(_ transfer.Desc, first int, dst []byte, _ []uint32) error {
					if flips.Add(1)%97 == 0 {
						dst[first%len(dst)] ^= 1
					}
					return nil
				}
				stop := make(chan struct{})
				var wg sync.WaitGroup
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						case <-time.After(700 * time.Millisecond):
						}
						f.network.Cut(p.src.ip, p.dst.ip)
						time.Sleep(150 * time.Millisecond)
						f.network.Heal(p.src.ip, p.dst.ip)
					}
				})
				for range 12 {
					n := 1 + rng.IntN(400)
					from, to := rng.IntN(401-n), rng.IntN(401-n)
					cancelAfter := time.Duration(-1)
					if rng.IntN(3) == 0 {
						cancelAfter = time.Duration(rng.IntN(400)) * time.Millisecond
					}
					clear(p.to.b)
					x, err := p.link.Prepare(transfer.Read,
						[]transfer.Desc{{Memory: p.mine, Offset: uint64(to * pageBytes), Pages: uint32(n)}},
						[]transfer.Desc{{Memory: p.theirs, Offset: uint64(from * pageBytes), Pages: uint32(n)}}, transfer.TransferOptions{})
					if err != nil {
						t.Fatal(err)
					}
					if err := x.Post(t.Context()); err != nil {
						t.Fatal(err)
					}
					if cancelAfter >= 0 {
						time.Sleep(cancelAfter)
						x.Release()
					}
					_, err = x.Wait(t.Context())
					if err != nil && !(cancelAfter >= 0 && errors.Is(err, transfer.ErrCancelled)) && !errors.Is(err, transfer.ErrChecksumMismatch) {
						t.Errorf("transfer %d: %v", x.ID(), err)
					}
					x.Release()
					landed := x.Landed(0)
					for i := range 400 {
						got := p.to.b[i*pageBytes : (i+1)*pageBytes]
						want := make([]byte, pageBytes)
						if landed.Has(i - to) {
							want = p.from.b[(from+i-to)*pageBytes:][:pageBytes]
						} else if err == nil && i >= to && i < to+n {
							t.Fatalf("page %d of a done transfer has not landed", i-to)
						}
						if !bytes.Equal(got, want) {
							t.Fatalf("transfer %d: page %d is wrong", x.ID(), i)
						}
					}
				}
				close(stop)
				wg.Wait()
				time.Sleep(time.Second)
				idle(t, p.src, p.dst)
			})
		})
	}
}
