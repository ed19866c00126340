package transfer_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvferry/kvferry/transfer"
)

// TestSlowIsNotStalled has chunks take far longer than ServeTimeout, since the link is slow, or another transfer of a higher class, or of their
// own, goes first: they all go on to their end.
func TestSlowIsNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, given := prometheus.NewRegistry(), &gatheredLog{}
		p := newPull(t, overWAN(t, "rtt=20ms,rate=1Mbps,loss=0"), 48, func(i int, c *transfer.Config) { // 3 MiB: 26 s
			c.ServeTimeout, c.Stripes, c.StreamsPerStripe, c.AgeAfter, c.Codec, c.ChunkBytes = 2*time.Second, 2, 2, -1, transfer.CodecOff, 512<<10
			if i == 1 {
				c.Registerer, c.Logger = r, slog.New(slog.NewTextHandler(given, nil))
			}
		})
		lower := p.part(t, 0, 32, transfer.TransferOptions{Class: transfer.Background, ProgressTimeout: -1})
		defer lower.Release()
		time.Sleep(3 * time.Second) // its chunks are half written
		higher := p.post(t, transfer.TransferOptions{ProgressTimeout: -1})
		defer higher.Release()
		began := time.Now()
		for name, x := range map[string]*transfer.Transfer{"interactive": higher, "background": lower} {
			if _, err := x.Wait(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if took := time.Since(began); took < 20*time.Second {
			t.Errorf("over after %v: nothing was slow", took)
		}
		p.equal(t)
		if n := counter(t, r, "kvferry_transfer_stalled_reads_total"); n != 0 {
			t.Errorf("%v reads are counted as stalled", n)
		}
		if text := given.String(); strings.Contains(text, "takes nothing") {
			t.Errorf("a connection was given up: %s", text)
		}
	})
}

// TestStarvedIsNotStalled has a chunk wait behind those of a higher class, of the same connection, for longer than a chunk may take.
func TestStarvedIsNotStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPull(t, overWAN(t, "rtt=20ms,rate=1Mbps,loss=0"), 96, func(_ int, c *transfer.Config) {
			c.ServeTimeout, c.Stripes, c.StreamsPerStripe, c.AgeAfter, c.Codec, c.ChunkBytes = 500*time.Millisecond, 1, 2, -1, transfer.CodecOff, 512<<10
		})
		lower := p.part(t, 0, 16, transfer.TransferOptions{Class: transfer.Background, ProgressTimeout: -1})
		defer lower.Release()
		time.Sleep(time.Second)
		higher := p.post(t, transfer.TransferOptions{ProgressTimeout: -1}) // 6 MiB: 52 s
		defer higher.Release()
		began := time.Now()
		if _, err := higher.Wait(t.Context()); err != nil {
			t.Errorf("interactive: %v", err)
		}
		if took := time.Since(began); took < 45*time.Second {
			t.Errorf("interactive took %v: the other was not starved for longer than 30 s", took)
		}
		if _, err := lower.Wait(t.Context()); err != nil {
			t.Errorf("background: %v", err)
		}
		p.equal(t)
	})
}

// gatheredLog is what was logged.
type gatheredLog struct {
	mu sync.Mutex
	b  strings.Builder
}

func (g *gatheredLog) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Write(b)
}

func (g *gatheredLog) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.String()
}

// TestDeadPullerIsForgotten: what a puller that is gone without a word holds of buffers is free at the idle timeout, and the rest, which is
// kept for one that was only cut off and may not know of that before another idle timeout, after what that one has to dial again.
func TestDeadPullerIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, slow)
		p := newPull(t, f, 256, nil)
		x := p.post(t, transfer.TransferOptions{})
		defer x.Release()
		time.Sleep(300 * time.Millisecond)
		f.network.Cut(p.src.ip, p.dst.ip)
		cut, link := time.Now(), p.src.Links()[0]
		const idleTimeout, connectTimeout, look = 30 * time.Second, 10 * time.Second, 100 * time.Millisecond
		for link.Stats().Streams > 0 {
			time.Sleep(look)
		}
		if took := time.Since(cut); took > idleTimeout+time.Second {
			t.Errorf("buffers are held for %v", took)
		}
		for link.Err() == nil {
			time.Sleep(look)
		}
		if took := time.Since(cut); took > 2*idleTimeout+connectTimeout+time.Second {
			t.Errorf("the link is kept for %v", took)
		}
		if s := link.Stats(); s.Transfers != 0 || s.QueuedBytes != 0 || len(p.src.Links()) != 0 {
			t.Errorf("left: %+v", s)
		}
	})
}
