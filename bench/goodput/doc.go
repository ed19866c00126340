// Package goodput measures what a link gives to page bytes: goodput, its share of the link, ramp, latency of chunks, loss
// and the processor time it costs at each end.
//
// # Usage
//
// Run joins two agents in this process over the in-memory link of package wan: see the example of the package. RunDaemons
// measures between two daemons that run: see its example. Result.File makes a results.File of either, for saving, comparing
// and printing.
//
// # What is measured
//
// Goodput is bytes of verified pages over the time from the request at the destination to the last verified page, the
// round trip of the request included. One warm-up transfer, which finds cold connections, is kept apart as Cold;
// configurations that are compared take turns, repeat by repeat, each over connections of its own.
//
// Latency of a chunk runs from the moment the source takes the chunk out of its queue, to read its pages, to the moment the
// destination has verified the last of them: queueing at the bottleneck, propagation and retransmission are in it, the
// wait in the source's own queue is not. Both ends share a clock in Run only.
//
// Loss is the path's: packets that QUIC sent and that were lost, those that parity rebuilt at the destination
// (transfer/repair) included, over those sent. What QUIC had to send again is told apart, and so is what parity took of the link.
//
// Between daemons, which share no clock and tell of no chunk, latency of chunks is not known; the rest comes out of their own
// counters and estimates (ListLinks), so that other traffic of the link is in it.
//
// Processor time of the two ends of Run is that of one process, split by labels that all goroutines of an agent carry: a
// CPU profile says how the time falls to the labels, getrusage how much it is. What carries no label is Shared: the link's
// own goroutines and the garbage collector. An end's share has handing packets to the link in it, where a real
// socket has system calls.
//
// # Concurrency
//
// A call of Run uses the process's CPU profiler; while another user of it runs (a second Run, a test under -cpuprofile), the
// processor time is not split and the result says so. RunDaemons has no such limit. A Result is a value that nobody
// else refers to.
//
// # Limitations
//
// Run works in real time: on a slow or busy machine the processor, not the link, sets the number, which the result then
// says (Outcome.LimitedBy). Packets are of 1,280 bytes on the in-memory link. Between daemons,
// what pages took on their way is that of all pages that came over the link meanwhile; of a daemon of an older release, which does not
// tell, GoodputBps is EffectiveBps.
package goodput
