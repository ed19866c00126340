// Package wire is the byte format that two kvferry agents speak over QUIC: pure
// encoders, decoders and validators, without any I/O.
//
// # Usage
//
// Every frame has an Append function (or method), which validates and appends
// to a caller's buffer, and a Decode function, which takes exactly the frame's
// bytes. Frames of variable size have a fixed part whose length is a constant
// (PreambleBytes, FrameHeaderBytes, ChunkFixedBytes); a reader takes that first
// and learns from it how many bytes follow.
//
// All integers are big-endian. Decoders check every length against a constant
// bound before they allocate, refuse trailing bytes, unknown flags and non-zero
// reserved bits, and accept exactly one encoding of every value: what a decoder
// accepts, the encoder turns back into the same bytes.
//
// # Preamble, 8 bytes
//
// The first bytes of the bidirectional stream of every connection, in both
// directions. Its shape never changes, whatever the version.
//
//	offset size field
//	0      4    magic "kvfy"
//	4      2    protocol version
//	6      2    bytes of the hello (or hello answer) that follow
//
// # Hello, follows the preamble from the dialler
//
//	0      16   link nonce, one for all the stripes of a link
//	16     4    stripe number, unique and increasing in a link
//	20     1+n  name: length, UTF-8 bytes
//	..     1+n  incarnation: length, UTF-8 bytes
//	..     1    repair: highest version, 0 none
//	..     2    repair: packets remembered, 128 to 4096; 0 with version 0
//	..     8    codecs that it decodes: bit n for codec n of package codec, n at most 62; bit 63 that it takes costs
//
// # Hello answer, follows the preamble from the listener
//
//	0      2    code: 0 accepted, otherwise a code of the transfer package
//	2      1+n  name
//	..     1+n  incarnation
//	..     2+n  message: why it was refused, and what to do
//	..     3    repair: as in the hello
//	..     8    codecs: as in the hello
//
// # Control frame header, 16 bytes, then the payload
//
//	0      1    type (Type): 1 metadata, 2 call, 3 result, 4 call error, 5 call cancel, 6 begin,
//	            7 ready, 8 again, 9 failed, 10 cancel, 11 done, 12 ack, 13 progress, 14 ping,
//	            15 path, 16 retire, 17 queued, 18 costs
//	1      1    flags: bit 0 FlagOwn, the id was issued by the frame's sender
//	2      2    reserved, 0
//	4      4    payload bytes, at most MaxPayload
//	8      8    id: of the call or of the transfer; the stripe's number in a retire
//
// # Begin payload, one or more frames a transfer
//
//	0      1    operation: 1 read, 2 write
//	1      1    flags: bit 0 more frames follow
//	2      2    token bytes (first frame only), at most MaxToken
//	4      4    notify bytes (first frame only), at most MaxNotify
//	8      4    index of the first descriptor in this frame
//	12     4    number of descriptors in this frame
//	16     1    class (first frame only): 0 interactive, 1 background, 2 replication
//	17     3    reserved, 0
//	20     4    deadline (first frame only), milliseconds from now, 0: none
//	24     n    token
//	..     n    notify
//	..     24n  descriptors: memory 4, pages 4, offset 8, generation 8
//
// # Again payload: pages asked for once more
//
//	0      1    reason: 1 the stripe was lost, 2 the page was bad, 3 nothing arrives
//	1      3    reserved, 0
//	4      4    stripe number that reasons 1 and 2 speak of, 0: none
//	8      4    page number of bit 0, counted over all descriptors in order
//	12     4    number of bits n, at most MaxBits
//	16     ..   bitmap, (n+7)/8 bytes, bit i is bit i%8 of byte i/8, spare bits 0
//
// # Failure payload: an error that crosses the wire
//
//	0      2    code
//	2      2    reserved, 0
//	4      4    descriptor index, NoIndex when the error is of no descriptor
//	8      4    page in the descriptor, NoIndex likewise
//	12     2+n  message
//	..     4+n  details, opaque
//
// # Progress payload, 8 bytes
//
//	0      8    pages verified so far
//
// # Path payload, 48 bytes
//
//	0      1    flags: bit 0 starved, a connection could have taken a chunk and there was none
//	1      3    reserved, 0
//	4      4    bytes a sent packet
//	8      8    congestion windows of all connections, bytes
//	16     8    packets sent
//	24     8    packets declared lost
//	32     8    least round-trip time, ns, at most an hour
//	40     8    smoothed round-trip time, ns, at most an hour
//
// # Queued payload, 16 bytes: others go first
//
//	0      4    transfers that go before this one
//	4      4    reserved, 0
//	8      8    bytes of pages that go before it, at most 2^62
//
// # Costs payload: what coding takes the sender of it, to a side that takes costs
//
//	0      2    processors that coding, sending and receiving share, 1 or more
//	2      1    number of codecs, at most 63
//	3      1    reserved, 0
//	4      12n  codecs, ascending: codec 1, reserved 3, then picoseconds of a processor a byte of pages before coding: to
//	            encode 4, to decode 4; 0 not known
//
// # Metadata payload
//
//	0      2    protocol version
//	2      1+n  name
//	..     1+n  incarnation
//	..     4    number of memories
//	..     20n  memories: id 4, page bytes 4, flags 4 (bit 0 readable, 1 writable), length 8
//
// # Chunk header, 32 bytes and 4 a page, then the chunk's payload
//
//	0      1    chunk format version, 1
//	1      1    codec: 0 raw, 1 each page says
//	2      2    flags: bit 0 FlagChunkOwn, the transfer's id was issued by the chunk's sender
//	4      4    pages n, 1 to MaxChunkPages
//	8      8    transfer id
//	16     4    descriptor index
//	20     4    first page in the descriptor
//	24     4    raw bytes of the pages, at most MaxChunkBytes
//	28     4    bytes that follow the checksums; with codec raw equal to the raw bytes
//	32     4n   checksum of each page, before it is coded
//
// # Page header, 4 bytes before each page of a chunk with codec 1
//
//	0      1    codec of the page, 0 none
//	1      3    bytes that follow: at most those of the page, and as many with codec 0
//
// # Concurrency
//
// Every function is safe for concurrent use on distinct buffers.
//
// # Limitations
//
// One protocol version.
package wire
