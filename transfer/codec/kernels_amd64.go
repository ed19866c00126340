//go:build !purego && !invariants

package codec

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var (
	hasAVX2 = cpu.X86.HasAVX2
	hasBMI  = cpu.X86.HasBMI1 && cpu.X86.HasBMI2
)

// splitBF16AVX2 splits n times four groups, n at least 1.
//
//go:noescape
func splitBF16AVX2(coded, other, src *byte, n int)

// mergeBF16AVX2 undoes splitBF16AVX2.
//
//go:noescape
func mergeBF16AVX2(dst, coded, other *byte, n int)

// splitFP16AVX2 splits n times four groups, n at least 1.
//
//go:noescape
func splitFP16AVX2(coded, other, src *byte, n int)

// mergeFP16AVX2 undoes splitFP16AVX2.
//
//go:noescape
func mergeFP16AVX2(dst, coded, other *byte, n int)

// unpackBMI2 does n steps of each of the streams, which must be safe, and n at least 1.
//
//go:noescape
func unpackBMI2(s *[4]stream, t *[1 << tableLog]uint32, dst, src *byte, n int)

// packBMI2 does what a packer's words does, with n times eight bytes, n at least 1. It writes up to eight bytes more than it returns.
//
//go:noescape
func packBMI2(p *packer, t *codeTable, buf, seg *byte, n int) int

// The assembly knows where the fields are.
var _ = [1]struct{}{}[unsafe.Sizeof(stream{})-40|unsafe.Offsetof(stream{}.in)|unsafe.Offsetof(stream{}.used)-8|unsafe.Offsetof(stream{}.at)-24]
