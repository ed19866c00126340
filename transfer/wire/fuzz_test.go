package wire_test

import (
	"bytes"
	"errors"
	"runtime"
	"testing"

	"github.com/kvferry/kvferry/transfer/wire"
)

// fuzz holds a decoder to two properties: whatever it is given it neither
// panics nor allocates much more than it was given, and what it accepts encodes
// to the same bytes.
func fuzz(f *testing.F, name string) {
	var kind form
	for _, k := range forms {
		if k.name == name {
			kind = k
		}
	}
	for _, v := range kind.values {
		b, err := kind.encode(v)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 1<<16 {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var v any
		var err error
		bounded(t, b, func() { v, err = kind.decode(b) })
		if err != nil {
			if !errors.Is(err, wire.ErrMalformed) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		again, err := kind.encode(v)
		if err != nil {
			t.Fatalf("accepted, but does not encode: %v", err)
		}
		if !bytes.Equal(b, again) {
			t.Fatalf("%x encodes to %x", b, again)
		}
	})
}

// bounded has decode, of b, allocate no more than other goroutines of the fuzzer do, too; a length field that is believed would ask for
// gigabytes.
func bounded(t *testing.T, b []byte, decode func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	decode()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
		t.Fatalf("%d bytes allocated for %d", n, len(b))
	}
}

func FuzzPreamble(f *testing.F)    { fuzz(f, "preamble") }
func FuzzHello(f *testing.F)       { fuzz(f, "hello") }
func FuzzHelloAnswer(f *testing.F) { fuzz(f, "hello answer") }
func FuzzFrameHeader(f *testing.F) { fuzz(f, "frame header") }
func FuzzBegin(f *testing.F)       { fuzz(f, "begin") }
func FuzzAgain(f *testing.F)       { fuzz(f, "again") }
func FuzzCosts(f *testing.F)       { fuzz(f, "costs") }
func FuzzQueued(f *testing.F)      { fuzz(f, "queued") }
func FuzzFailure(f *testing.F)     { fuzz(f, "failure") }
func FuzzPath(f *testing.F)        { fuzz(f, "path") }
func FuzzMetadata(f *testing.F)    { fuzz(f, "metadata") }
func FuzzChunk(f *testing.F)       { fuzz(f, "chunk header") }

// FuzzSmall holds the decoders that need to be told a size to the same: bitmaps, page headers, checksums, and what has only a number.
func FuzzSmall(f *testing.F) {
	f.Add(uint8(0), uint32(9), []byte{1, 1})
	f.Add(uint8(0), uint32(wire.MaxBits+1), []byte{})
	f.Add(uint8(0), uint32(1<<31-1), []byte{})
	f.Add(uint8(1), uint32(1024), wire.AppendPageHeader(nil, wire.PageHeader{Codec: 2, Length: 1000}))
	f.Add(uint8(1), uint32(1<<31), wire.AppendPageHeader(nil, wire.PageHeader{Length: 1<<24 - 1}))
	f.Add(uint8(2), uint32(2), []byte{0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff})
	f.Add(uint8(3), uint32(0), wire.AppendProgress(nil, 1<<63))
	f.Fuzz(func(t *testing.T, which uint8, size uint32, b []byte) {
		var again []byte
		var err error
		switch which % 4 {
		case 0:
			var m wire.Bitmap
			if bounded(t, b, func() { m, err = wire.DecodeBitmap(b, int(int32(size))) }); err != nil {
				break
			}
			again = wire.AppendBitmap(nil, m)
			one := wire.NewBitmap(m.Len())
			for i := range m.Len() {
				if m.Has(i) {
					one.Set(i)
				}
			}
			if m.Len() != int(size) || m.Count() != one.Count() || !bytes.Equal(wire.AppendBitmap(nil, one), b) {
				t.Fatalf("%x is %d bits, of which %d are set", b, m.Len(), m.Count())
			}
		case 1:
			var h wire.PageHeader
			if h, err = wire.DecodePageHeader(b, int(int32(size))); err != nil {
				break
			}
			again = wire.AppendPageHeader(nil, h)
			if h.Length == 0 || h.Length > size || h.Codec == 0 && h.Length != size {
				t.Fatalf("%+v of a page of %d bytes", h, size)
			}
		case 2:
			sums := make([]uint32, size%wire.MaxChunkPages)
			if err = wire.DecodeSums(sums, b); err != nil {
				break
			}
			h := wire.ChunkHeader{Pages: uint32(len(sums)), RawLength: uint32(len(sums)), WireLength: uint32(len(sums))}
			if len(sums) == 0 {
				return
			}
			again = make([]byte, h.Bytes())
			if err := wire.PutChunkHeader(again, &h, sums); err != nil {
				t.Fatal(err)
			}
			again = again[wire.ChunkFixedBytes:]
		case 3:
			var n uint64
			if n, err = wire.DecodeProgress(b); err == nil {
				again = wire.AppendProgress(nil, n)
			}
		}
		switch {
		case err != nil && !errors.Is(err, wire.ErrMalformed):
			t.Fatalf("refused with %v", err)
		case err == nil && !bytes.Equal(b, again):
			t.Fatalf("%x encodes to %x", b, again)
		}
	})
}
