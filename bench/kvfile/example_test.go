package kvfile_test

import (
	"bytes"
	"fmt"

	"github.com/kvferry/kvferry/bench/kvfile"
)

func Example() {
	var file bytes.Buffer
	w, err := kvfile.NewWriter(&file, kvfile.Header{
		Model: "tiny", DType: kvfile.BF16, Kind: kvfile.GQA, Layers: 2, KVHeads: 1, HeadDim: 4, Tokens: 2, PageLayers: []int{0, 1},
	})
	if err != nil {
		panic(err)
	}
	for i := range 2 {
		if err := w.WritePage(bytes.Repeat([]byte{byte(i)}, 32)); err != nil {
			panic(err)
		}
	}

	r, err := kvfile.NewReader(&file)
	if err != nil {
		panic(err)
	}
	h := r.Header()
	page := make([]byte, h.PageBytes)
	for i := 0; r.ReadPage(page) == nil; i++ {
		fmt.Println(h.Model, "layer", h.PageLayers[i], "begins with", page[0])
	}
	// Output:
	// tiny layer 0 begins with 0
	// tiny layer 1 begins with 1
}
