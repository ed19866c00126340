// Package repair rebuilds lost packets below QUIC, so that random loss does not
// make its congestion control back off.
//
// # Usage
//
// Wrap the socket and give Conn.PacketConn to quic.Transport.Conn; what quic-go
// finds in a *udp.Conn (control messages, batches, segmentation offload) it finds
// in it too. When a connection is up and its two ends have agreed on it, each
// Attaches a Session: two tokens that name its directions, and what QUIC knows of
// the path. Nothing is kept for, or sent to, anyone without a session.
//
// # How it works
//
// QUIC's packets travel as they are. Parity travels in packets of its own. Packet
// i goes to group i mod depth; when a group has its packets, or half a round trip
// has passed, its parity follows. Each packet is two symbols of a Reed-Solomon
// code, so that a parity packet, which carries one symbol and the names of the
// group's packets, is not larger than they are. A name is the last three bytes of a packet,
// which are QUIC's authentication tag and so uniform. The receiver keeps the last
// packets while parity comes; a name that it does not find is a lost packet. What
// it rebuilds must have the length and the name that it should, and all packets of
// the group together their checksum; it then passes QUIC's own authentication or is
// dropped there.
//
// The receiver reports what groups lost. From that the sender chooses depth and
// parity (Estimator): as much as leaves one group in 10^7 packets short, by
// binomial tails where losses are independent and by those of runs where they come
// in bursts, with a cap on overhead; none after 10^5 packets without loss, and
// again when QUIC loses some. A path of which nothing is known gets more, until
// its queue builds: slow start has most to lose, and sends little.
//
// What is lost while the queue of the path is near full, as the round-trip time
// tells, does not count: that is congestion, and QUIC is to back off from it.
//
// # Formats
//
// Repair packets have the two top bits of the first byte clear, which in QUIC
// version 1 no packet has. All integers are big-endian.
//
//	offset size parity
//	0      1    0x31
//	1      1    version, 2
//	2      8    token of the direction
//	10     4    number of the group's first packet, counted over covered packets
//	14     2    packets from the first to the last of the group
//	16     1    packets n, 1 to 108
//	17     1    parity symbols of the group, 1 to 40
//	18     1    which of them this is, from 0
//	19     1    flags: bit 0 every packet is one symbol, not two
//	20     2    bytes of a whole symbol, h
//	22     4    CRC32C of every packet, added without carry
//	26     3n   the last three bytes of each packet, in order
//	..     ..   the symbol: h bytes, or, with bit 0, as many as the longest packet takes
//
//	offset size report
//	0      1    0x32
//	1      1    version, 2
//	2      8    token of the direction that the report travels
//	10     4    number, ascending
//	14     8·6  since the session began: groups, packets, lost, repaired, unrepaired, squares of the losses of a group
//	62     8·8  groups with 0, 1, 2, 3, 4, to 8, to 16, more losses
//
// Each ends with 8 bytes of number, from 0 for every packet of a direction, and 12 of
// AES-128-GCM tag over all before, with four zeros and the number as nonce. A packet with another tag, or a number that
// came or is more than 1,024 behind, is dropped and counted.
//
// A packet is coded as its length in two bytes, itself, and zeros to 2h bytes; the
// first h are data symbol i, the rest data symbol 108+i of the code, i its place in
// the group. Parity symbol j is the sum over data symbols d of them times
// 1/((216+j) xor d) in GF(2^8) with the polynomial 0x11d.
//
// # Concurrency
//
// Conn, Session and Estimator are safe for concurrent use. There is no goroutine;
// a session has a timer while groups are open. No lock is held across a read or
// write of the socket. Order of locks: Conn, Session, then Estimator and the queue
// of rebuilt packets.
//
// # Limitations
//
// Packets that QUIC probes the path with for a larger size are not covered, or it
// would learn a size that does not pass; nor is one that is larger than any that
// passed before, until four came in a row. A packet that comes out of order by
// more than its group counts as lost, so a path that reorders much gets parity that it does not
// need. A group whose parity is all lost is not reported. A queue that holds less
// than an eighth of the round-trip time or 5 ms can't be told from none, so losses
// of one so short count. Who can drop
// packets of the path can drop those of repair.
package repair
