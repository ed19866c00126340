package codec

import "github.com/klauspost/compress/zstd"

// zstdScratch makes its coders when they are first needed.
type zstdScratch struct {
	enc *zstd.Encoder
	dec *zstd.Decoder
}

func (z *zstdScratch) encode(dst, src []byte) ([]byte, error) {
	if z.enc == nil {
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20))
		if err != nil {
			return dst, err
		}
		z.enc = enc
	}
	return z.enc.EncodeAll(src, dst), nil
}

// sizedBytes is how long a page is at least whose frame says its size.
const sizedBytes = 256

// decode takes a frame that says its size, as encode's do: without that a frame of a few bytes may decode to anything.
func (z *zstdScratch) decode(dst, src []byte) error {
	var frame zstd.Header
	if err := frame.Decode(src); err != nil || frame.Skippable || frame.DictionaryID != 0 ||
		frame.HasFCS && frame.FrameContentSize != uint64(len(dst)) || !frame.HasFCS && len(dst) >= sizedBytes {
		return corrupt("zstd frame with size %v, %d bytes, want %d, dictionary %d: %v", frame.HasFCS, frame.FrameContentSize, len(dst), frame.DictionaryID, err)
	}
	if z.dec == nil {
		dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(MaxPageBytes))
		if err != nil {
			return err
		}
		z.dec = dec
	}
	out, err := z.dec.DecodeAll(src, dst[:0:len(dst)])
	if err != nil || len(out) != len(dst) {
		return corrupt("%d of %d bytes: %v", len(out), len(dst), err)
	}
	if len(out) > 0 && &out[0] != &dst[0] {
		copy(dst, out)
	}
	return nil
}
