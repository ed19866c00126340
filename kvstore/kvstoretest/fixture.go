// Package kvstoretest holds what tests of and with a kvstore need: small layouts, blocks with known contents, arenas
// that clean up, and a conformance suite for implementations of the store.
package kvstoretest

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	mathrand "math/rand/v2"
	"os"
	"testing"

	"github.com/kvferry/kvferry/kvstore"
)

// Layout returns a small valid layout: 3 layers of 2,048-byte pages, so that a block (6,144 bytes) is not a multiple
// of the slot alignment and strides show.
func Layout() kvstore.Layout {
	return kvstore.Layout{
		ModelID: "test/tiny", DType: kvstore.DTypeBF16, Kind: kvstore.KindGQA, Layers: 3, KVHeads: 2, HeadDim: 64,
		BlockTokens: 4, PositionScheme: "rope:theta=10000", HashAlgorithm: "sha256_cbor",
	}
}

// Keys returns n consecutive block keys of the sequence called seed: each is the hash of its predecessor.
func Keys(seed string, n int) []kvstore.BlockKey {
	keys := make([]kvstore.BlockKey, n)
	sum := sha256.Sum256([]byte(seed))
	for i := range keys {
		sum = sha256.Sum256(sum[:])
		keys[i] = kvstore.BlockKey(sum[:])
	}
	return keys
}

// Page returns the contents that tests give to one page of the block named key: pseudo-random bytes, seeded by both.
func Page(l kvstore.Layout, key kvstore.BlockKey, layer int) []byte {
	var seed [32]byte
	h := sha256.Sum256(binary.LittleEndian.AppendUint64([]byte(key), uint64(layer)))
	copy(seed[:], h[:])
	p := make([]byte, l.PageBytes())
	_, _ = mathrand.NewChaCha8(seed).Read(p) // documented never to fail
	return p
}

// OpenArena opens an arena of the given number of slots on the memory filesystem and closes it when the test ends.
// Change, unless nil, edits the configuration first.
func OpenArena(t testing.TB, slots int, change func(*kvstore.ArenaConfig)) *kvstore.Arena {
	t.Helper()
	cfg := kvstore.ArenaConfig{Name: "kvferry-test-" + rand.Text(), Layout: Layout()}
	if change != nil {
		change(&cfg)
	}
	if cfg.Bytes == 0 {
		cfg.Bytes = int64(slots) * cfg.Layout.Stride()
	}
	a, err := kvstore.OpenArena(cfg)
	if err != nil {
		t.Fatalf("open arena: %v", err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Errorf("close arena: %v", err)
		}
	})
	return a
}

// WriteAsEngine writes all pages of a reserved block through the arena's file, as an engine does through its mapping.
func WriteAsEngine(t testing.TB, s Store, key kvstore.BlockKey, ref kvstore.SlotRef) {
	t.Helper()
	f, err := os.OpenFile(s.Path(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	l := s.Layout()
	for layer := range l.PagesPerBlock() {
		off := int64(ref.Slot)*l.Stride() + int64(layer)*l.PageBytes()
		if _, err := f.WriteAt(Page(l, key, layer), off); err != nil {
			t.Fatal(err)
		}
	}
}

// Publish reserves, writes and commits the blocks named keys as an engine with one rank. Blocks that are present
// already are left alone.
func Publish(t testing.TB, s Store, o kvstore.Owner, tenant kvstore.Tenant, keys []kvstore.BlockKey) []kvstore.SlotRef {
	t.Helper()
	res, err := s.Reserve(o, tenant, keys)
	if err != nil {
		t.Fatalf("reserve: %v", err)
	}
	refs := make([]kvstore.SlotRef, len(res))
	for i, r := range res {
		refs[i] = r.Ref
		if r.State != kvstore.Reserved {
			continue
		}
		WriteAsEngine(t, s, r.Key, r.Ref)
		if done, err := s.CommitPart(o, r.Ref, 0, 1, kvstore.FidelityExact); err != nil || !done {
			t.Fatalf("commit: %v, %v", done, err)
		}
	}
	return refs
}

// Land writes all pages of a reserved block as the network does, and commits it.
func Land(t testing.TB, s Store, o kvstore.Owner, key kvstore.BlockKey, ref kvstore.SlotRef) {
	t.Helper()
	l := s.Layout()
	for layer := range l.PagesPerBlock() {
		p := Page(l, key, layer)
		if err := s.WritePage(ref, layer, p, kvstore.PageSum(s.Pin(), key, layer, p)); err != nil {
			t.Fatalf("write page %d: %v", layer, err)
		}
	}
	if err := s.CommitLanded(o, ref); err != nil {
		t.Fatalf("commit landed: %v", err)
	}
}
