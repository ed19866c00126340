package transfer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// Whatever follows the header of a coded chunk: the reader gives pages, or says that the stream ended, that the peer broke the protocol, or
// that a page does not decode; it takes no more than a page's memory, and never reads beyond what the header announced.
func FuzzPageReader(f *testing.F) {
	page := bytes.Repeat([]byte{0x3f, 0x80, 0x3f, 0x81}, 512)
	var scratch codec.Scratch
	for _, id := range []codec.ID{codec.Raw, codec.Huff, codec.Zstd} {
		coded := page
		if id != codec.Raw {
			var err error
			if coded, err = codec.Encode(id, nil, page, &scratch); err != nil {
				f.Fatal(err)
			}
		}
		b := append(wire.AppendPageHeader(nil, wire.PageHeader{Codec: uint8(id), Length: uint32(len(coded))}), coded...)
		f.Add(b, uint16(len(page)), uint32(len(b)))
		f.Add(append(b, b...), uint16(len(page)), uint32(2*len(b)-1))
	}
	f.Add([]byte{200, 0, 0, 1, 0}, uint16(1), uint32(5))
	f.Add([]byte{2, 0xff, 0xff, 0xff}, uint16(100), uint32(1<<31))
	by := newProcessors(Config{}.withDefaults())
	codes := &sync.Pool{New: func() any { return new(codedPage) }}
	f.Fuzz(func(t *testing.T, in []byte, pageBytes uint16, left uint32) {
		if pageBytes == 0 {
			return
		}
		stream := bytes.NewReader(in)
		r := pageReader{coded: true, left: int(left), by: by, codes: codes}
		defer r.close()
		buf := make([]byte, pageBytes)
		for range 8 {
			p, err := r.next(stream, buf)
			read := len(in) - stream.Len()
			if read > int(left) && !errors.Is(err, ErrProtocol) && read > int(left)+wire.PageHeaderBytes {
				t.Fatalf("%d bytes read of %d announced: %v", read, left, err)
			}
			if r.page != nil && cap(r.page.b) > 1<<16 {
				t.Fatalf("a page of %d bytes takes %d", pageBytes, cap(r.page.b))
			}
			if err != nil {
				if !errors.Is(err, ErrProtocol) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("ended with %v", err)
				}
				return
			}
			if p.err != nil && !errors.Is(p.err, ErrChecksumMismatch) || len(p.b) != len(buf) {
				t.Fatalf("a page of %d bytes: %v", len(p.b), p.err)
			}
		}
	})
}

// Whatever control frames a peer sends, in any order: each changes something, is late and changes nothing, or breaks the protocol. What they
// begin is bounded, and its end leaves nothing.
func FuzzControl(f *testing.F) {
	add := func(t wire.Type, flags uint8, id uint64, payload []byte, err error) {
		if err != nil {
			f.Fatal(err)
		}
		b, err := wire.AppendFrame(nil, t, flags, id, payload)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, b...))
	}
	begin, err := wire.AppendBegin(nil, wire.Begin{Op: wire.OpRead, Token: []byte("t"), Descs: []wire.Desc{{Memory: 1, Pages: 2}}})
	add(wire.TypeBegin, wire.FlagOwn, 7, begin, err)
	more, err := wire.AppendBegin(nil, wire.Begin{Op: wire.OpWrite, More: true, Descs: []wire.Desc{{Memory: 1, Pages: 2}}})
	add(wire.TypeBegin, wire.FlagOwn, 8, more, err)
	bits := wire.NewBitmap(9)
	bits.Set(1)
	for r := wire.ReasonStripeLost; r <= wire.ReasonStalled; r++ {
		again, err := wire.AppendAgain(nil, wire.Again{Reason: r, Pages: bits})
		add(wire.TypeAgain, 0, 7, again, err)
	}
	add(wire.TypeCall, wire.FlagOwn, 3, []byte("call"), nil)
	add(wire.TypeCallCancel, wire.FlagOwn, 3, nil, nil)
	add(wire.TypeQueued, 0, 7, wire.AppendQueued(nil, wire.Queued{Transfers: 1 << 31, Bytes: 1 << 63}), nil)
	add(wire.TypeProgress, 0, 7, wire.AppendProgress(nil, 1<<63), nil)
	path, err := wire.AppendPath(nil, wire.Path{Window: 1 << 63, Sent: 1, Lost: 1 << 63, PacketBytes: 1 << 31})
	add(wire.TypePath, 0, 0, path, err)
	costs, err := wire.AppendCosts(nil, wire.Costs{Cores: 1, Codecs: []wire.Cost{{Codec: 2, Encode: 1 << 31}}})
	add(wire.TypeCosts, 0, 0, costs, err)
	for _, t := range []wire.Type{wire.TypeFailed, wire.TypeCancel, wire.TypeDone, wire.TypeAck, wire.TypeReady, wire.TypeRetire, wire.TypePing} {
		add(t, wire.FlagOwn, 7, failure(ErrBusy), nil)
	}
	a, err := Open(Config{Name: "spiffe://test/a", TLS: newTestCA(f).node("a"), Handler: func(_ context.Context, _ Peer, p []byte) ([]byte, error) { return p, nil }})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = a.Close() })
	m := Bytes(make([]byte, 1<<16), 1<<10)
	m.RemoteWrite = true
	if _, err := a.Register(m); err != nil {
		f.Fatal(err)
	}
	n := 0
	f.Fuzz(func(t *testing.T, in []byte) {
		n++
		l, err := a.add("spiffe://test/b", wire.Nonce{byte(n), byte(n >> 8), byte(n >> 16)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			l.end(ErrClosed, CodeOK)
			l.wg.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			if len(l.mu.intakes)+len(l.mu.outflows)+len(l.mu.serving) != 0 || l.mu.carried != 0 || l.mu.served.pages != 0 {
				t.Errorf("left: %d intakes, %d outflows, %d calls of %d bytes, %+v", len(l.mu.intakes), len(l.mu.outflows), len(l.mu.serving), l.mu.carried, l.mu.served)
			}
		}()
		for len(in) >= wire.FrameHeaderBytes {
			h, err := wire.DecodeFrameHeader(in[:wire.FrameHeaderBytes])
			if err != nil || int(h.Length) > len(in)-wire.FrameHeaderBytes {
				return
			}
			payload := in[wire.FrameHeaderBytes:][:h.Length]
			in = in[wire.FrameHeaderBytes+int(h.Length):]
			if h.Type == wire.TypePing {
				continue
			}
			if err := l.dispatch(h, payload); err != nil {
				if c := codeOf(err); c != CodeProtocol && c != CodeVersion && c != CodeBusy {
					t.Fatalf("frame of type %d: %v, %v", h.Type, c, err)
				}
				return
			}
		}
	})
}
