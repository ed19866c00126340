// Package wan models wide-area links: a bottleneck rate behind a drop-tail
// queue, a propagation delay, jitter that never reorders, independent and
// bursty loss, cuts. The same model drives two things: a [Network] of
// in-memory [net.PacketConn]s for tests, in real time or inside a
// testing/synctest bubble, and a [Relay] of real UDP sockets that joins
// processes.
//
// # The model
//
// Everything is per direction. A packet of b bytes (payload plus 28 bytes of
// IPv4 and UDP header) offered at time t
//
//  1. is dropped if the link is cut, or if b exceeds the MTU;
//  2. is dropped if the bytes queued (all accepted packets not yet wholly
//     serialised, the one in service included) plus b exceed the queue;
//  3. leaves the bottleneck at d = max(t, time the link is free) + 8b/Rate;
//  4. is then lost with the model's loss probability: it used link time;
//  5. arrives at d + RTT/2 + jitter, and never before an earlier packet.
//
// Departures are computed from the start of a busy period, so rounding to
// nanoseconds does not accumulate, and they do not depend on when a goroutine
// happens to run: in real time a late timer delivers a batch, and the rate
// over many packets stays exact.
//
// # Usage
//
//	m, err := wan.Parse("rtt=70ms,rate=100Mbps,loss=0")
//	n := wan.NewNetwork(m)
//	defer n.Close()
//	a, err := n.Listen(netip.MustParseAddrPort("10.0.0.1:4433"))
//	b, err := n.Listen(netip.MustParseAddrPort("10.0.0.2:4433"))
//
// Between processes, two relays that carry both dialling directions over one
// pair of links:
//
//	east := wan.OpenLink(m, "east")
//	west := wan.OpenLink(m, "west")
//	toB, err := wan.OpenRelay(wan.RelayConfig{Listen: "127.0.0.1:0", Target: addrB, Up: east, Down: west})
//	toA, err := wan.OpenRelay(wan.RelayConfig{Listen: "127.0.0.1:0", Target: addrA, Up: west, Down: east})
//
// # Concurrency
//
// All types are safe for concurrent use, except [Model], which is a value. A
// Network used inside a synctest bubble must be created and closed inside it.
// Each directed link owns one goroutine; Close of the Network, Link or Relay
// waits for it.
//
// # Limitations
//
// No reordering, duplication, corruption (a [Network.Tap] can corrupt), ECN or
// asymmetric delay inside one Model (set each direction's model instead). A
// given seed fixes which ordinals of the packets of a link are lost; which
// packet has which ordinal is up to the senders' scheduling. Senders are never
// blocked: like a router, the queue drops.
package wan
