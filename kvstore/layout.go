package kvstore

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/fxamacker/cbor/v2"
)

// Limits of a layout. They bound what a peer or an engine can make the daemon allocate.
const (
	// MaxPageBytes is the largest page, in bytes: a page is sent as one frame.
	MaxPageBytes = 4 << 20
	// MaxLayers is the most layers, and so the most pages a block.
	MaxLayers = 1024
	// SlotAlign is what a slot's stride is rounded up to, in bytes.
	SlotAlign = 4096

	maxKVHeads       = 1024
	maxHeadDim       = 8192
	maxBlockTokens   = 4096
	maxLayoutString  = 256
	maxScaleDigest   = 64
	layoutPinVersion = 1
)

// Layout is the shape of an engine's KV cache and the identity of what filled it. Two engines may exchange blocks
// when their layouts are equal field by field, which is what equal pins say. Tensor-parallel ranks, the engine's name
// and its version are not part of it.
//
// String fields hold at most 256 bytes of UTF-8. Empty optional strings match only empty ones.
type Layout struct {
	// ModelID names the model, as the engines on both sides spell it. Required.
	ModelID string
	// Revision is the model's revision (a commit or tag).
	Revision string
	// WeightsVersion tells apart weights of one revision, for example after an online update.
	WeightsVersion string
	// LoRA names the adapter the KV was computed with; empty means none.
	LoRA string

	// DType is the element type of the cache. Required.
	DType DType
	// FP8ScaleDigest is a digest of the FP8 scales, 0 to 64 bytes; empty means unit scales. Must be empty for other
	// types. Not retained or changed by methods of Layout.
	FP8ScaleDigest []byte

	// Kind is the shape of a page. Required.
	Kind Kind
	// Layers is the number of attention layers with a cache, 1 to 1024. A block has one page a layer.
	Layers int
	// KVHeads is the number of KV heads over all tensor-parallel ranks, 1 to 1024; exactly 1 for KindMLA.
	KVHeads int
	// HeadDim is the elements a head, 1 to 8192; for KindMLA the latent plus the rope part (DeepSeek-V3: 512+64=576).
	HeadDim int
	// BlockTokens is the tokens a block, 1 to 4096.
	BlockTokens int

	// PositionScheme names how positions are baked into K, for example "rope:theta=500000".
	PositionScheme string
	// HashAlgorithm names the engine's block hash. Required: keys of different algorithms never mean the same prefix.
	HashAlgorithm string
	// HashSeed is the seed of the block hash.
	HashSeed string
	// SaltPolicy names how tenants salt the block hash.
	SaltPolicy string
}

// Pin identifies a Layout: SHA-256 of its canonical CBOR encoding.
type Pin [sha256.Size]byte

// String returns the pin in hexadecimal.
func (p Pin) String() string { return hex.EncodeToString(p[:]) }

// IsZero reports whether p is the zero pin, which no layout has.
func (p Pin) IsZero() bool { return p == Pin{} }

// FieldDiff is one field in which two layouts differ.
type FieldDiff struct {
	Field  string // field of Layout
	Ours   string // our value, printable
	Theirs string // the other side's value, printable
	Fix    string // what makes the two sides agree
}

// String returns "Field: ours X, theirs Y; fix".
func (d FieldDiff) String() string {
	return fmt.Sprintf("%s: ours %s, theirs %s; %s", d.Field, d.Ours, d.Theirs, d.Fix)
}

// layoutRecord is the canonical form that is hashed. Keys are fixed for ever; a changed meaning takes a new version.
type layoutRecord struct {
	Version        uint64 `cbor:"0,keyasint"`
	ModelID        string `cbor:"1,keyasint"`
	Revision       string `cbor:"2,keyasint"`
	WeightsVersion string `cbor:"3,keyasint"`
	LoRA           string `cbor:"4,keyasint"`
	DType          string `cbor:"5,keyasint"`
	FP8ScaleDigest []byte `cbor:"6,keyasint"`
	Kind           string `cbor:"7,keyasint"`
	Layers         int64  `cbor:"8,keyasint"`
	KVHeads        int64  `cbor:"9,keyasint"`
	HeadDim        int64  `cbor:"10,keyasint"`
	BlockTokens    int64  `cbor:"11,keyasint"`
	PositionScheme string `cbor:"12,keyasint"`
	HashAlgorithm  string `cbor:"13,keyasint"`
	HashSeed       string `cbor:"14,keyasint"`
	SaltPolicy     string `cbor:"15,keyasint"`
}

// canonicalMode encodes deterministically (RFC 8949 §4.2.1).
var canonicalMode = func() cbor.EncMode {
	m, err := cbor.CoreDetEncOptions().EncMode()
	if err != nil {
		panic("BUG: canonical CBOR options: " + err.Error())
	}
	return m
}()

// Pin returns the identity of l. It is defined for invalid layouts too, so that a refusal can name both pins.
func (l Layout) Pin() Pin {
	rec := layoutRecord{
		Version: layoutPinVersion, ModelID: l.ModelID, Revision: l.Revision, WeightsVersion: l.WeightsVersion,
		LoRA: l.LoRA, DType: l.DType.String(), FP8ScaleDigest: append([]byte{}, l.FP8ScaleDigest...),
		Kind: l.Kind.String(), Layers: int64(l.Layers), KVHeads: int64(l.KVHeads), HeadDim: int64(l.HeadDim),
		BlockTokens: int64(l.BlockTokens), PositionScheme: l.PositionScheme, HashAlgorithm: l.HashAlgorithm,
		HashSeed: l.HashSeed, SaltPolicy: l.SaltPolicy,
	}
	b, err := canonicalMode.Marshal(rec)
	if err != nil {
		panic("BUG: encode layout: " + err.Error())
	}
	return sha256.Sum256(b)
}

// TokenBytes returns the KV bytes a token over all layers. Llama-3.1-70B BF16: 2·80·8·128·2 = 327,680.
func (l Layout) TokenBytes() int64 { return int64(l.Layers) * l.tokenLayerBytes() }

// PageBytes returns the bytes of one block's KV of one layer. Llama-3.1-70B BF16, 16 tokens: 65,536.
func (l Layout) PageBytes() int64 { return int64(l.BlockTokens) * l.tokenLayerBytes() }

// BlockBytes returns the bytes of one block: PageBytes times Layers, pages in layer order without gaps.
func (l Layout) BlockBytes() int64 { return int64(l.Layers) * l.PageBytes() }

// Stride returns the bytes from one slot to the next: BlockBytes rounded up to 4 KiB.
func (l Layout) Stride() int64 { return (l.BlockBytes() + SlotAlign - 1) / SlotAlign * SlotAlign }

// PagesPerBlock returns the pages of a block, one a layer.
func (l Layout) PagesPerBlock() int { return l.Layers }

func (l Layout) tokenLayerBytes() int64 {
	elems := int64(l.KVHeads) * int64(l.HeadDim)
	if l.Kind == KindGQA {
		elems *= 2
	}
	return elems * int64(l.DType.Bytes())
}

// Validate returns nil or every violation joined, each a *FieldError.
func (l Layout) Validate() error {
	var errs []error
	bad := func(field string, value any, allowed, fix string) {
		errs = append(errs, &FieldError{Field: field, Value: clip(fmt.Sprint(value)), Allowed: allowed, Fix: fix})
	}
	for _, f := range l.stringFields() {
		switch {
		case len(f.value) > maxLayoutString:
			bad(f.name, f.value, fmt.Sprintf("at most %d bytes", maxLayoutString), "shorten it, or use a digest of it")
		case !utf8.ValidString(f.value):
			bad(f.name, f.value, "UTF-8 text", "send text; put raw digests in hexadecimal")
		case f.required && f.value == "":
			bad(f.name, `""`, "not empty", "set it to the engine's own value")
		}
	}
	if l.DType.Bytes() == 0 {
		bad("DType", l.DType, "bf16, fp16, fp8_e4m3, fp8_e5m2", "set the element type of the engine's KV cache")
	}
	if n := len(l.FP8ScaleDigest); n > maxScaleDigest || (n > 0 && !l.DType.IsFP8()) {
		bad("FP8ScaleDigest", fmt.Sprintf("%d bytes with dtype %s", n, l.DType), "0 to 64 bytes, and none unless the dtype is FP8",
			"hash the scales with SHA-256, and leave it empty for 16-bit caches")
	}
	if l.Kind != KindGQA && l.Kind != KindMLA {
		bad("Kind", l.Kind, "gqa, mla", "state-space, sliding-window and draft-model caches cannot be moved; register only full-attention layers")
	}
	inRange := func(field string, v, limit int) {
		if v < 1 || v > limit {
			bad(field, v, fmt.Sprintf("1 to %d", limit), "set it from the model's configuration")
		}
	}
	inRange("Layers", l.Layers, MaxLayers)
	inRange("KVHeads", l.KVHeads, maxKVHeads)
	inRange("HeadDim", l.HeadDim, maxHeadDim)
	inRange("BlockTokens", l.BlockTokens, maxBlockTokens)
	if l.Kind == KindMLA && l.KVHeads != 1 {
		bad("KVHeads", l.KVHeads, "1 for mla", "an MLA cache has one latent a token; put latent+rope in HeadDim")
	}
	if len(errs) == 0 && l.PageBytes() > MaxPageBytes {
		bad("BlockTokens", l.BlockTokens, fmt.Sprintf("pages of at most %d bytes (this layout: %d)", MaxPageBytes, l.PageBytes()),
			"use a smaller block in the engine")
	}
	return errors.Join(errs...)
}

type layoutString struct {
	name, value string
	required    bool
}

func (l Layout) stringFields() []layoutString {
	return []layoutString{
		{"ModelID", l.ModelID, true},
		{"Revision", l.Revision, false},
		{"WeightsVersion", l.WeightsVersion, false},
		{"LoRA", l.LoRA, false},
		{"PositionScheme", l.PositionScheme, false},
		{"HashAlgorithm", l.HashAlgorithm, true},
		{"HashSeed", l.HashSeed, false},
		{"SaltPolicy", l.SaltPolicy, false},
	}
}

// Diff returns every field in which l (ours) and other (theirs) differ, in the order of Layout's fields, or nil when
// they have the same pin.
func (l Layout) Diff(other Layout) []FieldDiff {
	var diffs []FieldDiff
	add := func(differ bool, field string, ours, theirs any, fix string) {
		if differ {
			diffs = append(diffs, FieldDiff{Field: field, Ours: clip(fmt.Sprint(ours)), Theirs: clip(fmt.Sprint(theirs)), Fix: fix})
		}
	}
	text := func(field, ours, theirs, fix string) {
		add(ours != theirs, field, fmt.Sprintf("%q", ours), fmt.Sprintf("%q", theirs), fix)
	}
	text("ModelID", l.ModelID, other.ModelID, "serve the same model on both sides, spelled the same way")
	text("Revision", l.Revision, other.Revision, "load the same revision of the model on both sides")
	text("WeightsVersion", l.WeightsVersion, other.WeightsVersion, "update the weights on both sides, then migrate")
	text("LoRA", l.LoRA, other.LoRA, "migrate to an engine that has the same adapter loaded")
	add(l.DType != other.DType, "DType", l.DType, other.DType, "start both engines with the same KV cache dtype")
	add(!bytes.Equal(l.FP8ScaleDigest, other.FP8ScaleDigest), "FP8ScaleDigest", hexOrNone(l.FP8ScaleDigest), hexOrNone(other.FP8ScaleDigest),
		"load the same FP8 KV scales on both sides")
	add(l.Kind != other.Kind, "Kind", l.Kind, other.Kind, "use the same attention back end class on both sides")
	add(l.Layers != other.Layers, "Layers", l.Layers, other.Layers, "serve the same model on both sides; draft layers do not count")
	add(l.KVHeads != other.KVHeads, "KVHeads", l.KVHeads, other.KVHeads, "count KV heads over all tensor-parallel ranks, without replicas")
	add(l.HeadDim != other.HeadDim, "HeadDim", l.HeadDim, other.HeadDim, "serve the same model on both sides; for MLA count latent and rope")
	add(l.BlockTokens != other.BlockTokens, "BlockTokens", l.BlockTokens, other.BlockTokens, "start both engines with the same block size")
	text("PositionScheme", l.PositionScheme, other.PositionScheme, "use the same position scaling on both sides")
	text("HashAlgorithm", l.HashAlgorithm, other.HashAlgorithm, "start both engines with the same prefix-cache hash algorithm")
	text("HashSeed", l.HashSeed, other.HashSeed, "start both engines with the same hash seed (vLLM: PYTHONHASHSEED)")
	text("SaltPolicy", l.SaltPolicy, other.SaltPolicy, "use the same cache salt policy on both sides")
	return diffs
}

func hexOrNone(b []byte) string {
	if len(b) == 0 {
		return "none"
	}
	return hex.EncodeToString(b)
}
