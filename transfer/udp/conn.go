package udp

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
)

// A Conn is a UDP socket for quic-go. It is a net.PacketConn.
type Conn struct {
	udp     *net.UDPConn
	raw     syscall.RawConn
	buffers Buffers
	reader  reader // one a system
}

// Listen opens a UDP socket on addr, "host:port": an empty host is every address
// of the machine, in both IP versions, port 0 one of the system's choice. Close
// is owed. Errors: those of Config.Validate and of net.ListenPacket.
func Listen(addr string, cfg Config) (*Conn, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	pc, err := net.ListenPacket("udp", addr)
	if err != nil {
		return nil, err
	}
	c, err := Wrap(pc.(*net.UDPConn), cfg)
	if err != nil {
		_ = pc.Close()
		return nil, err
	}
	return c, nil
}

// Wrap takes a socket over: from then on it is read through the Conn only, since
// its own reads would see several datagrams as one, and Close of the Conn closes
// it. Errors: those of Config.Validate, and net.ErrClosed; the socket is then as it
// was.
func Wrap(u *net.UDPConn, cfg Config) (*Conn, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("wrap UDP socket: %w", err)
	}
	if err := raw.Control(func(uintptr) {}); err != nil { // closed already?
		return nil, fmt.Errorf("wrap UDP socket: %w", err)
	}
	c := &Conn{udp: u, raw: raw}
	c.reader.init(c, cfg)
	c.enlarge(cfg)
	return c, nil
}

// GRO says whether the kernel may hand over several datagrams as one message.
func (c *Conn) GRO() bool { return c.reader.gro }

// Buffers returns the sizes of the socket's buffers in the kernel, as they were
// when it was opened.
func (c *Conn) Buffers() Buffers { return c.buffers }

// ReadBatch reads at least one datagram and as many more as are at hand, one a
// message, in order of arrival, and returns their number. It is what quic-go reads
// through. For each it fills Addr (shared, not to be changed), the Buffers, with
// N bytes in all, and OOB, with NN bytes of control messages. A datagram longer
// than its Buffers is cut and flagged MSG_TRUNC; control messages that do not fit
// are left out whole and flagged MSG_CTRUNC. flags must be 0. On an error it
// returns 0 and every message has N = 0.
//
// Errors: a *net.OpError around net.ErrClosed, os.ErrDeadlineExceeded or the
// system's.
func (c *Conn) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	if flags != 0 {
		return 0, c.readError(fmt.Errorf("flags are %#x; allowed is 0", flags))
	}
	if len(ms) == 0 {
		return 0, nil
	}
	n, err := c.reader.readBatch(ms)
	if err != nil {
		for i := range ms {
			ms[i].N, ms[i].NN, ms[i].Flags = 0, 0, 0
		}
		return 0, c.readError(err)
	}
	return n, nil
}

// ReadFrom reads one datagram, as net.PacketConn says. One longer than b is cut.
func (c *Conn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, _, _, addr, err := c.ReadMsgUDP(b, nil)
	if addr == nil {
		return n, nil, err
	}
	return n, addr, err
}

// ReadMsgUDP reads one datagram into b and its control messages into oob, as
// net.UDPConn does. Too short a b or oob shows in flags, as with ReadBatch.
func (c *Conn) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	n, oobn, flags, addr, err = c.reader.readMsg(b, oob)
	if err != nil {
		err = c.readError(err)
	}
	return n, oobn, flags, addr, err
}

// readError gives an error the shape that net's have.
func (c *Conn) readError(err error) error {
	if op, ok := err.(*net.OpError); ok { //nolint:errorlint // not one further in
		err = op.Err // of an operation "raw-read"
	}
	return &net.OpError{Op: "read", Net: "udp", Source: c.udp.LocalAddr(), Err: err}
}

// WriteTo writes one datagram.
func (c *Conn) WriteTo(b []byte, addr net.Addr) (int, error) { return c.udp.WriteTo(b, addr) }

// WriteMsgUDP writes b with the control messages oob; with UDP_SEGMENT among them
// it is several datagrams.
func (c *Conn) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	ap := addr.AddrPort()
	if addr == nil || !ap.IsValid() { // a connected socket; an address that only net reads a meaning into
		return c.udp.WriteMsgUDP(b, oob, addr)
	}
	// With a *net.UDPAddr net allocates a socket address a call.
	return c.udp.WriteMsgUDPAddrPort(b, oob, netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()))
}

// Close closes the socket and ends blocked calls with net.ErrClosed.
func (c *Conn) Close() error { return c.udp.Close() }

// LocalAddr returns the address that the socket is bound to.
func (c *Conn) LocalAddr() net.Addr { return c.udp.LocalAddr() }

// SetDeadline sets both deadlines.
func (c *Conn) SetDeadline(t time.Time) error { return c.udp.SetDeadline(t) }

// SetReadDeadline bounds reads, blocked ones too. Datagrams at hand do not make
// up for a passed deadline.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.udp.SetReadDeadline(t) }

// SetWriteDeadline bounds writes.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.udp.SetWriteDeadline(t) }

// SetReadBuffer sets the size of the kernel's receive buffer, bytes.
func (c *Conn) SetReadBuffer(bytes int) error { return c.udp.SetReadBuffer(bytes) }

// SetWriteBuffer sets the size of the kernel's send buffer, bytes.
func (c *Conn) SetWriteBuffer(bytes int) error { return c.udp.SetWriteBuffer(bytes) }

// SyscallConn gives the socket for its options; reading through it loses
// datagrams.
func (c *Conn) SyscallConn() (syscall.RawConn, error) { return c.udp.SyscallConn() }
