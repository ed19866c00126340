package kvstore_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/kvstore"
)

func fullLayout() kvstore.Layout {
	return kvstore.Layout{
		ModelID: "m", Revision: "r", WeightsVersion: "w", LoRA: "l", DType: kvstore.DTypeFP8E4M3, FP8ScaleDigest: []byte{1, 2},
		Kind: kvstore.KindGQA, Layers: 2, KVHeads: 3, HeadDim: 4, BlockTokens: 5,
		PositionScheme: "p", HashAlgorithm: "h", HashSeed: "s", SaltPolicy: "t",
	}
}

// The golden values hold the canonical encoding still: a changed value splits every fleet during an upgrade.
func TestPinGolden(t *testing.T) {
	t.Parallel()
	reference, err := kvstore.PresetByName("llama-3.1-70b")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		layout kvstore.Layout
		want   string
	}{
		{"zero", kvstore.Layout{}, "8646e4f89163c7b12a7c3c902208865c7f045dba694d4a9c084c8da8e9dd7711"},
		{"full", fullLayout(), "9778a03354b75d3b946ce15652d99b655b7b4b206a262f0840c53cdeb7077afb"},
		{"reference", reference.Layout, "b9abe3d39816b75b5ee02df988ec9378efea0da66aae3cf075fa5ada0d36f741"},
	} {
		if got := tt.layout.Pin().String(); got != tt.want {
			t.Errorf("%s: pin %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestEveryFieldChangesPinAndDiff(t *testing.T) {
	t.Parallel()
	base := fullLayout()
	if d := base.Diff(fullLayout()); d != nil || base.Pin() != fullLayout().Pin() {
		t.Fatalf("equal layouts differ: %v", d)
	}
	pins := map[kvstore.Pin]string{base.Pin(): "base"}
	typ := reflect.TypeFor[kvstore.Layout]()
	for i := range typ.NumField() {
		name := typ.Field(i).Name
		other := fullLayout()
		switch v := reflect.ValueOf(&other).Elem().Field(i); v.Kind() {
		case reflect.String:
			v.SetString(v.String() + "x")
		case reflect.Int:
			v.SetInt(v.Int() + 1)
		case reflect.Uint8:
			v.SetUint(v.Uint()%2 + 1)
			if v.Uint() == uint64(kvstore.KindGQA) && name == "Kind" {
				v.SetUint(uint64(kvstore.KindMLA))
			}
		case reflect.Slice:
			v.SetBytes([]byte{9})
		default:
			t.Fatalf("field %s has a kind this test does not know", name)
		}
		if same, dup := pins[other.Pin()]; dup {
			t.Errorf("changing %s gives the pin of %s", name, same)
		}
		pins[other.Pin()] = name
		d := base.Diff(other)
		if len(d) != 1 || d[0].Field != name || d[0].Fix == "" || d[0].Ours == d[0].Theirs {
			t.Errorf("changing %s: diff %v", name, d)
		}
		back := other.Diff(base)
		if len(back) != 1 || back[0].Ours != d[0].Theirs || back[0].Theirs != d[0].Ours {
			t.Errorf("changing %s: diff is not symmetric: %v, %v", name, d, back)
		}
	}
	if d := base.Diff(kvstore.Layout{}); len(d) != typ.NumField() {
		t.Errorf("against the zero layout %d of %d fields differ", len(d), typ.NumField())
	}
}

// Moving bytes between neighbouring strings must not give the same pin.
func TestPinIsUnambiguous(t *testing.T) {
	t.Parallel()
	a, b := fullLayout(), fullLayout()
	a.ModelID, a.Revision = "ab", "c"
	b.ModelID, b.Revision = "a", "bc"
	if a.Pin() == b.Pin() {
		t.Error("strings run together")
	}
	a, b = fullLayout(), fullLayout()
	a.FP8ScaleDigest, b.FP8ScaleDigest = nil, []byte{}
	if a.Pin() != b.Pin() || a.Diff(b) != nil {
		t.Error("nil and empty digests differ")
	}
}

func TestPresets(t *testing.T) {
	t.Parallel()
	want := map[string]struct{ token, page, block, stride int64 }{
		"llama-3.1-8b":   {131072, 65536, 2097152, 2097152},
		"llama-3.1-70b":  {327680, 65536, 5242880, 5242880},
		"llama-3.1-405b": {516096, 65536, 8257536, 8257536},
		"qwen3-32b":      {262144, 65536, 4194304, 4194304},
		"deepseek-v3":    {70272, 18432, 1124352, 1126400},
	}
	if n := len(kvstore.Presets()); n != len(want) {
		t.Errorf("%d presets, want %d", n, len(want))
	}
	for name, w := range want {
		p, err := kvstore.PresetByName(strings.ToUpper(name))
		if err != nil {
			t.Error(err)
			continue
		}
		l := p.Layout
		if err := l.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got := struct{ token, page, block, stride int64 }{l.TokenBytes(), l.PageBytes(), l.BlockBytes(), l.Stride()}
		if got != w {
			t.Errorf("%s: bytes %+v, want %+v", name, got, w)
		}
		if l.TokenBytes()*int64(l.BlockTokens) != l.BlockBytes() || l.PageBytes()*int64(l.PagesPerBlock()) != l.BlockBytes() {
			t.Errorf("%s: token, page and block bytes do not agree", name)
		}
		if p.ParamsActive > p.ParamsTotal || p.ParamsEmbedding >= p.ParamsActive || p.QueryHeads <= 0 || p.AttnHeadDim <= 0 || p.Source == "" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	v3, _ := kvstore.PresetByName("deepseek-v3")
	if s := v3.Layout.Stride(); s%4096 != 0 || s == v3.Layout.BlockBytes() {
		t.Errorf("deepseek-v3 stride %d, block %d", s, v3.Layout.BlockBytes())
	}
	if v3.AttnHeadDim != 160 || v3.ParamsActive != 37e9 {
		t.Errorf("deepseek-v3: d %v, active %v", v3.AttnHeadDim, v3.ParamsActive)
	}
	// The recompute model's published terms for the reference: 136.9 GFLOP a token and 2.621 MFLOP a token and position.
	ref, _ := kvstore.PresetByName("llama-3.1-70b")
	if mm := 2 * (ref.ParamsActive - ref.ParamsEmbedding); math.Abs(mm/1e9-136.9) > 0.05 {
		t.Errorf("reference: %v FLOP a token", mm)
	}
	if at := 4 * float64(ref.Layout.Layers*ref.QueryHeads) * ref.AttnHeadDim; at != 2621440 {
		t.Errorf("reference: %v FLOP a token and position", at)
	}
	_, err := kvstore.PresetByName("gpt-9")
	for name := range want {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("unknown preset: %v does not list %s", err, name)
		}
	}
}

func fields(err error) []string {
	var out []string
	var walk func(error)
	walk = func(err error) {
		switch e := err.(type) { //nolint:errorlint // walks the tree itself
		case *kvstore.FieldError:
			out = append(out, e.Field)
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				walk(err)
			}
		case interface{ Unwrap() error }:
			walk(e.Unwrap())
		}
	}
	walk(err)
	return out
}

func TestLayoutValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*kvstore.Layout)
		want   []string
	}{
		{"full", func(*kvstore.Layout) {}, nil},
		{"no model", func(l *kvstore.Layout) { l.ModelID = "" }, []string{"ModelID"}},
		{"no hash", func(l *kvstore.Layout) { l.HashAlgorithm = "" }, []string{"HashAlgorithm"}},
		{"long string", func(l *kvstore.Layout) { l.LoRA = strings.Repeat("x", 257) }, []string{"LoRA"}},
		{"not text", func(l *kvstore.Layout) { l.HashSeed = "\xff" }, []string{"HashSeed"}},
		{"dtype", func(l *kvstore.Layout) { l.DType = 9; l.FP8ScaleDigest = nil }, []string{"DType"}},
		{"digest without fp8", func(l *kvstore.Layout) { l.DType = kvstore.DTypeBF16 }, []string{"FP8ScaleDigest"}},
		{"long digest", func(l *kvstore.Layout) { l.FP8ScaleDigest = make([]byte, 65) }, []string{"FP8ScaleDigest"}},
		{"kind", func(l *kvstore.Layout) { l.Kind = 7 }, []string{"Kind"}},
		{"mla heads", func(l *kvstore.Layout) { l.Kind = kvstore.KindMLA }, []string{"KVHeads"}},
		{"negative", func(l *kvstore.Layout) { l.Layers, l.HeadDim = -1, 0 }, []string{"Layers", "HeadDim"}},
		{"huge", func(l *kvstore.Layout) { l.BlockTokens, l.KVHeads = math.MaxInt, math.MaxInt }, []string{"KVHeads", "BlockTokens"}},
		{"page too large", func(l *kvstore.Layout) { l.KVHeads, l.HeadDim, l.BlockTokens = 128, 256, 128 }, []string{"BlockTokens"}},
		{"zero", func(l *kvstore.Layout) { *l = kvstore.Layout{} }, []string{
			"ModelID", "HashAlgorithm", "DType", "Kind", "Layers", "KVHeads", "HeadDim", "BlockTokens",
		}},
	} {
		l := fullLayout()
		tt.change(&l)
		err := l.Validate()
		if diff := cmp.Diff(tt.want, fields(err)); diff != "" {
			t.Errorf("%s: fields (-want +got):\n%s%v", tt.name, diff, err)
		}
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for d := kvstore.DTypeBF16; d <= kvstore.DTypeFP8E5M2; d++ {
		if got, err := kvstore.ParseDType(d.String()); got != d || err != nil || d.Bytes() == 0 {
			t.Errorf("%v: %v, %v", d, got, err)
		}
	}
	for _, k := range []kvstore.Kind{kvstore.KindGQA, kvstore.KindMLA} {
		if got, err := kvstore.ParseKind(k.String()); got != k || err != nil {
			t.Errorf("%v: %v, %v", k, got, err)
		}
	}
	for _, err := range []error{
		func() error { _, err := kvstore.ParseDType("int4"); return err }(),
		func() error { _, err := kvstore.ParseKind("mamba"); return err }(),
	} {
		if _, ok := errors.AsType[*kvstore.FieldError](err); !ok {
			t.Errorf("got %v", err)
		}
	}
	for _, v := range []fmt.Stringer{
		kvstore.DType(99), kvstore.Kind(99), kvstore.Fidelity(99), kvstore.BlockState(99), kvstore.ReservationState(99),
		kvstore.HandOverOutcome(99),
		kvstore.SlotRef{Slot: 99},
		kvstore.LeaseID(0x99),
	} {
		if !strings.Contains(v.String(), "99") {
			t.Errorf("%T: %s", v, v)
		}
	}
}
