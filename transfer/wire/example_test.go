package wire_test

import (
	"fmt"

	"github.com/kvferry/kvferry/transfer/wire"
)

// A chunk of two pages, as it begins on its stream.
func Example() {
	h := wire.ChunkHeader{Pages: 2, Transfer: 1, Pair: 3, FirstPage: 40, RawLength: 2 * 65536, WireLength: 2 * 65536}
	b := make([]byte, h.Bytes())
	if err := wire.PutChunkHeader(b, &h, []uint32{0xcafe, 0xbabe}); err != nil {
		fmt.Println(err)
		return
	}
	var got wire.ChunkHeader
	if err := wire.DecodeChunkHeader(&got, b[:wire.ChunkFixedBytes]); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(b), got.Pair, got.FirstPage, got.RawLength)
	// Output: 40 3 40 131072
}
