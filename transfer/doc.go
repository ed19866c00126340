// Package transfer moves pages between the registered memories of two agents,
// over a link of QUIC connections with mutual TLS, and verifies each page before
// it becomes readable. It knows nothing of sessions, block keys or layouts.
//
// # Usage
//
// Open an Agent a process. Register memories: Bytes for plain memory, or a
// Source and a Sink of one's own. Connect to a peer, or be connected to; Prepare
// a transfer from two lists of descriptors, Post it, Wait for it, Release it. The
// side that starts a Read has the pages land in its own memory; that of a Write
// has them land at the peer, where the memory must allow it. The example is the
// whole of it.
//
// A Link also carries opaque calls (Link.Call and Config.Handler) in both
// directions, for the control messages of whoever builds on this package, and a
// notification with each transfer (TransferOptions.Notify). Calls, announcements
// of memories and the end of transfers travel in order.
//
// # How a transfer runs
//
// The receiving side asks for pages over the control stream; the sending side
// cuts each descriptor into chunks of whole pages, and its senders write each
// chunk on a unidirectional stream of its own, on whichever connection can take
// it. The receiving side reads page by page into a pooled
// buffer and hands each to the Sink, which verifies it.
//
// What goes wrong on the way is asked for again: a page that does not verify,
// over another connection (a second mismatch of it is an error that names it); a
// chunk whose stream was reset; what a lost connection carried. When nothing is
// queued any more, a connection that is free writes what another is late with a
// second time, and the slower stream is reset. When the link falls silent for a
// few round trips, or a chunk is long overdue, connections that answer nothing
// while others do are closed, and what was sent and did not arrive goes over the
// others. The side that dialled restores connections, and gives the peer up when
// none can be had within the connect timeout.
//
// # How many connections
//
// The side that dialled decides, from what it receives and what the side that
// sends reports of its windows and losses: more when the windows' bound or loss
// holds the rate back and there is work, fewer when the path holds too few packets
// for as many or more did not help, and the first number again after a quarter of
// an hour without work. Until then they are kept alive: a window does not shrink
// while a connection idles, so that a link that was warm stays so. A connection
// that is taken away gets no more chunks and is closed when it is quiet.
//
// # Who goes first
//
// The sending side orders what a link sends (TransferOptions, Config.Share): by
// class, strictly, down to the packet; within a class between tenants by weight, in
// bytes (start-time fair queueing); within a tenant by earliest deadline, then by
// least left to send, Config.Concurrency transfers at a time. A quarter of a tenant's
// bytes goes to its oldest transfer that has been queued for longer than
// Config.AgeAfter, so that a tenant's big transfers end: within AgeAfter and four
// times what they and those before them take of the tenant's share. Across classes
// there is no such bound. Rates of a link and of a tenant hold chunks back, and then
// others go. A transfer that waits is told so every second (Progress.Queue) and is
// not taken for stalled.
//
// A transfer has exactly one terminal state. Once it is in it, no call into a
// Source, Sink or OnLanded runs or will start for it.
//
// # Identity
//
// A node is its certificate: Config.Identify makes a name of it, Connect demands
// a name, and the name is checked before anything is said. A process is its
// Config.Incarnation: what began with one fails with ErrPeerRestarted when
// another answers.
//
// # Time
//
// The package uses no other clock than package time and blocks in no system call
// of its own, so that agents over injected sockets (Config.Conn,
// Config.DialPacket) run in a bubble of testing/synctest. The certificates must
// then be valid in the year 2000; see package transfertest.
//
// # Concurrency
//
// Agents, links and transfers are safe for concurrent use. Callbacks and the
// methods of Sources and Sinks are called concurrently; which of them must not
// block, or not call back, is said with each.
//
// # Limitations
//
// Pages travel as they are: no codec. Order and
// weights are those of one link: links to different peers compete as their
// connections do. A page is at most 4 MiB, a transfer at most 2^18
// descriptors and 2^24 pages. When the control stream's connection is lost, calls
// in flight fail with ErrAnswerLost; transfers go on. UDP only: where it is
// blocked, Connect says so.
package transfer
