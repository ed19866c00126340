package kvfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Bounds of a file.
const (
	// Version is the one that this package writes and reads.
	Version = 1
	// MaxHeaderBytes bounds the encoded header.
	MaxHeaderBytes = 1 << 20
	// MaxPages bounds the pages of a file.
	MaxPages = 1 << 17
	// MaxPageBytes bounds a page, as the codecs do.
	MaxPageBytes = 4 << 20
)

// The most of a layout's numbers, as daemons allow them.
const (
	maxLayers  = 1024
	maxKVHeads = 1024
	maxHeadDim = 8192
	maxTokens  = 1024
	maxText    = 256
)

// A DType is how a page's values are stored, little-endian.
type DType string

// The element types.
const (
	BF16    DType = "bf16"
	FP16    DType = "fp16"
	FP8E4M3 DType = "fp8_e4m3"
	FP8E5M2 DType = "fp8_e5m2"
)

// Bytes returns the size of a value, 0 for what is no element type.
func (d DType) Bytes() int {
	switch d {
	case BF16, FP16:
		return 2
	case FP8E4M3, FP8E5M2:
		return 1
	}
	return 0
}

// A Kind is how a page is arranged, row-major.
type Kind string

// The kinds.
const (
	GQA Kind = "gqa" // [K,V][kv_heads][block_tokens][head_dim]
	MLA Kind = "mla" // [block_tokens][head_dim], head_dim being latent + rope
)

// Header says what a file's pages are.
type Header struct {
	Model    string `json:"model"`    // model identity, 1 to 256 bytes
	Revision string `json:"revision"` // of the model; up to 256 bytes
	Weights  string `json:"weights"`  // their version; up to 256 bytes
	Source   string `json:"source"`   // what recorded them, from where; up to 256 bytes
	DType    DType  `json:"dtype"`
	Kind     Kind   `json:"kind"`
	Layers   int    `json:"layers"`       // of the model that have KV, 1 to 1024
	KVHeads  int    `json:"kv_heads"`     // 1 to 1024; 1 for MLA
	HeadDim  int    `json:"head_dim"`     // 1 to 8192
	Tokens   int    `json:"block_tokens"` // of a page, 1 to 1024
	Pages    int    `json:"pages"`        // 1 to MaxPages; 0 means as many as PageLayers has
	// PageBytes is the length of each page, to MaxPageBytes: what shape and element make. 0 means that.
	PageBytes int `json:"page_bytes"`
	// PageLayers is the layer of each page, 0 to Layers-1, in the order of the file.
	PageLayers []int `json:"page_layers"`
}

// ErrHeader is wrapped by every fault of a header.
var ErrHeader = errors.New("header of a file of KV pages")

// pageBytes is what shape and element make; 0 when they are out of range.
func (h *Header) pageBytes() int {
	n := h.Tokens * h.HeadDim * h.DType.Bytes()
	if h.Kind == GQA {
		n *= 2 * h.KVHeads
	}
	return n
}

// withDefaults fills in what follows from the rest. PageLayers is shared.
func (h Header) withDefaults() Header {
	if h.Pages == 0 {
		h.Pages = len(h.PageLayers)
	}
	if h.PageBytes == 0 && h.checkShape() == nil {
		h.PageBytes = h.pageBytes()
	}
	return h
}

// Validate returns the first fault, which wraps ErrHeader and names field, value and what is allowed.
func (h Header) Validate() error {
	h = h.withDefaults()
	if h.Model == "" {
		return fault("model", h.Model, "1 to 256 bytes of text")
	}
	for _, t := range []struct{ field, value string }{{"model", h.Model}, {"revision", h.Revision}, {"weights", h.Weights}, {"source", h.Source}} {
		if len(t.value) > maxText || !utf8.ValidString(t.value) || strings.ContainsFunc(t.value, isControl) {
			return fault(t.field, t.value, "at most 256 bytes of UTF-8 without control characters")
		}
	}
	if err := h.checkShape(); err != nil {
		return err
	}
	if want := h.pageBytes(); h.PageBytes != want || want > MaxPageBytes {
		return fault("page_bytes", h.PageBytes, fmt.Sprintf("%d, which shape and dtype make, and at most %d", want, MaxPageBytes))
	}
	if h.Pages < 1 || h.Pages > MaxPages || h.Pages != len(h.PageLayers) {
		return fault("pages", h.Pages, fmt.Sprintf("1 to %d, and a layer of each: there are %d", MaxPages, len(h.PageLayers)))
	}
	for i, l := range h.PageLayers {
		if l < 0 || l >= h.Layers {
			return fault(fmt.Sprintf("page_layers[%d]", i), l, fmt.Sprintf("0 to %d", h.Layers-1))
		}
	}
	return nil
}

func (h *Header) checkShape() error {
	if h.DType.Bytes() == 0 {
		return fault("dtype", h.DType, "bf16, fp16, fp8_e4m3 or fp8_e5m2")
	}
	if h.Kind != GQA && h.Kind != MLA {
		return fault("kind", h.Kind, "gqa or mla")
	}
	for _, n := range []struct {
		field       string
		value, most int
	}{{"layers", h.Layers, maxLayers}, {"kv_heads", h.KVHeads, maxKVHeads}, {"head_dim", h.HeadDim, maxHeadDim}, {"block_tokens", h.Tokens, maxTokens}} {
		if n.value < 1 || n.value > n.most {
			return fault(n.field, n.value, fmt.Sprintf("1 to %d", n.most))
		}
	}
	if h.Kind == MLA && h.KVHeads != 1 {
		return fault("kv_heads", h.KVHeads, "1 for mla")
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func fault(field string, value any, allowed string) error {
	return fmt.Errorf("%w: %s is %.100q: want %s", ErrHeader, field, fmt.Sprint(value), allowed)
}

// encode returns the one encoding of a valid header.
func (h Header) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(h); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHeader, err)
	}
	out := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	if len(out) > MaxHeaderBytes {
		return nil, fault("length", len(out), fmt.Sprintf("at most %d bytes encoded", MaxHeaderBytes))
	}
	return out, nil
}

// decodeHeader reads what encode makes and nothing else.
func decodeHeader(b []byte) (h Header, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&h); err != nil {
		return h, fmt.Errorf("%w: %w", ErrHeader, err)
	}
	if h.Pages == 0 || h.PageBytes == 0 {
		return h, fault("pages, page_bytes", []int{h.Pages, h.PageBytes}, "1 or more in a file")
	}
	if err := h.Validate(); err != nil {
		return h, err
	}
	again, err := h.encode()
	if err == nil && !bytes.Equal(again, b) {
		err = fmt.Errorf("%w: it is not encoded as headers are: fields in order, each once, no white space", ErrHeader)
	}
	return h, err
}
