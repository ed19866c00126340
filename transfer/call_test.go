package transfer_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
)

// TestCallCancel ends the handler's context with the caller's, and both with
// the link.
func TestCallCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, slow)
		var ended atomic.Int64
		hang := func(ctx context.Context, _ transfer.Peer, _ []byte) ([]byte, error) {
			<-ctx.Done()
			ended.Add(1)
			return nil, context.Cause(ctx)
		}
		a, b := f.open(1, func(c *transfer.Config) { c.Handler = hang }), f.open(2, nil)
		l := connect(t, b, a)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := l.Call(ctx, nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		time.Sleep(100 * time.Millisecond)
		if ended.Load() != 1 {
			t.Error("the handler still runs a round trip later")
		}
		for range 300 {
			go l.Call(t.Context(), nil)
		}
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		if n := l.Stats().Calls; n != 256 { // the rest was refused
			t.Errorf("%d calls in flight, the bound is 256", n)
		}
		if err := l.Close(transfer.CodeOK); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
		if ended.Load() != 257 {
			t.Errorf("%d handlers of 257 ended", ended.Load())
		}
	})
}

// TestAnswerLost loses the connection under a call: the call fails, the link
// lives, and the next call is answered.
func TestAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, slow)
		a := f.open(1, func(c *transfer.Config) {
			c.Handler = func(context.Context, transfer.Peer, []byte) ([]byte, error) { return []byte("ok"), nil }
		})
		b := f.open(2, nil)
		l := connect(t, b, a)
		time.Sleep(time.Second) // nothing is left to be acknowledged: the next packet is the call's
		var mu sync.Mutex
		var port netip.AddrPort
		f.network.Tap(func(p wan.Packet) wan.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if p.From.Addr() == b.ip && !port.IsValid() {
				port = p.From
			}
			if p.From == port || p.To == port {
				return wan.Drop
			}
			return wan.Pass
		})
		start := time.Now()
		if _, err := l.Call(t.Context(), []byte("x")); !errors.Is(err, transfer.ErrAnswerLost) || time.Since(start) > 35*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if got, err := l.Call(t.Context(), []byte("x")); err != nil || string(got) != "ok" {
			t.Errorf("next call: %q, %v", got, err)
		}
		if got, err := a.Links()[0].Call(t.Context(), nil); err == nil || errors.Is(err, transfer.ErrAnswerLost) {
			t.Errorf("a call the other way: %q, %v", got, err)
		}
	})
}
