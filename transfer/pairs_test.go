package transfer

import (
	"fmt"
	"testing"
)

// TestChunkSizes shares a transfer out evenly: enough chunks for each stripe, none
// larger than configured, none smaller than needed, whole pages.
func TestChunkSizes(t *testing.T) {
	const mib = 1 << 20
	for _, tc := range []struct {
		page    int
		pages   []uint32
		chunk   int
		stripes int
		want    []int // pages a chunk
	}{
		{64 << 10, []uint32{16384}, mib, 4, []int{16}},                              // 1 GiB: as configured
		{64 << 10, []uint32{160}, mib, 4, []int{10}},                                // 10 MiB over 4: 16 chunks
		{64 << 10, []uint32{160}, mib, 1, []int{16}},                                // over one
		{64 << 10, []uint32{160}, mib, 0, []int{16}},                                // none yet
		{64 << 10, []uint32{160}, mib, 64, []int{2}},                                // 128 KiB at least
		{4 << 20, []uint32{4}, mib, 4, []int{1}},                                    // a page is never cut
		{64 << 10, []uint32{2}, 64 << 10, 4, []int{1}},                              // configured smaller than that
		{1, []uint32{1 << 20}, mib, 4, []int{4096}},                                 // at most MaxChunkPages
		{64 << 10, []uint32{80, 80, 80, 80, 80}, mib, 4, []int{16, 16, 15, 10, 5}},  // blocks of 5 MiB: less towards the end
		{64 << 10, []uint32{80, 80, 80, 80, 80}, mib, 2, []int{16, 16, 16, 16, 10}}, // over two
		{64 << 10, []uint32{16, 16, 16, 16}, 256 << 10, 64, []int{2, 2, 2, 2}},      // small all over
		{320 << 10, []uint32{16, 16, 1}, mib, 4, []int{2, 1, 1}},                    // pages of 320 KiB
		{64 << 10, []uint32{1, 1, 1, 1, 1, 1}, mib, 4, []int{2, 2, 2, 2, 2, 2}},     // descriptors smaller than a chunk
	} {
		t.Run(fmt.Sprint(tc.page, tc.pages, tc.stripes), func(t *testing.T) {
			descs, mems := make([]Desc, len(tc.pages)), make([]*memory, len(tc.pages))
			for i, n := range tc.pages {
				descs[i], mems[i] = Desc{Pages: n}, newMemory(1, Memory{PageBytes: tc.page})
			}
			p := newPairs(descs, mems)
			if got := p.chunkSizes(tc.chunk, tc.stripes); fmt.Sprint(got) != fmt.Sprint(tc.want) {
				t.Errorf("%v pages a chunk, want %v", got, tc.want)
			}
		})
	}
}
