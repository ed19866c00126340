package transfer

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer/wire"
)

// withheld is a memory whose pages are not given out: what comes of it is what a test makes up.
type withheld struct {
	plain
	until chan struct{}
}

func (m withheld) ReadPages([]byte, int, Desc, int, []byte, []uint32) error {
	<-m.until
	return ErrClosed
}

const liarPage, liarPages = 4 << 10, 64

// liarRig is a victim that reads from a peer which lies, and from one that does not.
type liarRig struct {
	t                    *testing.T
	victim, liar, honest *Agent
	link, good           *Link // from the victim
	theirs               *Link // the liar's end
	read                 *Transfer
	got, want            []byte // of what is read from the liar, and what would be there
	close                func()
}

func newLiarRig(t *testing.T) *liarRig {
	t.Helper()
	ca, n := newTestCA(t), wan.NewNetwork(wan.Model{RTT: 20 * time.Millisecond, Rate: 2e8})
	open := func(host byte, name string) *Agent {
		return openTest(t, n, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, host}), 4433), Config{
			Name: PeerID("spiffe://test/" + name), TLS: ca.node(name), ProgressTimeout: 3 * time.Second, Stripes: 2,
			Handler: func(_ context.Context, _ Peer, p []byte) ([]byte, error) { return p, nil },
		}, nil)
	}
	r := &liarRig{t: t, victim: open(1, "v"), liar: open(2, "l"), honest: open(3, "h")}
	until := make(chan struct{})
	r.want, r.got = bytes.Repeat([]byte("true"), liarPage*liarPages/4), make([]byte, liarPage*liarPages)
	src := Bytes(r.want, liarPage)
	src.Source = withheld{plain{r.want, liarPage}, until}
	theirs, err := r.liar.Register(src)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := r.victim.Register(Bytes(r.got, liarPage))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		to *Agent
		l  **Link
	}{{r.liar, &r.link}, {r.honest, &r.good}} {
		if *x.l, err = r.victim.Connect(t.Context(), x.to.Addr().String(), x.to.cfg.Name); err != nil {
			t.Fatal(err)
		}
	}
	r.theirs = r.liar.Links()[0]
	if r.read, err = r.link.Prepare(Read, []Desc{{Memory: mine, Pages: liarPages}}, []Desc{{Memory: theirs, Pages: liarPages}}, TransferOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.read.Post(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // the liar has it
	r.close = func() {
		close(until)
		_ = r.read.Release()
		if err := errors.Join(r.victim.Close(), r.liar.Close(), r.honest.Close(), n.Close()); err != nil {
			t.Error(err)
		}
	}
	return r
}

// honestRead has the victim read 2 MiB from the honest peer.
func (r *liarRig) honestRead() {
	r.t.Helper()
	want, got := bytes.Repeat([]byte("good"), 1<<19), make([]byte, 2<<20)
	theirs, err := r.honest.Register(Bytes(want, 64<<10))
	if err != nil {
		r.t.Fatal(err)
	}
	mine, err := r.victim.Register(Bytes(got, 64<<10))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(r.honest.Deregister(theirs), r.victim.Deregister(mine)); err != nil {
			r.t.Error(err)
		}
	}()
	if _, err := r.good.Call(r.t.Context(), nil); err != nil { // what was announced has come
		r.t.Fatal(err)
	}
	x, err := r.good.Prepare(Read, []Desc{{Memory: mine, Pages: 32}}, []Desc{{Memory: theirs, Pages: 32}}, TransferOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer x.Release()
	if err := x.Post(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	if res, err := x.Wait(r.t.Context()); err != nil || res.Duration > 2*time.Second || !bytes.Equal(got, want) {
		r.t.Errorf("the honest peer's pages: %v after %v", err, res.Duration)
	}
}

// conn is a connection of the liar's to the victim.
func (r *liarRig) conn() *quic.Conn {
	r.t.Helper()
	r.theirs.mu.Lock()
	defer r.theirs.mu.Unlock()
	for _, s := range r.theirs.mu.stripes {
		return s.conn
	}
	r.t.Fatal("the liar has no connection")
	return nil
}

// stream opens a chunk stream.
func (r *liarRig) stream() *quic.SendStream {
	r.t.Helper()
	s, err := r.conn().OpenUniStream()
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// chunk is the honest chunk of pages [first, first+n) of the read.
func (r *liarRig) chunk(first, n int) (wire.ChunkHeader, []uint32, []byte) {
	h := wire.ChunkHeader{Pages: uint32(n), Transfer: r.read.ID(), FirstPage: uint32(first), RawLength: uint32(n * liarPage), WireLength: uint32(n * liarPage)}
	b := r.want[first*liarPage : (first+n)*liarPage]
	sums := make([]uint32, n)
	for i := range sums {
		sums[i] = plainSum(0, first+i, b[i*liarPage:(i+1)*liarPage])
	}
	return h, sums, b
}

// encode is a chunk as it travels; lie changes the encoded fixed header where PutChunkHeader would refuse the value.
func (r *liarRig) encode(h wire.ChunkHeader, sums []uint32, payload []byte, lie func([]byte)) []byte {
	r.t.Helper()
	b := make([]byte, h.Bytes())
	if err := wire.PutChunkHeader(b, &h, sums); err != nil {
		r.t.Fatal(err)
	}
	if lie != nil {
		lie(b)
	}
	return append(b, payload...)
}

func (r *liarRig) send(b []byte) {
	r.t.Helper()
	s := r.stream()
	if _, err := s.Write(b); err != nil {
		r.t.Logf("write: %v", err)
	}
	_ = s.Close()
}

// A source that lies about its chunks ends its own link, or is not listened to. Either way it is counted, nothing that it made up lands,
// and pages of another peer come meanwhile.
func TestLyingSource(t *testing.T) {
	const (
		ends    = "the link ends"
		ignored = "ignored"
		fails   = "the transfer fails"
	)
	put32 := func(at int, v uint32) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v) }
	}
	for _, tc := range []struct {
		name string
		lie  func(r *liarRig)
		what string
		is   error
	}{
		{"version of the header", func(r *liarRig) { h, s, p := r.chunk(0, 2); r.send(r.encode(h, s, p, func(b []byte) { b[0] = 9 })) }, ends, ErrProtocol},
		{"codec of the header", func(r *liarRig) { h, s, p := r.chunk(0, 2); r.send(r.encode(h, s, p, func(b []byte) { b[1] = 7 })) }, ends, ErrProtocol},
		{"count of pages 0", func(r *liarRig) { h, s, p := r.chunk(0, 2); r.send(r.encode(h, s, p, put32(4, 0))) }, ends, ErrProtocol},
		{"count of pages of a million", func(r *liarRig) { h, s, p := r.chunk(0, 2); r.send(r.encode(h, s, p, put32(4, 1<<20))) }, ends, ErrProtocol},
		{"pages beyond the descriptor", func(r *liarRig) {
			h, s, p := r.chunk(0, 2)
			h.FirstPage = liarPages - 1
			r.send(r.encode(h, s, p, nil))
		}, ends, ErrProtocol},
		{"first page that wraps around", func(r *liarRig) { h, s, p := r.chunk(0, 2); r.send(r.encode(h, s, p, put32(20, 1<<32-1))) }, ends, ErrProtocol},
		{"descriptor that was not asked for", func(r *liarRig) { h, s, p := r.chunk(0, 2); h.Pair = 1; r.send(r.encode(h, s, p, nil)) }, ends, ErrProtocol},
		{"raw length of other pages", func(r *liarRig) {
			h, s, _ := r.chunk(0, 2)
			h.RawLength, h.WireLength = 2*liarPage*2, 2*liarPage*2
			r.send(r.encode(h, s, make([]byte, h.RawLength), nil))
		}, ends, ErrProtocol},
		{"raw length of other pages, coded", func(r *liarRig) {
			h, s, _ := r.chunk(0, 1)
			h.Codec, h.RawLength, h.WireLength = wire.CodecPages, 3*liarPage, wire.PageHeaderBytes+10
			r.send(r.encode(h, s, append(wire.AppendPageHeader(nil, wire.PageHeader{Codec: 2, Length: 10}), make([]byte, 10)...), nil))
		}, ends, ErrProtocol},
		{"raw length of 4 GiB", func(r *liarRig) { h, s, p := r.chunk(0, 2); r.send(r.encode(h, s, p, put32(24, 1<<32-2))) }, ends, ErrProtocol},
		{"wire length of 4 GiB", func(r *liarRig) {
			h, s, p := r.chunk(0, 2)
			r.send(r.encode(h, s, p, func(b []byte) { b[1] = 1; put32(28, 1<<32-1)(b) }))
		}, ends, ErrProtocol},
		{"coded page longer than a page", func(r *liarRig) {
			h, s, _ := r.chunk(0, 1)
			h.Codec, h.WireLength = wire.CodecPages, liarPage+wire.PageHeaderBytes
			r.send(r.encode(h, s, append(wire.AppendPageHeader(nil, wire.PageHeader{Codec: 2, Length: 1<<24 - 1}), make([]byte, liarPage)...), nil))
		}, ends, ErrProtocol},
		{"coded pages longer than their chunk", func(r *liarRig) {
			h, s, _ := r.chunk(0, 2)
			h.Codec, h.WireLength = wire.CodecPages, 2*(wire.PageHeaderBytes+1)
			r.send(r.encode(h, s, append(wire.AppendPageHeader(nil, wire.PageHeader{Codec: 2, Length: liarPage}), make([]byte, liarPage)...), nil))
		}, ends, ErrProtocol},
		{"codec that was not offered", func(r *liarRig) {
			h, s, _ := r.chunk(0, 1)
			h.Codec, h.WireLength = wire.CodecPages, wire.PageHeaderBytes+10
			r.send(r.encode(h, s, append(wire.AppendPageHeader(nil, wire.PageHeader{Codec: 200, Length: 10}), make([]byte, 10)...), nil))
		}, ends, ErrProtocol},
		{"bytes after the chunk", func(r *liarRig) { h, s, p := r.chunk(0, 2); r.send(append(r.encode(h, s, p, nil), 1)) }, ends, ErrProtocol},
		{"half a header", func(r *liarRig) { h, s, p := r.chunk(0, 2); r.send(r.encode(h, s, p, nil)[:20]) }, ends, ErrProtocol},
		{"checksums", func(r *liarRig) {
			for range 2 { // the second one accuses
				h, s, p := r.chunk(3, 1)
				s[0]++
				r.send(r.encode(h, s, p, nil))
				time.Sleep(100 * time.Millisecond)
			}
		}, fails, ErrChecksumMismatch},
		{"bytes", func(r *liarRig) {
			for range 2 {
				h, s, p := r.chunk(3, 1)
				r.send(r.encode(h, s, append([]byte{p[0] + 1}, p[1:]...), nil))
				time.Sleep(100 * time.Millisecond)
			}
		}, fails, ErrChecksumMismatch},
		{"page in the place of another", func(r *liarRig) {
			for range 2 {
				h, s, p := r.chunk(3, 1)
				h.FirstPage = 4
				r.send(r.encode(h, s, p, nil))
				time.Sleep(100 * time.Millisecond)
			}
		}, fails, ErrChecksumMismatch},
		{"pages cut short again and again", func(r *liarRig) {
			for range maxResets + 2 {
				h, s, p := r.chunk(3, 1)
				r.send(r.encode(h, s, p, nil)[:h.Bytes()+10])
				time.Sleep(30 * time.Millisecond)
			}
		}, fails, ErrProtocol},
		{"transfer that nobody asked for", func(r *liarRig) { h, s, p := r.chunk(0, 2); h.Transfer = 1 << 40; r.send(r.encode(h, s, p, nil)) }, ignored, ErrStalled},
		{"transfer of its own", func(r *liarRig) {
			h, s, p := r.chunk(0, 2)
			h.Flags = wire.FlagChunkOwn
			r.send(r.encode(h, s, p, nil))
		}, ignored, ErrStalled},
		{"silent streams", func(r *liarRig) {
			for range 2 * maxReceivers {
				if _, err := r.stream().Write([]byte{1}); err != nil {
					t.Error(err)
				}
			}
		}, ignored, ErrStalled},
		{"streams that stop midway", func(r *liarRig) {
			for range 2 * maxReceivers {
				h, s, p := r.chunk(0, 1)
				if _, err := r.stream().Write(r.encode(h, s, p, nil)[:h.Bytes()+100]); err != nil {
					t.Error(err)
				}
			}
		}, ignored, ErrStalled},
		{"a stream that trickles", func(r *liarRig) {
			h, s, p := r.chunk(0, 1)
			b, stream := r.encode(h, s, p, nil), r.stream()
			for i := range 100 {
				if _, err := stream.Write(b[i : i+1]); err != nil {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
		}, ignored, ErrStalled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newLiarRig(t)
				defer r.close()
				r.t = t
				late := testutil.ToFloat64(r.victim.metrics.late)
				tc.lie(r)
				r.honestRead()
				res, err := r.read.Wait(t.Context())
				if !errors.Is(err, tc.is) {
					t.Errorf("the read from the liar: %v", err)
				}
				if res.Duration > 15*time.Second {
					t.Errorf("it took %v to end", res.Duration)
				}
				// What landed was true.
				for i := range liarPages {
					if p := r.got[i*liarPage : (i+1)*liarPage]; !bytes.Equal(p, make([]byte, liarPage)) && !bytes.Equal(p, r.want[i*liarPage:(i+1)*liarPage]) {
						t.Errorf("page %d is made up", i)
					}
				}
				if ended := r.link.Err(); (ended != nil) != (tc.what == ends) || tc.what == ends && !errors.Is(ended, ErrProtocol) {
					t.Errorf("the link: %v", ended)
				}
				switch m := r.victim.metrics; {
				case strings.HasPrefix(tc.name, "transfer") && testutil.ToFloat64(m.late) != late+1:
					t.Error("not counted as late")
				case tc.is == ErrChecksumMismatch && testutil.ToFloat64(m.mismatches) != 2: //nolint:errorlint // the table's own
					t.Errorf("%v mismatches", testutil.ToFloat64(m.mismatches))
				}
				time.Sleep(time.Minute) // streams that hang are cut
				if s := r.link.Stats(); s.Transfers != 0 || s.Streams != 0 {
					t.Errorf("left: %d transfers, %d streams", s.Transfers, s.Streams)
				}
				if m := r.victim.metrics; strings.Contains(tc.name, "stream") && testutil.ToFloat64(m.cut)+testutil.ToFloat64(m.late) == 0 {
					t.Error("no stream was cut, nor late")
				}
				r.honestRead()
			})
		})
	}
}

// Chunks that come twice, after the cancel, or after the end, land once or not at all.
func TestChunksTwiceAndLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newLiarRig(t)
		defer r.close()
		h, s, p := r.chunk(0, 2)
		for range 3 {
			r.send(r.encode(h, s, p, nil))
			time.Sleep(50 * time.Millisecond)
		}
		if got := r.read.Progress(); got.PagesDone != 2 || got.PagesDouble != 4 || testutil.ToFloat64(r.victim.metrics.duplicates) != 4 {
			t.Errorf("after one chunk three times: %+v", got)
		}
		_ = r.read.Release()
		h, s, p = r.chunk(10, 2)
		r.send(r.encode(h, s, p, nil))
		time.Sleep(50 * time.Millisecond)
		if !bytes.Equal(r.got[10*liarPage:12*liarPage], make([]byte, 2*liarPage)) {
			t.Error("pages landed after the cancel")
		}
		if testutil.ToFloat64(r.victim.metrics.late) != 1 || r.link.Err() != nil {
			t.Errorf("%v late, link %v", testutil.ToFloat64(r.victim.metrics.late), r.link.Err())
		}
		r.honestRead()
	})
}

// frame sends a control frame from the liar.
func (r *liarRig) frame(typ wire.Type, flags uint8, id uint64, payload []byte) {
	r.t.Helper()
	r.theirs.push(typ, flags, id, payload)
}

func (r *liarRig) begin(id uint64, m wire.Begin) {
	r.t.Helper()
	b, err := wire.AppendBegin(nil, m)
	if err != nil {
		r.t.Fatal(err)
	}
	r.frame(wire.TypeBegin, wire.FlagOwn, id, b)
}

// A peer that asks for what it may not have, or floods with requests, gets a refusal, or its link ends; memory stays bounded, and another
// peer is served.
func TestLyingReader(t *testing.T) {
	one := func(d wire.Desc) []wire.Desc { return []wire.Desc{d} }
	for _, tc := range []struct {
		name string
		lie  func(r *liarRig)
		ends bool
		code Code // of a refusal
	}{
		{"memory that is not there", func(r *liarRig) { r.begin(9, wire.Begin{Op: wire.OpRead, Descs: one(wire.Desc{Memory: 77, Pages: 1})}) }, false, CodeUnknownMemory},
		{"pages beyond the memory", func(r *liarRig) {
			r.begin(9, wire.Begin{Op: wire.OpRead, Descs: one(wire.Desc{Memory: 1, Pages: liarPages + 1})})
		}, false, CodeOutOfRange},
		{"offset that wraps around", func(r *liarRig) {
			r.begin(9, wire.Begin{Op: wire.OpRead, Descs: one(wire.Desc{Memory: 1, Pages: 2, Offset: 1<<64 - liarPage})})
		}, false, CodeOutOfRange},
		{"write that nobody allowed", func(r *liarRig) { r.begin(9, wire.Begin{Op: wire.OpWrite, Descs: one(wire.Desc{Memory: 1, Pages: 1})}) }, false, CodeNotPermitted},
		{"more descriptors than a transfer has", func(r *liarRig) {
			b, err := wire.AppendBegin(nil, wire.Begin{Op: wire.OpRead, First: 1, Descs: one(wire.Desc{Memory: 1, Pages: 1})})
			if err != nil {
				t.Fatal(err)
			}
			binary.BigEndian.PutUint32(b[8:], wire.MaxDescs)
			r.frame(wire.TypeBegin, wire.FlagOwn, 9, b)
		}, true, 0},
		{"descriptors that go on at another place", func(r *liarRig) {
			r.begin(9, wire.Begin{Op: wire.OpRead, First: 3, Descs: one(wire.Desc{Memory: 1, Pages: 1})})
		}, true, 0},
		{"words about transfers that never were", func(r *liarRig) {
			bits := wire.NewBitmap(10)
			bits.Set(3)
			again, _ := wire.AppendAgain(nil, wire.Again{Reason: wire.ReasonStalled, Pages: bits})
			for _, flags := range []uint8{0, wire.FlagOwn} {
				for typ, b := range map[wire.Type][]byte{
					wire.TypeAgain: again, wire.TypeDone: nil, wire.TypeAck: nil, wire.TypeReady: nil, wire.TypeProgress: wire.AppendProgress(nil, 1<<63),
					wire.TypeResult: []byte("x"), wire.TypeCallCancel: nil, wire.TypeFailed: failure(ErrBusy), wire.TypeCancel: failure(ErrBusy), wire.TypeRetire: nil,
				} {
					r.frame(typ, flags, 1<<50, b)
				}
			}
		}, false, 0},
		{"frames that do not decode", func(r *liarRig) { r.frame(wire.TypeAgain, 0, 1, []byte("nonsense")) }, true, 0},
		{"metadata of somebody else", func(r *liarRig) {
			b, _ := wire.AppendMetadata(nil, wire.Metadata{Version: wire.Version, Name: "spiffe://test/h", Incarnation: "x"})
			r.frame(wire.TypeMetadata, 0, 0, b)
		}, true, 0},
		{"transfers without end", func(r *liarRig) {
			for i := range 3 * maxServed {
				r.begin(uint64(100+i), wire.Begin{Op: wire.OpRead, More: true, Descs: one(wire.Desc{Memory: 1, Pages: 1})})
			}
		}, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newLiarRig(t)
				defer r.close()
				refused := make(chan error, 1)
				if tc.code != 0 { // the liar's own bookkeeping, to hear the answer
					in := newIntake(r.theirs, flowKey{own: true, id: 9}, pairs{base: []int{0}})
					in.init(func(err error, _ bool) { refused <- err })
					r.theirs.register(in.key, in, nil)
				}
				tc.lie(r)
				time.Sleep(time.Second)
				if ended := r.link.Err(); (ended != nil) != tc.ends || tc.ends && !errors.Is(ended, ErrProtocol) {
					t.Errorf("the link: %v", ended)
				}
				if tc.code != 0 {
					if err := <-refused; codeOf(err) != tc.code {
						t.Errorf("refused with %v", err)
					}
				}
				r.honestRead()
			})
		})
	}
}

// heapOf returns the heap after a collection.
func heapOf() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A peer announces transfers of the most descriptors, and of the most pages, over and over. What is kept of them is bounded.
func TestBeginsBounded(t *testing.T) {
	descs := func(n int, pages uint32) []wire.Desc {
		out := make([]wire.Desc, n)
		for i := range out {
			out[i] = wire.Desc{Memory: 1, Pages: pages}
		}
		return out
	}
	for _, tc := range []struct {
		name  string
		begin func(l *Link, i int) error
		bound int64
		want  servedWork
	}{
		{"descriptors of transfers that never begin", func(l *Link, i int) error {
			b, err := wire.AppendBegin(nil, wire.Begin{Op: wire.OpRead, More: true, Descs: descs(wire.MaxFrameDescs, 1)})
			return errors.Join(err, l.handleBegin(uint64(i), b))
		}, 96 << 20, servedWork{descs: maxServedDescs}},
		{"pages of transfers that wait", func(l *Link, i int) error {
			b, err := wire.AppendBegin(nil, wire.Begin{Op: wire.OpRead, Descs: descs(1<<12, 1<<10)})
			return errors.Join(err, l.handleBegin(uint64(i), b))
		}, 192 << 20, servedWork{descs: 8 << 12, pages: maxServedPages}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newLiarRig(t)
				defer r.close()
				l := r.link
				big := Bytes(make([]byte, 1), 4<<20) // pages of 4 MiB: a chunk each
				big.Length, big.Source = 4<<30, withheld{until: make(chan struct{})}
				// The victim's memory 1 is replaced: it is what the descriptors name.
				r.victim.mu.Lock()
				was := r.victim.mu.memories[1]
				r.victim.mu.memories[1] = newMemory(1, big)
				r.victim.mu.Unlock()
				defer func() {
					r.victim.mu.Lock()
					r.victim.mu.memories[1] = was
					r.victim.mu.Unlock()
				}()
				l.sched.mu.Lock()
				l.sched.live = nil // nothing is sent: all of them wait
				l.sched.mu.Unlock()
				before := heapOf()
				for i := range 500 {
					if err := tc.begin(l, 1000+i); err != nil {
						t.Fatalf("begin %d: %v", i, err)
					}
				}
				if took := heapOf() - before; took > tc.bound {
					t.Errorf("%d MiB are kept, at most %d", took>>20, tc.bound>>20)
				}
				l.mu.Lock()
				got := l.mu.served
				finals := len(l.mu.finals)
				l.mu.Unlock()
				if got != tc.want || finals == 0 {
					t.Errorf("%+v is kept, want %+v; %d refusals", got, tc.want, finals)
				}
				_ = l.Close(CodeOK)
				r.honestRead()
			})
		})
	}
}

// A peer makes as many calls as it can, each of the most bytes, of a handler that takes its time: those that run, and what they carry,
// are bounded, and the rest is told so.
func TestCallFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		b := besiege(t, func(c *Config) {
			c.Handler = func(ctx context.Context, from Peer, p []byte) ([]byte, error) {
				if len(p) > 2 {
					select {
					case <-hold:
					case <-ctx.Done():
					}
				}
				return p[:min(len(p), 2)], nil
			}
		})
		defer b.close()
		evil := openTest(t, b.net, netip.MustParseAddrPort("10.0.0.9:4433"), Config{Name: "spiffe://test/e", TLS: b.ca.node("e")}, nil)
		defer evil.Close()
		l, err := evil.Connect(t.Context(), serverAddr.String(), b.server.cfg.Name)
		if err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct{ calls, bytes, run int }{{60, 1 << 20, maxCallBytes >> 20}, {600, 16, maxCalls}} {
			busy := make(chan error, tc.calls)
			for range tc.calls {
				go func() {
					_, err := l.Call(t.Context(), make([]byte, tc.bytes))
					busy <- err
				}()
			}
			for range tc.calls - tc.run {
				if err := <-busy; !errors.Is(err, ErrBusy) {
					t.Errorf("call: %v", err)
				}
			}
			time.Sleep(time.Second)
			if n := len(busy); n != 0 {
				t.Errorf("%d of %d answered", n, tc.run)
			}
			b.letIn()
			for range tc.run {
				hold <- struct{}{}
			}
			for range tc.run {
				if err := <-busy; err != nil {
					t.Error(err)
				}
			}
		}
		time.Sleep(time.Second)
		for _, l := range b.server.Links() {
			l.mu.Lock()
			if l.mu.carried != 0 || len(l.mu.serving) != 0 {
				t.Errorf("%d calls of %d bytes are left", len(l.mu.serving), l.mu.carried)
			}
			l.mu.Unlock()
		}
	})
}
