package transfer

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// TestPageReader reads coded chunks of honest and of lying peers: pages, or a page that
// counts as damaged, or a breach, or the stream's own end; never more than the chunk.
func TestPageReader(t *testing.T) {
	const page = 4096
	good := make([]byte, page)
	for i := range good {
		good[i] = byte(i / 100)
	}
	var s codec.Scratch
	coded, err := codec.Encode(codec.Huff8, nil, good, &s)
	if err != nil {
		t.Fatal(err)
	}
	framed := func(id codec.ID, body []byte, length int) []byte {
		return append(wire.AppendPageHeader(nil, wire.PageHeader{Codec: uint8(id), Length: uint32(length)}), body...)
	}
	bent := bytes.Clone(coded)
	bent[0] = 99
	for _, tc := range []struct {
		name    string
		chunk   []byte
		left    int // what the header says besides; 0: the chunk's length
		fails   error
		damaged bool
	}{
		{name: "coded", chunk: framed(codec.Huff8, coded, len(coded))},
		{name: "raw", chunk: framed(codec.Raw, good, page)},
		{name: "does not decode", chunk: framed(codec.Huff8, bent, len(bent)), damaged: true},
		{name: "another codec", chunk: framed(codec.Huff, coded, len(coded)), damaged: true},
		{name: "no such codec", chunk: framed(200, coded, len(coded)), fails: ErrProtocol},
		{name: "longer than the page", chunk: framed(codec.Huff8, coded, page+1), fails: ErrProtocol},
		{name: "raw and shorter", chunk: framed(codec.Raw, good, page-1), fails: ErrProtocol},
		{name: "of no bytes", chunk: framed(codec.Huff8, nil, 0), fails: ErrProtocol},
		{name: "longer than the chunk", chunk: framed(codec.Huff8, coded, len(coded)), left: len(coded), fails: ErrProtocol},
		{name: "cut short", chunk: framed(codec.Huff8, coded[:9], len(coded)), left: 4096, fails: io.ErrUnexpectedEOF},
		{name: "no header", chunk: []byte{1, 2}, left: 4096, fails: io.ErrUnexpectedEOF},
		{name: "nothing", left: 4096, fails: io.EOF},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := pageReader{coded: true, by: newProcessors(Config{Codecs: packageCodecs{}, Cores: 1}), left: orDefault(tc.left, len(tc.chunk)), codes: &sync.Pool{New: func() any { return new(codedPage) }}}
			defer r.close()
			got := make([]byte, page)
			a, err := r.next(iotest.OneByteReader(bytes.NewReader(tc.chunk)), got)
			switch {
			case !errors.Is(err, tc.fails):
				t.Fatalf("%v, want %v", err, tc.fails)
			case tc.fails != nil:
				return
			case errors.Is(a.err, ErrChecksumMismatch) != tc.damaged:
				t.Fatalf("page is damaged: %v, want %v", a.err, tc.damaged)
			case !tc.damaged && !bytes.Equal(a.b, good):
				t.Error("another page came out")
			}
			if r.left != 0 || a.wire != len(tc.chunk)-wire.PageHeaderBytes {
				t.Errorf("%d bytes left, %d on the wire", r.left, a.wire)
			}
		})
	}
}

// TestCodedAllocations has neither end allocate a page once its buffers have grown.
func TestCodedAllocations(t *testing.T) {
	const page, pages = 64 << 10, 16
	raw := bytes.Repeat([]byte{0x12, 0x3f, 0x80, 0x3f, 1, 0xbe}, page*pages/6+1)[:page*pages]
	var c codedChunk
	if err := c.encode(packageCodecs{}, codec.Huff, raw, page); err != nil {
		t.Fatal(err)
	}
	codes, dst := &sync.Pool{New: func() any { return new(codedPage) }}, make([]byte, page)
	in := bytes.NewReader(nil)
	n := testing.AllocsPerRun(20, func() {
		if err := c.encode(packageCodecs{}, codec.Huff, raw, page); err != nil {
			t.Error(err)
		}
		r := pageReader{coded: true, by: newProcessors(Config{Codecs: packageCodecs{}, Cores: 1}), left: len(c.b), codes: codes}
		in.Reset(c.b)
		for range pages {
			if a, err := r.next(in, dst); err != nil || a.err != nil {
				t.Error(err, a.err)
			}
		}
		r.close()
	})
	if n > pages/2 { // without a pool a page and more; under the race detector a pool loses a quarter of what it is given, by chance more
		t.Errorf("%.0f allocations a chunk of %d pages", n, pages)
	}
}
