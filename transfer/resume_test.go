package transfer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/transfertest"
)

// A cut is what happens to the path of a transfer midway.
type cut struct {
	after, lasts time.Duration
	way          string // "both", "to the source", "to the destination"
}

func (c cut) String() string { return fmt.Sprintf("%v after %v %s", c.lasts, c.after, c.way) }

// resumed is what one transfer with a cut came to.
type resumed struct {
	transfer.Result
	sent   int64         // page bytes that left the source, as they travel
	healed time.Duration // from the heal to the end
}

const (
	resumeStripes, resumeStreams, resumePages = 4, 2, 128
	resumeChunk                               = 256 << 10
	keepAlive                                 = 10 * time.Second // the default
)

// resume reads 8 MiB over 100 Mbit/s with one cut.
func resume(t *testing.T, c cut, name string) (out resumed) {
	t.Helper()
	f := overWAN(t, slow)
	var sent atomic.Int64
	edit := func(cfg *transfer.Config) {
		cfg.Stripes, cfg.StreamsPerStripe, cfg.ChunkBytes, cfg.Codec = resumeStripes, resumeStreams, resumeChunk, name
		cfg.OnServed = func(_ transfer.Peer, s transfer.Served) { sent.Add(s.Bytes) }
	}
	p := &pull{src: f.open(1, edit), dst: f.open(2, edit), from: newProbe(bf16(5, resumePages*pageBytes)), to: newProbe(make([]byte, resumePages*pageBytes)), pages: resumePages}
	from, to := p.from.memory(), p.to.memory()
	from.Element, to.Element = codec.BF16, codec.BF16
	p.theirs, p.mine = register(t, p.src, from), register(t, p.dst, to)
	p.link = connect(t, p.dst, p.src)
	x := p.post(t, transfer.TransferOptions{ProgressTimeout: -1})
	defer x.Release()
	time.Sleep(c.after)
	switch c.way {
	case "both":
		f.network.Cut(p.src.ip, p.dst.ip)
	case "to the source":
		f.network.CutOneWay(p.dst.ip, p.src.ip)
	case "to the destination":
		f.network.CutOneWay(p.src.ip, p.dst.ip)
	}
	time.Sleep(c.lasts)
	f.network.Heal(p.src.ip, p.dst.ip)
	healed := time.Now()
	var err error
	if out.Result, err = x.Wait(t.Context()); err != nil {
		t.Fatalf("%v: %v", c, err)
	}
	out.healed = time.Since(healed)
	p.equal(t)
	out.sent = sent.Load()
	time.Sleep(time.Minute) // connections that died unheard
	idle(t, p.src, p.dst)
	return out
}

// resumeCuts are the cuts of a run: all of them with -resume.all, else those that differ most.
func resumeCuts(coded bool) (out []cut) {
	const at = 500 * time.Millisecond
	for _, lasts := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second} {
		for _, way := range []string{"both", "to the source", "to the destination"} {
			most := way == "both" && !coded || lasts == 30*time.Second || lasts == time.Second && !coded
			if *resumeAll || most && !testing.Short() || lasts == 30*time.Second && way == "to the source" {
				out = append(out, cut{at, lasts, way})
			}
		}
	}
	for _, after := range []time.Duration{0, 20 * time.Millisecond, 200 * time.Millisecond} {
		if *resumeAll || !testing.Short() && !coded || after == 0 && coded {
			out = append(out, cut{after, time.Second, "both"})
		}
	}
	return out
}

var resumeAll = flag.Bool("resume.all", false, "TestResume: all cuts, raw and coded")

// TestResume cuts the path of a read for 0.1 s to 30 s, at several points, both ways or one way, raw and coded. Every read goes on
// or resumes, and what it costs is bounded in closed form:
//
// It sends again at most what was in flight: the chunks open at the sender, and the windows of its connections, in slow start at most
// twice what the path and its queue hold.
//
// After the heal it takes the time of what is left and repeated at the link's rate; what a connection waits before it probes again,
// which is as long as the silence was, and the period of keep-alives at most; and eight seconds: a few round trips of probes, fresh connections and
// the slow starts. Of 300 runs of the longest cut one way, one came within 1.2 s of that.
func TestResume(t *testing.T) {
	m, err := wan.Parse(slow)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{transfer.CodecOff, "huff"} {
		ratio := 1.0
		if name != transfer.CodecOff {
			ratio = 1.5
		}
		for _, c := range resumeCuts(ratio > 1) {
			t.Run(name+" "+c.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := resume(t, c, name)
					again, most := r.sent-r.BytesTotal, int64(resumeStripes*resumeStreams*resumeChunk)+int64(ratio*2*2*float64(m.BDP()))
					limit := time.Duration(float64(r.BytesTotal+again)/(0.85*m.Rate/8)*1e9) + min(c.lasts, keepAlive) + 8*time.Second
					t.Logf("%d bytes again, at most %d; %d pages came twice; over %v after the heal, at most %v", again, most, r.PagesDouble, r.healed, limit)
					if again > most {
						t.Errorf("%d bytes were sent again, at most %d were in flight", again, most)
					}
					if r.healed > limit {
						t.Errorf("over %v after the heal, want %v at most", r.healed, limit)
					}
				})
			})
		}
	}
}

// TestResumeSlowSink has the destination's sink hang, so that it stops reading and the source waits on flow control. The read ends typed,
// after the progress timeout and not before, and the link is as good as before.
func TestResumeSlowSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPull(t, overWAN(t, slow), 256, func(_ int, c *transfer.Config) { c.ProgressTimeout = 5 * time.Second })
		release := make(chan struct{})
		p.to.onLand = func(_ transfer.Desc, page int) error {
			if page >= 100 {
				<-release
			}
			return nil
		}
		x := p.post(t, transfer.TransferOptions{})
		began := time.Now()
		for x.Progress().PagesDone < 100 {
			<-x.Changed()
		}
		last := time.Now()
		time.AfterFunc(6*time.Second, func() { close(release) })
		_, err := x.Wait(t.Context()) // it is quiet when the last call has returned
		if !errors.Is(err, transfer.ErrStalled) {
			t.Errorf("a sink that hangs: %v", err)
		}
		if d := time.Since(last); d < 5*time.Second || d > 7*time.Second {
			t.Errorf("ended %v after the last page, %v after the start", d, time.Since(began))
		}
		p.to.onLand = nil
		time.Sleep(time.Second)
		if _, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{}); err != nil {
			t.Errorf("the next read: %v", err)
		}
		p.equal(t)
		time.Sleep(time.Second)
		idle(t, p.src, p.dst)
	})
}

// TestDeadlines: to wait 60 s behind another transfer is no stall with a progress timeout of 5 s, and is bounded by a timeout of its
// own; the caller's deadline is above both, and so is that of connecting, which a source that is not there runs into.
func TestDeadlines(t *testing.T) {
	for name, tc := range map[string]struct {
		opts transfer.TransferOptions
		want error
		low  time.Duration // when it ends
		high time.Duration
	}{
		"waits":         {transfer.TransferOptions{}, nil, 60 * time.Second, 90 * time.Second},
		"queue timeout": {transfer.TransferOptions{QueueTimeout: 20 * time.Second}, transfer.ErrQueued, 20 * time.Second, 24 * time.Second},
		"its own":       {transfer.TransferOptions{QueueTimeout: 20 * time.Second, Timeout: 7 * time.Second}, context.DeadlineExceeded, 7 * time.Second, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPull(t, overWAN(t, "rtt=20ms,rate=2Mbps,loss=0"), 256, func(_ int, c *transfer.Config) { c.ProgressTimeout, c.AgeAfter = 5*time.Second, -1 })
				ahead := p.post(t, transfer.TransferOptions{}) // 16 MiB: 67 s
				defer ahead.Release()
				time.Sleep(500 * time.Millisecond)
				small := register(t, p.dst, transfer.Bytes(make([]byte, 2*pageBytes), pageBytes))
				tc.opts.Class = transfer.Background
				began := time.Now()
				x, err := p.link.Prepare(transfer.Read, []transfer.Desc{{Memory: small, Pages: 2}}, []transfer.Desc{{Memory: p.theirs, Pages: 2}}, tc.opts)
				if err != nil {
					t.Fatal(err)
				}
				defer x.Release()
				if err := x.Post(t.Context()); err != nil {
					t.Fatal(err)
				}
				_, err = x.Wait(t.Context())
				if d := time.Since(began); !errors.Is(err, tc.want) || errors.Is(err, transfer.ErrStalled) || d < tc.low || d > tc.high {
					t.Errorf("ended after %v: %v; want %v to %v: %v", d, err, tc.low, tc.high, tc.want)
				}
				if _, err := ahead.Wait(t.Context()); err != nil {
					t.Errorf("the one before it: %v", err)
				}
			})
		})
	}
	t.Run("connecting", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := overWAN(t, slow)
			dst := f.open(2, func(c *transfer.Config) { c.ConnectTimeout, c.ProgressTimeout = 3*time.Second, time.Minute })
			began := time.Now()
			if _, err := dst.Connect(t.Context(), "10.0.0.1:4433", transfertest.Name("r1", "n")); !errors.Is(err, transfer.ErrUnreachable) || time.Since(began) > 4*time.Second {
				t.Errorf("ended after %v: %v", time.Since(began), err)
			}
		})
	})
}
