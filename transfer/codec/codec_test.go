package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
)

// normals returns n normal values of the given deviation: as BF16, little-endian.
func normals(seed uint64, n int, sigma float64) []byte {
	rng := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 0, 2*n)
	for range n {
		b = binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(sigma*rng.NormFloat64()))>>16))
	}
	return b
}

func noise(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// patterns is every 16-bit pattern, 8 times, between values that compress.
func patterns() []byte {
	b := normals(3, 1<<20, 1)
	for v := range 1 << 16 {
		binary.LittleEndian.PutUint16(b[32*v:], uint16(v))
	}
	return b
}

// roundTrip codes a page and back, and returns the coded length; 0: it does not become shorter.
func roundTrip(t *testing.T, id ID, page []byte, s *Scratch) int {
	t.Helper()
	prefix := []byte("before")
	coded, err := Encode(id, bytes.Clone(prefix), page, s)
	if !bytes.HasPrefix(coded, prefix) {
		t.Fatalf("%v changed what stood before", id)
	}
	if coded = coded[len(prefix):]; errors.Is(err, ErrIncompressible) {
		if len(coded) != 0 {
			t.Fatalf("%v left %d bytes behind", id, len(coded))
		}
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(coded) >= len(page) {
		t.Fatalf("%v: %d bytes of %d", id, len(coded), len(page))
	}
	got := noise(9, len(page))
	if err := Decode(id, got, coded, s); err != nil {
		t.Fatalf("%v, %d bytes: %v", id, len(page), err)
	}
	if !bytes.Equal(got, page) {
		t.Fatalf("%v: a page of %d bytes came back as another", id, len(page))
	}
	return len(coded)
}

// TestRoundTrip has pages of all kinds come back bit for bit, NaN payloads, infinities, denormals and −0 included.
func TestRoundTrip(t *testing.T) {
	pages := map[string][]byte{
		"every pattern": patterns(), "normal": normals(1, 32<<10, 0.3), "wide": append(normals(1, 9000, 1e-30), normals(2, 9000, 1e30)...),
		"zero": make([]byte, 64<<10), "noise": noise(1, 64<<10), "4 MiB": append(normals(1, 1<<20, 2), normals(2, 1<<20, 0.01)...),
		"odd": append(normals(4, 40_001, 1), 7), "one exponent": bytes.Repeat([]byte{0x12, 0x3f}, 5000),
	}
	for id := Split4; id < ids; id++ {
		var s Scratch
		for name, page := range pages {
			n := roundTrip(t, id, page, &s)
			t.Logf("%-7v %-14s %8d of %8d", id, name, n, len(page))
			if name == "noise" && n != 0 || name == "zero" && n == 0 {
				t.Errorf("%v: %s has %d coded bytes", id, name, n)
			}
		}
		for n := range 400 { // all tails, and none of anything
			roundTrip(t, id, normals(1, n, 1)[:n], &s)
			roundTrip(t, id, make([]byte, n), &s)
		}
	}
	if _, err := Encode(Huff, nil, make([]byte, MaxPageBytes+1), new(Scratch)); err == nil {
		t.Error("a page over the bound was coded")
	}
	for _, id := range []ID{Raw, ids, 255} {
		if _, err := Encode(id, nil, make([]byte, 99), new(Scratch)); err == nil {
			t.Errorf("%v codes", id)
		}
		if err := Decode(id, make([]byte, 99), []byte{1, 99, 0, 0, 0, 0}, new(Scratch)); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%v decodes: %v", id, err)
		}
	}
}

// bound is the ratio that order-0 entropy allows: of exponents and of the other byte, each on its own.
func bound(page []byte) float64 {
	var e, m [256]float64
	for i := 0; i < len(page); i += 2 {
		v := binary.LittleEndian.Uint16(page[i:])
		e[byte(v>>7)]++
		m[byte(v>>8)&0x80|byte(v)&0x7f]++
	}
	n := float64(len(page) / 2)
	bits := 0.0
	for _, h := range [][256]float64{e, m} {
		for _, c := range h {
			if c > 0 {
				bits -= c / n * math.Log2(c/n)
			}
		}
	}
	return 16 / bits
}

// TestRatio holds what codecs make of normal values against the bound of their entropy.
func TestRatio(t *testing.T) {
	page := normals(1, 32<<10, 0.7)
	most := bound(page)
	var s Scratch
	ratio := func(id ID) float64 { return float64(len(page)) / float64(roundTrip(t, id, page, &s)) }
	h, f := ratio(Huff), ratio(Split4)
	t.Logf("bound %.4f, huff %.4f, split4 %.4f", most, h, f)
	if h < 0.98*most || h > 1.001*most {
		t.Errorf("huff %.4f of a bound of %.4f", h, most)
	}
	if f < 1.32 || f > 16.0/12 {
		t.Errorf("split4 %.4f, want just under 4/3", f)
	}
	if n := roundTrip(t, Zstd, page, &s); n != 0 && float64(len(page))/float64(n) > 1.05 {
		t.Errorf("zstd %d of %d bytes: these are no KV values", n, len(page))
	}
	fp8 := make([]byte, 64<<10) // E4M3 by hand: sign, 4 bits of exponent, 3 of mantissa
	for i := range fp8 {
		v := math.Float32bits(float32(rand.New(rand.NewPCG(uint64(i), 1)).NormFloat64()))
		fp8[i] = byte(v>>31<<7 | (v>>23&0xff-120)&15<<3 | v>>20&7)
	}
	if r := float64(len(fp8)) / float64(roundTrip(t, Huff8, fp8, &s)); r < 1.05 {
		t.Errorf("huff8 %.3f", r)
	}
}

// TestDeterministic has a used scratch give what a new one does.
func TestDeterministic(t *testing.T) {
	page := normals(1, 20_000, 1)
	for id := Split4; id < ids; id++ {
		var used Scratch
		_, _ = Encode(id, nil, normals(7, 70_000, 1e-3), &used)
		a, errA := Encode(id, nil, page, &used)
		b, errB := Encode(id, nil, page, new(Scratch))
		if !bytes.Equal(a, b) || !errors.Is(errA, errB) {
			t.Errorf("%v: a used scratch gives other bytes", id)
		}
	}
}

// TestFormat holds the bytes of one page, which peers of other builds have to read.
func TestFormat(t *testing.T) {
	page := make([]byte, 0, 130)
	for i := range 65 {
		page = binary.LittleEndian.AppendUint16(page, uint16(0x3f80+i*37%3*0x80+i))
	}
	for id, want := range golden {
		got, err := Encode(id, nil, page, new(Scratch))
		if err != nil || hex.EncodeToString(got) != want {
			t.Errorf("%v: %v\n%x, want\n%s", id, err, got, want)
		}
	}
}

// TestCorrupt cuts coded pages short everywhere, lengthens them, flips each of their bits and decodes them to other lengths: an error or
// other bytes, and no panic.
func TestCorrupt(t *testing.T) {
	page := append(normals(1, 700, 1), 5)
	for id := Split4; id < ids; id++ {
		var s Scratch
		coded, err := Encode(id, nil, page, &s)
		if errors.Is(err, ErrIncompressible) {
			page := make([]byte, 1401)
			if coded, err = Encode(id, nil, page, &s); err != nil {
				t.Fatal(err)
			}
		}
		dst := make([]byte, len(page))
		for n := range coded {
			if err := Decode(id, dst, coded[:n], &s); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v, %d of %d bytes: %v", id, n, len(coded), err)
			}
		}
		for i := range 8 * len(coded) {
			b := bytes.Clone(coded)
			b[i/8] ^= 1 << (i % 8)
			if err := Decode(id, dst, b, &s); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("%v, bit %d: %v", id, i, err)
			}
		}
		for _, bad := range []struct {
			dst []byte
			src []byte
		}{{dst, append(bytes.Clone(coded), 0)}, {dst[1:], coded}, {append(dst, 0), coded}, {nil, coded}, {dst, nil}} {
			if err := Decode(id, bad.dst, bad.src, &s); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%v: %d bytes to %d: %v", id, len(bad.src), len(bad.dst), err)
			}
		}
	}
}

// TestBombs has frames of zstd that say or decode to other sizes, and tables that say more than is there, end in an error and cost about a page at most.
func TestBombs(t *testing.T) {
	const pageBytes = 64 << 10
	magic := []byte{0x28, 0xb5, 0x2f, 0xfd}
	runs := bytes.Repeat([]byte{0x02, 0, 0x10, 7}, 1000) // blocks of 128 KiB of one byte
	bombs := map[string][]byte{
		"no size":      append(append(bytes.Clone(magic), 0x00, 12<<3), runs...),
		"right size":   append(append(bytes.Clone(magic), 0xa0, 0, 0, 1, 0), runs...),
		"larger size":  append(append(bytes.Clone(magic), 0xa0, 0, 0, 0, 0xf0), runs...),
		"wide window":  append(append(bytes.Clone(magic), 0x80, 31<<3, 0, 0, 1, 0), runs...),
		"dictionary":   append(append(bytes.Clone(magic), 0xa1, 9, 0, 0, 1, 0), runs...),
		"skipped":      append([]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 1, 0}, runs...),
		"skipped, 4 G": append([]byte{0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff}, runs...),
	}
	dst := make([]byte, pageBytes)
	for name, frame := range bombs {
		src := append(binary.LittleEndian.AppendUint32([]byte{version}, pageBytes), frame...)
		for id := Split4; id < ids; id++ {
			s := new(Scratch)
			for range 2 { // the second time what the scratch needs is there
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				err := Decode(id, dst, src, s)
				runtime.ReadMemStats(&after)
				if !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s as %v: %v", name, id, err)
				}
				if n := after.TotalAlloc - before.TotalAlloc; n > 8*pageBytes {
					t.Errorf("%s as %v: %d bytes allocated", name, id, n)
				}
			}
		}
	}
}

// TestAllocations has a used scratch need no more.
func TestAllocations(t *testing.T) {
	page := normals(1, 32<<10, 1)
	for id := Split4; id < ids; id++ {
		if id == Zstd {
			page = bytes.Repeat([]byte("kvferry "), 8<<10)
		}
		var s Scratch
		dst, got := make([]byte, 0, MaxEncoded(len(page))), make([]byte, len(page))
		coded, err := Encode(id, dst, page, &s)
		if errors.Is(err, ErrIncompressible) {
			continue
		}
		if &coded[0] != &dst[:1][0] {
			t.Errorf("%v: MaxEncoded is not enough", id)
		}
		n := testing.AllocsPerRun(50, func() {
			if _, err := Encode(id, dst, page, &s); err != nil {
				t.Error(err)
			}
			if err := Decode(id, got, coded, &s); err != nil {
				t.Error(err)
			}
		})
		if n > 0 {
			t.Errorf("%v: %.1f allocations a page", id, n)
		}
	}
}

func TestNames(t *testing.T) {
	for id := range ids {
		if got, err := Parse(id.String()); got != id || err != nil {
			t.Errorf("%v parses to %v: %v", id, got, err)
		}
	}
	if _, err := Parse("lz4"); err == nil {
		t.Error("lz4 is a codec")
	}
	for e := Unknown; e <= Opaque; e++ {
		for _, id := range For(e) {
			if !id.Valid() || id == Raw {
				t.Errorf("element %d: %v", e, id)
			}
		}
	}
	if Raw != 0 || Split4 != 1 || Huff != 2 || Huff16 != 3 || Huff8 != 4 || Zstd != 5 {
		t.Error("numbers on the wire changed")
	}
}

// FuzzDecode decodes anything: no panic, and what decodes comes back from its own coding.
func FuzzDecode(f *testing.F) {
	for id := Split4; id < ids; id++ {
		if b, err := Encode(id, nil, make([]byte, 300), new(Scratch)); err == nil {
			f.Add(uint8(id), uint16(300), b)
		}
		if b, err := Encode(id, nil, normals(1, 500, 1), new(Scratch)); err == nil {
			f.Add(uint8(id), uint16(1000), b)
		}
	}
	var s Scratch
	f.Fuzz(func(t *testing.T, id uint8, n uint16, src []byte) {
		page := make([]byte, n)
		if err := Decode(ID(id), page, src, &s); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		roundTrip(t, ID(id), page, &s)
	})
}

// FuzzRoundTrip has any page come back.
func FuzzRoundTrip(f *testing.F) {
	f.Add(uint8(Huff), normals(1, 100, 1))
	f.Add(uint8(Split4), make([]byte, 99))
	var s Scratch
	f.Fuzz(func(t *testing.T, id uint8, page []byte) {
		if id := ID(id % uint8(ids)); id != Raw {
			roundTrip(t, id, page, &s)
		}
	})
}

// golden was made by this package; a change of it is a new version of the format.
var golden = map[ID]string{
	Split4: "01820000007f8081000102030405060708090a0b0c0000000010210210021021022102102110210210021021022102102110210210021021020004010502060307080c090d0a0e0b0f1014111512161317181c191d1a1e1b1f2024212522262327282c292d2a2e2b2f3034313532363337383c393d3a3e3b3f4040",
	Huff:   "01820000000214000005f0010d10130200020002005c300b2ec1455c300214000005f0010d10130200020002000b2ec1455c300b2e0004010502060307080c090d0a0e0b0f1014111512161317181c191d1a1e1b1f2024212522262327282c292d2a2e2b2f3034313532363337383c393d3a3e3b3f4040",
	Huff16: "01820000000213000004e003791002000200020079019e01e70179010213000004e00379100200020002009e01e70179019e018004018582868307888c890d0a8e8b8f1094919592161397981c199d9a9e9b1fa0a4a12522a6a3a728aca9adaa2e2bafb03431b5b2b6b337b8bcb93d3abebbbf4040",
}
