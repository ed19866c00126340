//go:build !amd64 || purego

package codec

const (
	hasAVX2 = false
	hasBMI  = false
)

func splitBF16AVX2(_, _, _ *byte, _ int) {}

func mergeBF16AVX2(_, _, _ *byte, _ int) {}

func unpackBMI2(*[4]stream, *[1 << tableLog]uint32, *byte, *byte, int) {}
