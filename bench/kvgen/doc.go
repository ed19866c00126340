// Package kvgen makes values as those of a KV cache: pages whose entropy is that of real models' caches, for benches of codecs.
//
// Noise and zeros say nothing about a codec. Here each channel of a head has its own scale and mean, a few channels of K are far off
// zero, neighbouring tokens are alike, tokens have scales of their own, and K is rotated by its position. The exponents of BF16 then
// have 2.7 to 2.9 bits of entropy, an element 10.7 (V) and 10.8 (K) of 16. The same values as FP16 have 13.6 to 13.8 bits of 16, as FP8 (E4M3, with a
// scale a layer) 6.6 to 6.8 of 8.
//
// # Usage
//
// [Generate] fills the K or the V part of a page, heads × tokens × channels. A page of a store holds K's part, then V's.
//
// # Concurrency
//
// All functions may be called concurrently.
//
// # Limitations
//
// Heads are independent of one another, and so are calls: tokens of two calls are not alike.
package kvgen
