package kvstore_test

import (
	"fmt"

	"github.com/kvferry/kvferry/kvstore"
)

// A block goes from one arena to another: read under a lease, checked and landed page by page, committed.
func Example() {
	preset, err := kvstore.PresetByName("llama-3.1-8b")
	if err != nil {
		fmt.Println(err)
		return
	}
	layout := preset.Layout
	open := func(name string) *kvstore.Arena {
		a, err := kvstore.OpenArena(kvstore.ArenaConfig{Name: name, Layout: layout, Bytes: 2 * layout.Stride()})
		if err != nil {
			panic(err)
		}
		return a
	}
	src, dst := open("kvferry-example-src"), open("kvferry-example-dst")
	defer src.Close()
	defer dst.Close()

	// The engine at the source has one rank; it would write its pages through its own mapping.
	keys := []kvstore.BlockKey{"the prefix's hash"}
	res, err := src.Reserve("engine", "", keys)
	if err != nil {
		panic(err)
	}
	if _, err := src.CommitPart("engine", res[0].Ref, 0, 1, kvstore.FidelityExact); err != nil {
		panic(err)
	}

	lease, refs, err := src.Acquire("migration-1", "", keys, 0)
	if err != nil {
		panic(err)
	}
	defer src.Release(lease)
	into, err := dst.Reserve("migration-1", "", keys)
	if err != nil {
		panic(err)
	}
	page, sum := make([]byte, layout.PageBytes()), make([]uint32, 1)
	for p := range layout.PagesPerBlock() {
		if err := src.ReadPages(lease, refs[0], p, 1, page, sum); err != nil {
			panic(err)
		}
		if err := dst.WritePage(into[0].Ref, p, page, sum[0]); err != nil {
			panic(err)
		}
	}
	if err := dst.CommitLanded("migration-1", into[0].Ref); err != nil {
		panic(err)
	}
	state, _ := dst.Lookup("", keys[0])
	fmt.Println(state, dst.Stats().SlotsCommitted)
	// Output: present 1
}
