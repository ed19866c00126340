package transfer

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/wire"
)

// puller is a peer that reads as a test has it, over two connections.
type puller struct {
	b       *besieged
	x       *attacker
	conns   []*quic.Conn
	control *quic.Stream
	failed  chan wire.Failure // capacity: more than a test begins
	mu      sync.Mutex
	pages   map[uint64]map[uint32]bool // of each read, that came whole
}

const pullerPage, pullerPages = 64 << 10, 128 // 8 MiB, far more than windows hold

func newPuller(t *testing.T, b *besieged, streams int64) *puller {
	t.Helper()
	p := &puller{b: b, x: b.attacker(netip.MustParseAddr("10.0.0.7"), clientOf(b.ca, "p")), failed: make(chan wire.Failure, 8), pages: map[uint64]map[uint32]bool{}}
	for i := range 2 {
		conn, err := p.x.transport.Dial(t.Context(), b4433, p.x.tls, &quic.Config{MaxIdleTimeout: 30 * time.Second, KeepAlivePeriod: 5 * time.Second, MaxIncomingUniStreams: streams})
		if err != nil {
			t.Fatal(err)
		}
		control, err := p.x.hello(t.Context(), conn, "p", wire.Nonce{1}, uint32(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if p.conns = append(p.conns, conn); i == 0 {
			p.control = control
			go p.listen()
		}
	}
	return p
}

// listen reads what the source says of its transfers.
func (p *puller) listen() {
	for {
		var head [wire.FrameHeaderBytes]byte
		if _, err := io.ReadFull(p.control, head[:]); err != nil {
			return
		}
		h, err := wire.DecodeFrameHeader(head[:])
		if err != nil {
			return
		}
		b, err := readPayload(p.control, int(h.Length))
		if err != nil {
			return
		}
		if h.Type == wire.TypeFailed {
			if f, err := wire.DecodeFailure(b); err == nil {
				p.failed <- f
			}
		}
	}
}

func (p *puller) send(t *testing.T, typ wire.Type, id uint64, payload []byte) {
	t.Helper()
	frame, err := wire.AppendFrame(nil, typ, wire.FlagOwn, id, payload)
	if err == nil {
		_, err = p.control.Write(frame)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p *puller) begin(t *testing.T, id uint64, mem MemoryID, class Class) {
	t.Helper()
	m, err := wire.AppendBegin(nil, wire.Begin{Op: wire.OpRead, Class: wire.Class(class), Token: []byte{}, Notify: []byte{}, Descs: []wire.Desc{{Memory: uint32(mem), Pages: pullerPages}}})
	if err != nil {
		t.Fatal(err)
	}
	p.send(t, wire.TypeBegin, id, m)
}

// read takes the chunks that come over a connection, one after the other, until that ends.
func (p *puller) read(conn *quic.Conn, each time.Duration) {
	for {
		s, err := conn.AcceptUniStream(context.Background())
		if err != nil {
			return
		}
		time.Sleep(each)
		b, err := io.ReadAll(s)
		var h wire.ChunkHeader
		if err != nil || len(b) < wire.ChunkFixedBytes || wire.DecodeChunkHeader(&h, b[:wire.ChunkFixedBytes]) != nil {
			continue
		}
		p.mu.Lock()
		if p.pages[h.Transfer] == nil {
			p.pages[h.Transfer] = map[uint32]bool{}
		}
		for i := range h.Pages {
			p.pages[h.Transfer][h.FirstPage+i] = true
		}
		p.mu.Unlock()
	}
}

// came is how many pages of a read did.
func (p *puller) came(id uint64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pages[id])
}

// A peer that is alive and takes nothing of what it reads, for want of reading or of streams, is not served for longer than ServeTimeout: the
// transfer ends, nothing of it is held, it is counted, and the link goes on. One that reads over some of its connections loses the others.
func TestPullerTakesNothing(t *testing.T) {
	for _, tc := range []struct {
		name    string
		streams int64 // that the peer allows
		reads   int   // connections
	}{
		{"reads nothing", 100, 0},
		{"has no streams", -1, 0},
		{"reads over one connection", 100, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := besiege(t, nil)
				defer b.close()
				mem, err := b.server.Register(Bytes(make([]byte, pullerPages*pullerPage), pullerPage))
				if err != nil {
					t.Fatal(err)
				}
				p := newPuller(t, b, tc.streams)
				defer p.x.close()
				for _, c := range p.conns[:tc.reads] {
					go p.read(c, 12*time.Second) // 8 MiB take a minute and a half
				}
				began, m := time.Now(), b.server.metrics
				p.begin(t, 1, mem, Interactive)
				time.Sleep(time.Second)
				if n := testutil.ToFloat64(m.streams); n == 0 && tc.streams > 0 {
					t.Error("the source writes nothing")
				}
				limit := b.server.cfg.ServeTimeout
				time.Sleep(time.Until(began.Add(limit - time.Second)))
				if n := testutil.ToFloat64(m.stalled) + 2 - testutil.ToFloat64(m.stripes); n != 0 {
					t.Errorf("ended before %v", limit)
				}
				time.Sleep(time.Until(began.Add(limit + limit/serveLooks + time.Second)))
				l := b.server.Links()[0]
				if tc.reads > 0 {
					if err := context.Cause(p.conns[1].Context()); !isCode(err, CodeStripeLost) {
						t.Errorf("the connection that is not read: %v", err)
					}
					time.Sleep(2 * limit)
					if n := p.came(1); n != pullerPages {
						t.Errorf("%d pages came of %d over the other", n, pullerPages)
					}
					p.send(t, wire.TypeDone, 1, nil)
					time.Sleep(time.Second)
				} else {
					f := <-p.failed
					if took := time.Since(began); Code(f.Code) != CodeStalled || took > limit+2*limit/serveLooks {
						t.Errorf("ended after %v: code %v, %q", took, Code(f.Code), f.Message)
					}
				}
				if got, want := testutil.ToFloat64(m.stalled), float64(1-tc.reads); got != want {
					t.Errorf("%v reads are counted as stalled, want %v", got, want)
				}
				if s := l.Stats(); s.Transfers != 0 || s.Streams != 0 || s.QueuedBytes != 0 || testutil.ToFloat64(m.streams) != 0 {
					t.Errorf("held: %+v", s)
				}
				if tc.streams > 0 && tc.reads == 0 { // it may have what it reads
					for _, c := range p.conns {
						go p.read(c, 0)
					}
					p.begin(t, 2, mem, Interactive)
					time.Sleep(5 * time.Second)
					if n := p.came(2); n != pullerPages {
						t.Errorf("%d pages came of %d when it reads", n, pullerPages)
					}
				}
				if took := b.letIn(); took > time.Second {
					t.Errorf("another peer waited %v", took)
				}
			})
		})
	}
}

// What is held for a higher class that moves nothing is not served for longer.
func TestPullerTakesNothingOfAnyClass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := besiege(t, nil)
		defer b.close()
		mem, err := b.server.Register(Bytes(make([]byte, pullerPages*pullerPage), pullerPage))
		if err != nil {
			t.Fatal(err)
		}
		p := newPuller(t, b, 100)
		defer p.x.close()
		began, limit := time.Now(), b.server.cfg.ServeTimeout
		for id := range uint64(classes) { // from the lowest up
			p.begin(t, id+1, mem, Class(classes-1-id))
			time.Sleep(time.Second) // it is being written
		}
		for range classes {
			if f := <-p.failed; Code(f.Code) != CodeStalled {
				t.Errorf("ended with %v, %q", Code(f.Code), f.Message)
			}
		}
		if took := time.Since(began); took > limit+4*limit/serveLooks {
			t.Errorf("the last ended after %v", took)
		}
		if s := b.server.Links()[0].Stats(); s.Transfers != 0 || s.Streams != 0 || s.QueuedBytes != 0 {
			t.Errorf("held: %+v", s)
		}
	})
}

func isCode(err error, want Code) bool {
	e, ok := errors.AsType[*quic.ApplicationError](err)
	return ok && Code(e.ErrorCode) == want
}

// The verdict on a write that is not done, by what moved when.
func TestPatience(t *testing.T) {
	start := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	for _, tc := range []struct {
		name                       string
		began, since, stripe, link int // seconds; below 0: never
		now                        int
		want                       verdict
	}{
		{"nothing yet", 0, 0, -1, -1, 59, goesOn},
		{"nothing at all", 0, 0, -1, -1, 60, peerStuck},
		{"it moved a while ago", 0, 0, 30, 30, 89, goesOn},
		{"it moved long ago", 0, 0, 30, 30, 90, peerStuck},
		{"another connection moves", 0, 0, -1, 59, 60, stripeStuck},
		{"another moved as long ago", 0, 0, 0, 5, 65, peerStuck},
		{"held until just now", 0, 55, 0, 54, 110, goesOn},
		{"held until a while ago", 0, 55, 0, 60, 115, stripeStuck},
		{"held, and nothing moved", 0, 55, 0, 0, 62, peerStuck},
		{"moved before it began", 100, 100, 10, 10, 159, goesOn},
		{"slow", 0, 0, 3599, 3599, 3599, goesOn},
		{"trickles", 0, 0, 3600, 3600, 3600, peerStuck},
	} {
		var stripe, link moved
		for m, s := range map[*moved]int{&stripe: tc.stripe, &link: tc.link} {
			if s >= 0 {
				m.now(at(s))
			}
		}
		p := patience{limit: time.Minute, stripe: &stripe, all: &link, start: at(tc.began), began: at(tc.began), since: at(tc.since)}
		if got := p.judge(at(tc.now)); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}
