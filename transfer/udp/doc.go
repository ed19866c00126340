// Package udp is the socket under quic-go: a *net.UDPConn that reads many
// datagrams with one system call and hands them out one by one.
//
// # Usage
//
// Listen opens a socket, Wrap takes one over. Give the Conn to
// quic.Transport.Conn: it satisfies quic-go's OOBCapablePacketConn and has the
// ReadBatch that quic-go looks for, so control messages (ECN marks, the local
// address) are read, and segmentation offload (UDP_SEGMENT) on the way out stays
// quic-go's own. The package does not import quic-go.
//
// On Linux 5.0 and later UDP_GRO is on: the kernel hands over up to 64 KiB of
// datagrams of one sender and one size as one message, and says their size in a
// control message. The Conn cuts the message at exactly that size (the last
// datagram may be shorter), gives each datagram the other control messages, and
// removes the kernel's own. Without GRO (Config.NoGRO, an older kernel) the same
// code reads up to eight datagrams a system call; other systems read as
// *net.UDPConn does. Conn.GRO says which it is.
//
// Listen and Wrap also enlarge the socket's buffers, beyond the system's limit
// where the process may (CAP_NET_ADMIN). Conn.Buffers reports what was asked, what
// was given, and the setting that would help.
//
// # Concurrency
//
// As *net.UDPConn: all methods may be called concurrently, a read and a write
// never wait for each other, Close and a passed deadline end blocked calls.
// Concurrent reads take turns, and each gets whole datagrams.
//
// Addresses that reads return are shared between datagrams and must not be
// changed.
//
// # Limitations
//
// Datagrams that were read together and not yet handed out, 64 at most of one
// message and eight messages at most, are held in the process: they do not count
// as unread to the kernel, so SyscallConn must not be used to read or to poll for
// readability. Each Conn that reads on Linux holds 512 KiB of address space for
// them, of which the kernel touches what arrives.
//
// ReadBatch takes no flags. Writes are passed on one by one: joining several of
// quic-go's 20 KiB batches into one call was measured and did not pay.
//
// Some systems do not say how large a buffer they gave; Buffers then reports the
// largest size that was accepted.
package udp
