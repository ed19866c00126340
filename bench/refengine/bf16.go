package refengine

import "math"

// bf16 rounds to the nearest bfloat16, ties to even. It is exact for what
// fromBF16 gives, whatever the bits; other not-a-numbers stay not a number.
func bf16(v float32) uint16 {
	b := math.Float32bits(v)
	if b&0xffff == 0 {
		return uint16(b >> 16)
	}
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + (b>>16)&1) >> 16)
}

// fromBF16 is exact.
func fromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// roundBF16 is v as a float32 that bfloat16 holds exactly.
func roundBF16(v float32) float32 { return fromBF16(bf16(v)) }
