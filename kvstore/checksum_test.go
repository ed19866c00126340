package kvstore_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/kvferry/kvferry/kvstore"
	"github.com/kvferry/kvferry/kvstore/kvstoretest"
)

// plainSum is PageSum written from its documentation, over one buffer.
func plainSum(pin kvstore.Pin, key kvstore.BlockKey, layer int, page []byte) uint32 {
	var b bytes.Buffer
	b.WriteByte(1)
	b.Write(pin[:])
	_ = binary.Write(&b, binary.BigEndian, uint16(len(key)))
	b.WriteString(string(key))
	_ = binary.Write(&b, binary.BigEndian, uint32(layer))
	b.Write(page)
	return crc32.Checksum(b.Bytes(), crc32.MakeTable(crc32.Castagnoli))
}

func TestPageSumGolden(t *testing.T) {
	t.Parallel()
	if got, want := kvstore.PageSum(kvstore.Pin{1, 2, 3}, "the block key", 7, []byte("a page")), uint32(0xe022d31c); got != want {
		t.Errorf("sum %08x, want %08x", got, want)
	}
}

func TestPageSumDetects(t *testing.T) {
	t.Parallel()
	l := kvstoretest.Layout()
	pin, keys := l.Pin(), kvstoretest.Keys("a", 2)
	page, other := kvstoretest.Page(l, keys[0], 0), kvstoretest.Page(l, keys[0], 1)
	sum := kvstore.PageSum(pin, keys[0], 0, page)
	if want := plainSum(pin, keys[0], 0, page); sum != want {
		t.Fatalf("sum %08x, want %08x", sum, want)
	}
	otherPin := pin
	otherPin[31] ^= 1
	zero := make([]byte, len(page))
	for what, got := range map[string]uint32{
		"pages swapped":                     kvstore.PageSum(pin, keys[0], 0, other),
		"pages swapped with their sums":     kvstore.PageSum(pin, keys[0], 1, page),
		"page of another block":             kvstore.PageSum(pin, keys[1], 0, page),
		"page of another layout":            kvstore.PageSum(otherPin, keys[0], 0, page),
		"page zeroed":                       kvstore.PageSum(pin, keys[0], 0, zero),
		"key and layer run together":        kvstore.PageSum(pin, keys[0]+"\x00\x00\x00\x00", 0, page),
		"page cut":                          kvstore.PageSum(pin, keys[0], 0, page[:len(page)-1]),
		"page begins with the key's ending": kvstore.PageSum(pin, keys[0][:16], 0, append([]byte(keys[0][16:]), page...)),
	} {
		if got == sum {
			t.Errorf("%s: not detected", what)
		}
	}
	if kvstore.PageSum(pin, keys[0], 0, zero) == kvstore.PageSum(pin, keys[0], 1, zero) {
		t.Error("equal pages of two layers have one sum")
	}
	for bit := range 8 * len(page) {
		page[bit/8] ^= 1 << (bit % 8)
		if kvstore.PageSum(pin, keys[0], 0, page) == sum {
			t.Errorf("flip of bit %d not detected", bit)
		}
		page[bit/8] ^= 1 << (bit % 8)
	}
	// All layers a block can have are told apart, for a page of zeros.
	seen := map[uint32]int{}
	for layer := range kvstore.MaxLayers {
		s := kvstore.PageSum(pin, keys[0], layer, zero)
		if was, dup := seen[s]; dup {
			t.Errorf("layers %d and %d have one sum", was, layer)
		}
		seen[s] = layer
	}
}

func FuzzPageSum(f *testing.F) {
	f.Add([]byte("pin"), "key bytes", uint16(3), []byte("page"))
	f.Fuzz(func(t *testing.T, pinBytes []byte, key string, layer uint16, page []byte) {
		var pin kvstore.Pin
		copy(pin[:], pinBytes)
		k := kvstore.BlockKey(key)
		got := kvstore.PageSum(pin, k, int(layer), page)
		if k.Validate() == nil && got != plainSum(pin, k, int(layer), page) {
			t.Errorf("sum %08x, want %08x", got, plainSum(pin, k, int(layer), page))
		}
	})
}

func BenchmarkPageSum(b *testing.B) {
	page, key := make([]byte, 65536), kvstoretest.Keys("a", 1)[0]
	b.SetBytes(int64(len(page)))
	b.ReportAllocs()
	for b.Loop() {
		kvstore.PageSum(kvstore.Pin{}, key, 1, page)
	}
}
