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
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v, err := kind.decode(b)
		runtime.ReadMemStats(&after)
		// Other goroutines of the fuzzer allocate too; a length field that is
		// believed would ask for gigabytes.
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Fatalf("%d bytes allocated for %d", n, len(b))
		}
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
