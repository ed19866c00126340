package wire

import (
	"encoding/binary"
	"fmt"
)

const (
	// ChunkVersion is the version byte of a chunk header.
	ChunkVersion = 1
	// ChunkFixedBytes is the size of a chunk header without its checksums.
	ChunkFixedBytes = 32
	// MaxChunkPages bounds the pages of a chunk.
	MaxChunkPages = 4096
	// MaxChunkBytes bounds the raw bytes of a chunk, and so of a page: 4 MiB.
	MaxChunkBytes = 4 << 20
	// FlagChunkOwn is set when the transfer's id was issued by the chunk's
	// sender, which is so in a write.
	FlagChunkOwn = 1
)

// Codec says how a chunk's payload is encoded.
type Codec uint8

const (
	// CodecRaw leaves the pages as they are.
	CodecRaw Codec = 0
	// CodecPages puts a PageHeader before each page, which says how that page is
	// coded and how long it is.
	CodecPages Codec = 1
)

// PageHeaderBytes is the size of a PageHeader.
const PageHeaderBytes = 4

// A PageHeader precedes each page of a chunk with CodecPages: a byte that names the
// page's codec, 0 for none, and its coded length in three.
type PageHeader struct {
	Codec  uint8
	Length uint32 // bytes that follow, 1 to MaxChunkBytes
}

// AppendPageHeader appends h to b.
func AppendPageHeader(b []byte, h PageHeader) []byte {
	return append(b, h.Codec, byte(h.Length>>16), byte(h.Length>>8), byte(h.Length))
}

// DecodePageHeader decodes exactly one header of a page of pageBytes bytes, which
// no codec may make longer and which is whole without one.
func DecodePageHeader(b []byte, pageBytes int) (PageHeader, error) {
	if len(b) != PageHeaderBytes {
		return PageHeader{}, malformed("page header", "bytes", len(b), "4")
	}
	h := PageHeader{Codec: b[0], Length: uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])}
	switch {
	case h.Length == 0 || int64(h.Length) > int64(pageBytes):
		return PageHeader{}, malformed("page header", "length", h.Length, fmt.Sprintf("1 to the page's %d", pageBytes))
	case h.Codec == 0 && int64(h.Length) != int64(pageBytes):
		return PageHeader{}, malformed("page header", "length", h.Length, fmt.Sprintf("the page's %d without a codec", pageBytes))
	}
	return h, nil
}

// A ChunkHeader precedes the payload of a chunk. The checksums that follow its
// fixed part are decoded by DecodeSums into a caller's slice, so that no chunk
// costs an allocation.
type ChunkHeader struct {
	Codec      Codec
	Flags      uint16
	Pages      uint32 // 1 to MaxChunkPages
	Transfer   uint64
	Pair       uint32 // descriptor index, below MaxDescs
	FirstPage  uint32 // in the descriptor
	RawLength  uint32 // bytes, a multiple of Pages, at most MaxChunkBytes
	WireLength uint32 // bytes that follow; RawLength with CodecRaw, at most that and a PageHeader a page else
}

// Bytes returns the size of the encoded header with its checksums.
func (h *ChunkHeader) Bytes() int { return ChunkBytes(int(h.Pages)) }

// ChunkBytes returns the size of the header of a chunk of pages pages.
func ChunkBytes(pages int) int { return ChunkFixedBytes + 4*pages }

// Validate reports the first field that is out of range.
func (h *ChunkHeader) Validate() error {
	const frame = "chunk header"
	switch {
	case h.Codec > CodecPages:
		return malformed(frame, "codec", h.Codec, "0 (raw) or 1 (each page says)")
	case h.Flags&^FlagChunkOwn != 0:
		return malformed(frame, "flags", h.Flags, "0 or 1")
	case h.Pages == 0 || h.Pages > MaxChunkPages:
		return malformed(frame, "pages", h.Pages, "1 to 4096")
	case h.Pair >= MaxDescs:
		return malformed(frame, "descriptor", h.Pair, "below 262144")
	case h.FirstPage >= MaxPages || h.FirstPage+h.Pages > MaxPages:
		return malformed(frame, "first page", h.FirstPage, "at most 16777216 pages in all")
	case h.RawLength == 0 || h.RawLength > MaxChunkBytes || h.RawLength%h.Pages != 0:
		return malformed(frame, "raw length", h.RawLength, "a multiple of pages, 1 to 4194304")
	case h.Codec == CodecRaw && h.WireLength != h.RawLength:
		return malformed(frame, "wire length", h.WireLength, "the raw length")
	case h.Codec == CodecPages && (h.WireLength < h.Pages*(PageHeaderBytes+1) || h.WireLength > h.RawLength+h.Pages*PageHeaderBytes):
		return malformed(frame, "wire length", h.WireLength, "5 bytes a page to the raw length and 4 bytes a page")
	}
	return nil
}

// PutChunkHeader validates h and encodes it with one checksum a page into
// dst[:h.Bytes()]. It allocates nothing.
func PutChunkHeader(dst []byte, h *ChunkHeader, sums []uint32) error {
	if err := h.Validate(); err != nil {
		return err
	}
	if len(sums) != int(h.Pages) {
		return malformed("chunk header", "checksums", len(sums), fmt.Sprintf("%d, one a page", h.Pages))
	}
	if len(dst) < h.Bytes() {
		return malformed("chunk header", "room", len(dst), fmt.Sprintf("%d bytes", h.Bytes()))
	}
	dst[0] = ChunkVersion
	dst[1] = byte(h.Codec)
	binary.BigEndian.PutUint16(dst[2:], h.Flags)
	binary.BigEndian.PutUint32(dst[4:], h.Pages)
	binary.BigEndian.PutUint64(dst[8:], h.Transfer)
	binary.BigEndian.PutUint32(dst[16:], h.Pair)
	binary.BigEndian.PutUint32(dst[20:], h.FirstPage)
	binary.BigEndian.PutUint32(dst[24:], h.RawLength)
	binary.BigEndian.PutUint32(dst[28:], h.WireLength)
	for i, s := range sums {
		binary.BigEndian.PutUint32(dst[ChunkFixedBytes+4*i:], s)
	}
	return nil
}

// DecodeChunkHeader decodes the fixed part from exactly ChunkFixedBytes bytes
// into h. It allocates nothing when b is well formed.
func DecodeChunkHeader(h *ChunkHeader, b []byte) error {
	if len(b) != ChunkFixedBytes {
		return malformed("chunk header", "bytes", len(b), "32")
	}
	if b[0] != ChunkVersion {
		return malformed("chunk header", "version", b[0], "1")
	}
	h.Codec = Codec(b[1])
	h.Flags = binary.BigEndian.Uint16(b[2:])
	h.Pages = binary.BigEndian.Uint32(b[4:])
	h.Transfer = binary.BigEndian.Uint64(b[8:])
	h.Pair = binary.BigEndian.Uint32(b[16:])
	h.FirstPage = binary.BigEndian.Uint32(b[20:])
	h.RawLength = binary.BigEndian.Uint32(b[24:])
	h.WireLength = binary.BigEndian.Uint32(b[28:])
	return h.Validate()
}

// DecodeSums decodes one checksum for each element of sums from exactly
// 4*len(sums) bytes.
func DecodeSums(sums []uint32, b []byte) error {
	if len(b) != 4*len(sums) {
		return malformed("chunk header", "checksum bytes", len(b), fmt.Sprint(4*len(sums)))
	}
	for i := range sums {
		sums[i] = binary.BigEndian.Uint32(b[4*i:])
	}
	return nil
}
