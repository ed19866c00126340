//go:build !purego && !invariants

#include "textflag.h"

// Order of a group's elements in a plane, 0 4 1 5 2 6 3 7.

// low bytes of a group's words, in that order
DATA pick<>+0(SB)/8, $0x0e060c040a020800
DATA pick<>+8(SB)/8, $0xffffffffffffffff
DATA pick<>+16(SB)/8, $0x0e060c040a020800
DATA pick<>+24(SB)/8, $0xffffffffffffffff
GLOBL pick<>(SB), RODATA|NOPTR, $32

// bytes of the planes of two groups, as words with a zero above
DATA place<>+0(SB)/8, $0xff06ff04ff02ff00
DATA place<>+8(SB)/8, $0xff07ff05ff03ff01
DATA place<>+16(SB)/8, $0xff0eff0cff0aff08
DATA place<>+24(SB)/8, $0xff0fff0dff0bff09
GLOBL place<>(SB), RODATA|NOPTR, $32

// the same, twice in each word
DATA twice<>+0(SB)/8, $0x0606040402020000
DATA twice<>+8(SB)/8, $0x0707050503030101
DATA twice<>+16(SB)/8, $0x0e0e0c0c0a0a0808
DATA twice<>+24(SB)/8, $0x0f0f0d0d0b0b0909
GLOBL twice<>(SB), RODATA|NOPTR, $32

DATA signed<>+0(SB)/8, $0x807f807f807f807f
GLOBL signed<>(SB), RODATA|NOPTR, $8
DATA mantissa<>+0(SB)/8, $0x007f007f007f007f
GLOBL mantissa<>(SB), RODATA|NOPTR, $8

// func splitBF16AVX2(coded, other, src *byte, n int)
TEXT ·splitBF16AVX2(SB), NOSPLIT, $0-32
	MOVQ coded+0(FP), DI
	MOVQ other+8(FP), SI
	MOVQ src+16(FP), BX
	MOVQ n+24(FP), CX
	VMOVDQU pick<>(SB), Y0
	VPBROADCASTQ mantissa<>(SB), Y1

split:
	VMOVDQU (BX), Y2
	VMOVDQU 32(BX), Y3
	VPSRLW $7, Y2, Y4
	VPSRLW $7, Y3, Y5
	VPSRLW $8, Y2, Y6
	VPSRLW $8, Y3, Y7
	VPSHUFB Y0, Y4, Y4
	VPSHUFB Y0, Y5, Y5
	VPUNPCKLQDQ Y5, Y4, Y4
	VPERMQ $0xd8, Y4, Y4
	VMOVDQU Y4, (DI)
	VPXOR Y6, Y2, Y2
	VPXOR Y7, Y3, Y3
	VPAND Y1, Y2, Y2
	VPAND Y1, Y3, Y3
	VPXOR Y6, Y2, Y2
	VPXOR Y7, Y3, Y3
	VPSHUFB Y0, Y2, Y2
	VPSHUFB Y0, Y3, Y3
	VPUNPCKLQDQ Y3, Y2, Y2
	VPERMQ $0xd8, Y2, Y2
	VMOVDQU Y2, (SI)
	ADDQ $64, BX
	ADDQ $32, DI
	ADDQ $32, SI
	DECQ CX
	JNZ split
	VZEROUPPER
	RET

// func mergeBF16AVX2(dst, coded, other *byte, n int)
TEXT ·mergeBF16AVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ coded+8(FP), SI
	MOVQ other+16(FP), BX
	MOVQ n+24(FP), CX
	VMOVDQU place<>(SB), Y0
	VMOVDQU twice<>(SB), Y1
	VPBROADCASTQ signed<>(SB), Y2

merge:
	VBROADCASTI128 (SI), Y3
	VBROADCASTI128 16(SI), Y4
	VBROADCASTI128 (BX), Y5
	VBROADCASTI128 16(BX), Y6
	VPSHUFB Y0, Y3, Y3
	VPSHUFB Y0, Y4, Y4
	VPSHUFB Y1, Y5, Y5
	VPSHUFB Y1, Y6, Y6
	VPSLLW $7, Y3, Y3
	VPSLLW $7, Y4, Y4
	VPAND Y2, Y5, Y5
	VPAND Y2, Y6, Y6
	VPOR Y3, Y5, Y5
	VPOR Y4, Y6, Y6
	VMOVDQU Y5, (DI)
	VMOVDQU Y6, 32(DI)
	ADDQ $32, SI
	ADDQ $32, BX
	ADDQ $64, DI
	DECQ CX
	JNZ merge
	VZEROUPPER
	RET

// func splitFP16AVX2(coded, other, src *byte, n int)
TEXT ·splitFP16AVX2(SB), NOSPLIT, $0-32
	MOVQ coded+0(FP), DI
	MOVQ other+8(FP), SI
	MOVQ src+16(FP), BX
	MOVQ n+24(FP), CX
	VMOVDQU pick<>(SB), Y0

split16:
	VMOVDQU (BX), Y2
	VMOVDQU 32(BX), Y3
	VPSRLW $8, Y2, Y4
	VPSRLW $8, Y3, Y5
	VPSHUFB Y0, Y4, Y4
	VPSHUFB Y0, Y5, Y5
	VPUNPCKLQDQ Y5, Y4, Y4
	VPERMQ $0xd8, Y4, Y4
	VMOVDQU Y4, (DI)
	VPSHUFB Y0, Y2, Y2
	VPSHUFB Y0, Y3, Y3
	VPUNPCKLQDQ Y3, Y2, Y2
	VPERMQ $0xd8, Y2, Y2
	VMOVDQU Y2, (SI)
	ADDQ $64, BX
	ADDQ $32, DI
	ADDQ $32, SI
	DECQ CX
	JNZ split16
	VZEROUPPER
	RET

// func mergeFP16AVX2(dst, coded, other *byte, n int)
TEXT ·mergeFP16AVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ coded+8(FP), SI
	MOVQ other+16(FP), BX
	MOVQ n+24(FP), CX
	VMOVDQU place<>(SB), Y0

merge16:
	VBROADCASTI128 (SI), Y3
	VBROADCASTI128 16(SI), Y4
	VBROADCASTI128 (BX), Y5
	VBROADCASTI128 16(BX), Y6
	VPSHUFB Y0, Y3, Y3
	VPSHUFB Y0, Y4, Y4
	VPSHUFB Y0, Y5, Y5
	VPSHUFB Y0, Y6, Y6
	VPSLLW $8, Y3, Y3
	VPSLLW $8, Y4, Y4
	VPOR Y3, Y5, Y5
	VPOR Y4, Y6, Y6
	VMOVDQU Y5, (DI)
	VMOVDQU Y6, 32(DI)
	ADDQ $32, SI
	ADDQ $32, BX
	ADDQ $64, DI
	DECQ CX
	JNZ merge16
	VZEROUPPER
	RET

// Registers of unpackBMI2: R8 to R11 are the containers of the streams, R12, R13, SI and DI where they write, DX the table, CX 56.
// A container is (8 bytes of input | 1) << bits used: the lowest one bit counts what is used.

#define LOOK(v, w) \
	SHRXQ CX, v, AX        \
	MOVL  (DX)(AX*4), AX   \
	SHLXQ AX, v, v         \
	RORXL $6, AX, BX       \
	MOVL  BX, (w)          \
	SHRL  $30, AX          \
	ADDQ  AX, w

#define LOOKS \
	LOOK(R8, R12) \
	LOOK(R9, R13) \
	LOOK(R10, SI) \
	LOOK(R11, DI)

#define LOAD(v, in) \
	TZCNTQ v, AX      \
	MOVQ   AX, BX     \
	SHRQ   $3, AX     \
	ANDL   $7, BX     \
	MOVQ   in, R15    \
	SUBQ   AX, R15    \
	MOVQ   R15, in    \
	MOVQ   (R15), v   \
	ORQ    $1, v      \
	SHLXQ  BX, v, v

// Offsets of a stream's fields in, used and at; a stream has 40 bytes.
#define OPEN(i, v, w) \
	MOVQ  (40*i)(AX), R15      \
	ADDQ  BX, R15              \
	MOVQ  R15, in-(32-8*i)(SP) \
	MOVQ  (R15), v             \
	ORQ   $1, v                \
	MOVQ  (40*i+8)(AX), R15    \
	SHLXQ R15, v, v            \
	MOVQ  (40*i+24)(AX), w     \
	ADDQ  CX, w

#define CLOSE(i, v, w) \
	MOVQ   in-(32-8*i)(SP), R15 \
	SUBQ   BX, R15              \
	MOVQ   R15, (40*i)(AX)      \
	TZCNTQ v, R15               \
	MOVQ   R15, (40*i+8)(AX)    \
	SUBQ   CX, w                \
	MOVQ   w, (40*i+24)(AX)

// func unpackBMI2(s *[4]stream, t *[256]uint32, dst, src *byte, n int)
TEXT ·unpackBMI2(SB), NOSPLIT, $32-40
	MOVQ s+0(FP), AX
	MOVQ t+8(FP), DX
	MOVQ dst+16(FP), CX
	MOVQ src+24(FP), BX
	OPEN(0, R8, R12)
	OPEN(1, R9, R13)
	OPEN(2, R10, SI)
	OPEN(3, R11, DI)
	MOVQ $56, CX

unpack:
	LOOKS
	LOOKS
	LOOKS
	LOOKS
	LOOKS
	LOOKS
	LOOKS
	LOAD(R8, in-32(SP))
	LOAD(R9, in-24(SP))
	LOAD(R10, in-16(SP))
	LOAD(R11, in-8(SP))
	DECQ n+32(FP)
	JNZ unpack

	MOVQ s+0(FP), AX
	MOVQ dst+16(FP), CX
	MOVQ src+24(FP), BX
	CLOSE(0, R8, R12)
	CLOSE(1, R9, R13)
	CLOSE(2, R10, SI)
	CLOSE(3, R11, DI)
	RET

// Registers of packBMI2: R8 are the bits, R9 how many, DI where the next go, SI behind the bytes that are next, DX the table.

// CODES makes the bits of four bytes, the highest first, in v, and how many they are in m.
#define CODES(at, v, m) \
	MOVBLZX (at+3)(SI), AX \
	MOVQ    (DX)(AX*8), v  \
	MOVBLZX (at+2)(SI), AX \
	MOVQ    (DX)(AX*8), BX \
	MOVQ    v, m           \
	SHRXQ   BX, v, v       \
	ORQ     BX, v          \
	ADDQ    BX, m          \
	MOVBLZX (at+1)(SI), AX \
	MOVQ    (DX)(AX*8), BX \
	SHRXQ   BX, v, v       \
	ORQ     BX, v          \
	ADDQ    BX, m          \
	MOVBLZX at(SI), AX     \
	MOVQ    (DX)(AX*8), BX \
	SHRXQ   BX, v, v       \
	ORQ     BX, v          \
	ADDQ    BX, m          \
	MOVBLZX m, m

// FLUSH writes whole bytes.
#define FLUSH \
	MOVQ  R9, AX     \
	NEGQ  AX         \
	SHRXQ AX, R8, BX \
	MOVQ  BX, (DI)   \
	MOVQ  R9, AX     \
	SHRQ  $3, AX     \
	ADDQ  AX, DI     \
	ANDL  $7, R9

// func packBMI2(p *packer, t *codeTable, buf, seg *byte, n int) int
TEXT ·packBMI2(SB), NOSPLIT, $0-48
	MOVQ p+0(FP), AX
	MOVQ t+8(FP), DX
	MOVQ buf+16(FP), DI
	MOVQ seg+24(FP), SI
	MOVQ n+32(FP), CX
	MOVQ (AX), R8
	MOVQ 8(AX), R9
	LEAQ (SI)(CX*8), SI

pack:
	CODES(-4, R10, R11)
	CODES(-8, R12, R13)
	SHRXQ R11, R8, R8
	ORQ   R10, R8
	ADDQ  R11, R9
	LEAQ  (R9)(R13*1), AX
	CMPQ  AX, $60
	JLS   fits
	FLUSH

fits:
	SHRXQ R13, R8, R8
	ORQ   R12, R8
	ADDQ  R13, R9
	FLUSH
	SUBQ  $8, SI
	DECQ  CX
	JNZ   pack

	MOVQ p+0(FP), AX
	MOVQ R8, (AX)
	MOVQ R9, 8(AX)
	SUBQ buf+16(FP), DI
	MOVQ DI, ret+40(FP)
	RET
