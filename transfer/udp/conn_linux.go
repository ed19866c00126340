package udp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

const (
	// batch is how many messages one recvmmsg may bring. Loopback does not join
	// what was sent apart, so there is something to gain beyond one.
	batch = 8
	// messageBytes holds any message: UDP's length field has 16 bits.
	messageBytes = 1 << 16
	// controlBytes holds every control message that an application can ask for at
	// a time, several times over: the ones of quic-go and GRO take 88 bytes.
	controlBytes = 512
	// maxAddrs is how many senders' addresses are remembered.
	maxAddrs = 1024
)

// mmsghdr is the kernel's struct of this name.
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
}

// A message is what the kernel handed over at once: datagrams of one sender.
type message struct {
	data    []byte // not yet handed out
	segment int    // bytes a datagram, the last may be shorter
	control []byte // for each of them
	addr    *net.UDPAddr
	flags   int
}

// reader reads messages and hands out datagrams.
type reader struct {
	gro     bool
	conn    *Conn
	receive func(fd uintptr) bool // a method value made once: it would be an allocation a call

	mu     sync.Mutex // held by the one reader, also while it waits for the socket; guards what is below
	bufs   *buffers   // made by the first read
	n, pos int        // messages read, and the one handed out from
	err    error      // of receive
	addrs  map[addrKey]*net.UDPAddr
}

// buffers are what a recvmmsg fills.
type buffers struct {
	data     []byte
	hdrs     [batch]mmsghdr
	iovs     [batch]unix.Iovec
	names    [batch]unix.RawSockaddrInet6
	control  [batch][controlBytes]byte
	messages [batch]message
}

type addrKey struct {
	ip    netip.Addr // without zone
	port  uint16
	scope uint32
}

func (r *reader) init(c *Conn, cfg Config) {
	r.conn = c
	r.receive = r.recvmmsg
	if !cfg.NoGRO {
		_ = c.raw.Control(func(fd uintptr) { // the caller has seen that the socket is open
			r.gro = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
		})
	}
}

func (r *reader) readBatch(ms []ipv4.Message) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.wait(); err != nil {
		return 0, err
	}
	n := 0
	for n < len(ms) && r.pos < r.n {
		m := &ms[n]
		data, from := r.next()
		m.Addr, m.Flags = from.addr, from.flags
		m.N = scatter(m.Buffers, data)
		if m.N < len(data) {
			m.Flags |= unix.MSG_TRUNC
		}
		var fits bool
		if m.NN, fits = copyControl(m.OOB, from.control); !fits {
			m.Flags |= unix.MSG_CTRUNC
		}
		n++
	}
	return n, nil
}

func (r *reader) readMsg(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.wait(); err != nil {
		return 0, 0, 0, nil, err
	}
	data, from := r.next()
	addr, flags = from.addr, from.flags
	if n = copy(b, data); n < len(data) {
		flags |= unix.MSG_TRUNC
	}
	oobn, fits := copyControl(oob, from.control)
	if !fits {
		flags |= unix.MSG_CTRUNC
	}
	return n, oobn, flags, addr, nil
}

func scatter(bufs [][]byte, data []byte) int {
	n := 0
	for _, b := range bufs {
		n += copy(b, data[n:])
	}
	return n
}

// wait returns with a datagram at hand, or an error.
func (r *reader) wait() error {
	if r.bufs == nil {
		r.bufs = newBuffers()
		r.addrs = make(map[addrKey]*net.UDPAddr)
	}
	for {
		r.err = nil
		// Also with datagrams at hand: this is where Close and deadlines show.
		if err := r.conn.raw.Read(r.receive); err != nil {
			return err
		}
		if r.err != nil {
			return r.err
		}
		if r.pos < r.n {
			return nil
		}
	}
}

// next takes a datagram; wait has seen that there is one. Its data stays until the
// next wait.
func (r *reader) next() (data []byte, from *message) {
	from = &r.bufs.messages[r.pos]
	n := min(from.segment, len(from.data))
	data, from.data = from.data[:n], from.data[n:]
	if len(from.data) == 0 {
		r.pos++
	}
	return data, from
}

func newBuffers() *buffers {
	b := &buffers{data: make([]byte, batch*messageBytes)}
	for i := range b.hdrs {
		b.iovs[i].Base = &b.data[i*messageBytes]
		b.iovs[i].SetLen(messageBytes)
		h := &b.hdrs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		h.Iov = &b.iovs[i]
		h.SetIovlen(1)
		h.Control = &b.control[i][0]
	}
	return b
}

// recvmmsg fills the buffers unless there are datagrams at hand. It returns false
// to be called again when the socket is readable.
func (r *reader) recvmmsg(fd uintptr) bool {
	if r.pos < r.n {
		return true
	}
	b := r.bufs
	for i := range b.hdrs {
		h := &b.hdrs[i].hdr
		h.Namelen = uint32(unsafe.Sizeof(b.names[i]))
		h.SetControllen(controlBytes)
		h.Flags = 0
	}
	r.n, r.pos = 0, 0
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.hdrs[0])), batch, 0, 0, 0)
		switch errno {
		case 0:
			r.accept(int(n))
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			r.err = os.NewSyscallError("recvmmsg", errno)
			return true
		}
	}
}

// accept makes messages of what n headers hold.
func (r *reader) accept(n int) {
	b := r.bufs
	for i := range n {
		h := &b.hdrs[i]
		flags := int(h.hdr.Flags)
		control, segment, err := splitControl(b.control[i][:h.hdr.Controllen])
		if err != nil || segment == 0 && flags&unix.MSG_CTRUNC != 0 {
			// Where datagrams end is not known. The kernel does not do this; if it
			// did, to drop it is what a network may do, and a wrong cut is not.
			continue
		}
		m := &b.messages[r.n]
		start := i * messageBytes
		*m = message{
			data: b.data[start : start+int(h.len)], segment: segment, control: control, flags: flags,
			addr: r.addr(&b.names[i]),
		}
		if segment == 0 {
			m.segment = len(m.data)
		}
		r.n++
	}
}

// addr returns the sender's address, the same one for the same sender.
func (r *reader) addr(name *unix.RawSockaddrInet6) *net.UDPAddr {
	var key addrKey
	switch name.Family {
	case unix.AF_INET:
		n := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		key = addrKey{ip: netip.AddrFrom4(n.Addr), port: ntohs(n.Port)}
	case unix.AF_INET6:
		key = addrKey{ip: netip.AddrFrom16(name.Addr), port: ntohs(name.Port), scope: name.Scope_id}
	}
	if a := r.addrs[key]; a != nil {
		return a
	}
	if len(r.addrs) >= maxAddrs {
		clear(r.addrs)
	}
	a := &net.UDPAddr{IP: key.ip.AsSlice(), Port: int(key.port), Zone: zone(key.scope)}
	r.addrs[key] = a
	return a
}

func ntohs(p uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&p))
	return uint16(b[0])<<8 | uint16(b[1])
}

// zone names an interface as package net does.
func zone(scope uint32) string {
	if scope == 0 {
		return ""
	}
	if i, err := net.InterfaceByIndex(int(scope)); err == nil {
		return i.Name
	}
	return strconv.FormatUint(uint64(scope), 10)
}

// setBuffer asks for a size, by force where the process may, and returns what the
// buffer then has; bytes = 0 only looks.
func (c *Conn) setBuffer(d direction, bytes int) int {
	opt, force := unix.SO_RCVBUF, unix.SO_RCVBUFFORCE
	if d == outbound {
		opt, force = unix.SO_SNDBUF, unix.SO_SNDBUFFORCE
	}
	got := 0
	_ = c.raw.Control(func(fd uintptr) { // closed: 0
		has := func() int {
			v, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, opt)
			if err != nil {
				return 0
			}
			return v / 2
		}
		if got = has(); got >= bytes {
			return
		}
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, force, bytes) != nil {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, opt, bytes) // what it did is looked at
		}
		got = has()
	})
	return got
}

func bufferFix(d direction, bytes int) string {
	name := "rmem_max"
	if d == outbound {
		name = "wmem_max"
	}
	return fmt.Sprintf("sysctl -w net.core.%s=%d", name, bytes)
}
