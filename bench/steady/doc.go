// Package steady measures how full a link stays: the share of a model link's rate that verified pages get once a transfer is under
// way, and what a cold one gets.
//
// # Usage
//
//	m, err := steady.Run(ctx, steady.Cell{WAN: model, Warm: 3 * time.Second, Measure: 4 * time.Second})
//
// Inside a bubble of testing/synctest time is virtual, and no machine is too slow for a link. "make bench-wan" does so for a
// table of links; see the package's tests.
//
// # What is measured
//
// Two agents of package transfer with their defaults, one transfer that is longer than the cell. Pages are made when they are sent
// and verified when they land, byte by byte, so that memory does not grow with what moves. Share is page bits that landed within
// the span after the warm-up, over the link's rate times the span. Its ceiling is what headers and parity leave: see [Measure].
//
// # Processor time
//
// In virtual time processor time costs nothing. Cell.PacketCost charges it: each packet that a socket sends or reads blocks the
// goroutine that does it for so long, which is what bounds a QUIC connection on one thread. Cell.Costs charges what codecs code and
// decode, in pages of values as caches have them, and Cell.Cores has all that is charged at an end take turns on so many processors.
//
// # Concurrency
//
// Run may be called concurrently: cells share nothing.
//
// # Limitations
//
// Packets over the in-memory link stay at 1,280 bytes: it has no path MTU to discover.
package steady
