// Package compare measures kvferry beside other ways to move the same bytes between two processes: stock quic-go, TCP with
// TLS, HTTP/2 and gRPC.
//
// # Usage
//
//	res, err := compare.Run(ctx, compare.Config{Command: []string{self, "bench", "compare-end"}})
//	f, err := res.File(os.Args)
//
// Command starts a program that calls [ServeEnd] on its standard input and output.
//
// # What is alike
//
// Each way has two processes of its own, a source that holds the bytes and a destination that asks for all of them. The bytes
// are the same, seeded, in pages; so are the certificates (mutual TLS 1.3) and the verification: the source computes a CRC32C
// a page while it sends, the destination verifies a page in a buffer before it copies it to its place. After each transfer, off the
// clock, the destination's whole memory is compared with the source's by checksum. What only kvferry does (offers, resuming,
// cancelling) is done by it alone.
//
// Transfers are interleaved: in each round every way has its turn, and the first of a round is another one each time. A ratio is
// taken within each round, so that what disturbs a round disturbs both sides of it.
//
// # What is measured
//
// Gbps is bits of verified pages over the time from the destination's request to its last verified page, over connections that
// are open and warm. Processor seconds are those that the system counts for a process, user and system time, over the span of a
// transfer; on loopback the receive path of the kernel runs, and counts, where the sender's call is. GB is 1e9 bytes of pages.
//
// The floor is quic-go over in-memory connections, both ends in one process: what QUIC costs without a system call.
//
// # Over emulated links
//
// RunWAN compares kvferry with kernel TCP (BBR, CUBIC; plain, since TLS would only add to it) and rsync over ssh between two network
// namespaces that bench/wanns joins; the ends run in them. The bytes are BF16 values of KV cache, from bench/kvgen. kvferry moves them raw, kvferry-coded as package transfer's
// codecs make them where the path asks for it; the shares of both are of the bytes before coding. Verification is as above; rsync has its own. The machine is the
// link too: it carries every packet through a process, and what it is late for it drops; both are reported.
//
// # Concurrency
//
// Run is for one call at a time a process: two would share the processors.
//
// # Limitations
//
// Loopback has no loss, no delay and no rate of its own: the processors set every number, and a way that is twice as fast here is
// as fast as another on a link that both can fill. Peers that move bytes on one thread show what one thread does.
//
// A process that is killed while RunWAN runs leaves its namespaces (ip netns del), the ssh server in one of them, and a folder
// kvferry-rsync-* in /dev/shm.
package compare
