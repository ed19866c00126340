// Package codec makes pages of KV cache shorter without losing a bit: pure functions over byte slices.
//
// BF16 values of a KV cache have about 2.7 bits of entropy in their 8 bits of exponent and none to spare in sign and
// mantissa: 10.6 to 10.9 bits of 16. The codecs split a page into a plane of exponents, which they code, and one of the rest,
// which goes as it is. General compressors find nothing in values that lie side by side (zstd, LZ: ratio 1.000).
//
// # Format
//
// What [Encode] appends, all numbers little-endian:
//
//	offset  size  field
//	0       1     version, 1
//	1       4     length of the page, bytes
//	5       …     body
//
//	body of split4:            body of huff, huff16:          body of huff8:      body of zstd:
//	 16  codebook               blocks of the coded plane      blocks of bytes     a zstd frame
//	  4  number of escapes      the other plane, n/2
//	  4  each: 3 position,      tail: n mod 16 bytes
//	     1 exponent
//	n/4  codes, two a byte
//	n/2  the other plane
//	     tail: n mod 16 bytes
//
//	block, of an equal part of the plane, as few as make an even number of at most 65,535 bytes:
//	 1  kind: 0 as it is, 1 one byte repeated, 2 Huffman (huff0, four streams, its table first; codes of at most 11
//	    bits, of which encoders make at most 8 for exponents)
//	 3  length of what follows
//
// Planes hold the elements of each 16 bytes in the order 0 4 1 5 2 6 3 7.
//
// # Usage
//
// Keep a [Scratch] for each goroutine. [For] names the codecs that suit a kind of element, [MaxEncoded] the room that
// Encode may need.
//
// # Concurrency
//
// All functions may be called concurrently with different scratches.
//
// # Limitations
//
// On amd64 assembly does what AVX2, BMI1 and BMI2 are for, where there are any; not in builds with the tag purego. Codes over 8 bits are
// decoded at half the speed.
//
// The order-0 entropy of each page is the bound: context between tokens or channels is worth 2 to 4 % more and is not
// used. Checksums are the caller's: a damaged page may decode to other bytes.
package codec
