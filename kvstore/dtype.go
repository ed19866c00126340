package kvstore

import (
	"fmt"
	"strings"
)

// DType is the element type of a KV page. The zero value is invalid.
type DType uint8

// The element types a layout may have.
const (
	// DTypeBF16 is bfloat16, 2 bytes an element.
	DTypeBF16 DType = iota + 1
	// DTypeFP16 is IEEE 754 binary16, 2 bytes an element.
	DTypeFP16
	// DTypeFP8E4M3 is OCP FP8 E4M3, 1 byte an element.
	DTypeFP8E4M3
	// DTypeFP8E5M2 is OCP FP8 E5M2, 1 byte an element.
	DTypeFP8E5M2
)

var dtypeNames = [...]string{DTypeBF16: "bf16", DTypeFP16: "fp16", DTypeFP8E4M3: "fp8_e4m3", DTypeFP8E5M2: "fp8_e5m2"}

// Bytes returns the size of one element in bytes, 0 for an invalid type.
func (d DType) Bytes() int {
	switch d {
	case DTypeBF16, DTypeFP16:
		return 2
	case DTypeFP8E4M3, DTypeFP8E5M2:
		return 1
	default:
		return 0
	}
}

// IsFP8 reports whether d is one of the 8-bit types, the only ones that may carry a scale digest.
func (d DType) IsFP8() bool { return d == DTypeFP8E4M3 || d == DTypeFP8E5M2 }

// String returns the name ParseDType accepts, or "dtype(n)" for an invalid type.
func (d DType) String() string {
	if d >= DTypeBF16 && d <= DTypeFP8E5M2 {
		return dtypeNames[d]
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// ParseDType returns the type named s: bf16, fp16, fp8_e4m3 or fp8_e5m2, and the engines' spellings bfloat16,
// float16, half, fp8 (E4M3), in any case. Any other name is a *FieldError.
func ParseDType(s string) (DType, error) {
	switch strings.ToLower(s) {
	case "bf16", "bfloat16":
		return DTypeBF16, nil
	case "fp16", "float16", "half":
		return DTypeFP16, nil
	case "fp8", "fp8_e4m3", "float8_e4m3fn":
		return DTypeFP8E4M3, nil
	case "fp8_e5m2", "float8_e5m2":
		return DTypeFP8E5M2, nil
	}
	return 0, &FieldError{
		Field: "dtype", Value: clip(s), Allowed: "bf16, fp16, fp8_e4m3, fp8_e5m2",
		Fix: "use the element type the engine keeps its KV cache in",
	}
}

// Kind is the shape of a page. The zero value is invalid.
type Kind uint8

// The kinds a layout may have.
const (
	// KindGQA is grouped-query attention: a page is [K,V][KVHeads][BlockTokens][HeadDim], row-major.
	KindGQA Kind = iota + 1
	// KindMLA is multi-head latent attention: a page is [BlockTokens][latent+rope], row-major.
	KindMLA
)

// String returns the name ParseKind accepts, or "kind(n)" for an invalid kind.
func (k Kind) String() string {
	switch k {
	case KindGQA:
		return "gqa"
	case KindMLA:
		return "mla"
	default:
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
}

// ParseKind returns the kind named s: gqa or mla. State-space layers, sliding windows and draft-model caches have no
// kind; they and any other name are a *FieldError.
func ParseKind(s string) (Kind, error) {
	switch strings.ToLower(s) {
	case "gqa":
		return KindGQA, nil
	case "mla":
		return KindMLA, nil
	}
	return 0, &FieldError{
		Field: "kind", Value: clip(s), Allowed: "gqa, mla",
		Fix: "state-space, sliding-window and draft-model caches cannot be moved; register only full-attention layers",
	}
}

// Fidelity says whether a block's bytes are the source's own. The zero value is FidelityExact.
type Fidelity uint8

// The fidelities a block or session may have.
const (
	// FidelityExact marks bytes that are equal to the source's.
	FidelityExact Fidelity = iota
	// FidelityLossy marks bytes that went through a lossy codec. The arena refuses them with ErrFidelityUnsupported:
	// a lossy block must never be offered, matched or counted as exact.
	FidelityLossy
)

// String returns "exact", "lossy" or "fidelity(n)".
func (f Fidelity) String() string {
	switch f {
	case FidelityExact:
		return "exact"
	case FidelityLossy:
		return "lossy"
	default:
		return fmt.Sprintf("fidelity(%d)", uint8(f))
	}
}
