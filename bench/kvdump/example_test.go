package kvdump_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvferry/kvferry/bench/kvdump"
	"github.com/kvferry/kvferry/bench/refengine"
)

func ExampleCompute() {
	dir, err := os.MkdirTemp("", "kvdump")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s, err := kvdump.Compute(context.Background(), kvdump.Config{Path: filepath.Join(dir, "pages.kv")}, kvdump.Engine{
		Model: refengine.ModelConfig{Layers: 2, KVHeads: 2, HeadDim: 32}, Text: []byte("A text of three times sixteen bytes is 48 long."),
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(s.Blocks, "blocks,", s.Header.Pages, "pages of", s.Header.PageBytes, "bytes,", s.Header.DType)
	// Output: 2 blocks, 4 pages of 4096 bytes, bf16
}
