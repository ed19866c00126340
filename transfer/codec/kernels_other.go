//go:build !amd64 || purego || invariants

package codec

// What kernels_amd64.go has is not there on other processors, with the tag purego, and under invariants, whose tests so run the Go code.

const (
	hasAVX2 = false
	hasBMI  = false
)

func splitBF16AVX2(_, _, _ *byte, _ int) {}

func mergeBF16AVX2(_, _, _ *byte, _ int) {}

func splitFP16AVX2(_, _, _ *byte, _ int) {}

func mergeFP16AVX2(_, _, _ *byte, _ int) {}

func unpackBMI2(*[4]stream, *[1 << tableLog]uint32, *byte, *byte, int) {}

func packBMI2(*packer, *codeTable, *byte, *byte, int) int { return 0 }
