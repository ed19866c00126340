package transfer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// TestStuckSourceHoldsNobody has one call to an interactive transfer's source not
// return. What it should have given is asked for again, so that transfer ends;
// lower classes go on at the link's rate, before it has ended and after, nothing
// counts as waiting, and no bytes are said to be queued.
func TestStuckSourceHoldsNobody(t *testing.T) {
	for _, over := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newPull(t, overWAN(t, "rtt=20ms,rate=100Mbps,loss=0"), 256, nil)
			gate := make(chan struct{})
			var calls atomic.Int32
			p.from.onRead = func(transfer.Desc, int, []byte, []uint32) error {
				if calls.Add(1) == 1 {
					<-gate
				}
				return nil
			}
			x := p.post(t, transfer.TransferOptions{})
			if over {
				if _, err := x.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
				if n := p.src.Links()[0].Stats().QueuedBytes; n != 0 {
					t.Errorf("%d bytes are queued of a transfer that is over", n)
				}
			} else {
				time.Sleep(1700 * time.Millisecond) // 16 MiB take 1.4 s; what is missing is not asked for again yet
				if got := x.Progress(); got.State != transfer.Running || got.PagesDone == 0 {
					t.Fatalf("the interactive transfer: %+v", got)
				}
			}
			lower := newProbe(make([]byte, 256*pageBytes))
			mine := register(t, p.dst, lower.memory())
			start := time.Now()
			y, err := p.link.Prepare(transfer.Read, []transfer.Desc{{Memory: mine, Pages: 256}}, []transfer.Desc{{Memory: p.theirs, Pages: 256}}, transfer.TransferOptions{Class: transfer.Background})
			if err != nil {
				t.Fatal(err)
			}
			if err := y.Post(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			res, err := y.Wait(ctx)
			cancel()
			if err != nil || string(lower.b) != string(p.from.b) {
				t.Errorf("over %v: the background transfer after %v: %v", over, time.Since(start), err)
			}
			if most := 3 * time.Second; res.Duration > most { // 1.4 s at the link's rate
				t.Errorf("over %v: the background transfer took %v, want %v at most", over, res.Duration, most)
			}
			close(gate)
			if _, err := x.Wait(t.Context()); err != nil {
				t.Error(err)
			}
			p.equal(t)
			_ = x.Release()
			_ = y.Release()
			time.Sleep(time.Second)
			idle(t, p.src, p.dst)
		})
	}
}
