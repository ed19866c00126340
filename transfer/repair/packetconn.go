package repair

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
)

// oobConn is what quic-go looks for in a socket, and *udp.Conn has.
type oobConn interface {
	net.PacketConn
	SyscallConn() (syscall.RawConn, error)
	SetReadBuffer(int) error
	SetWriteBuffer(int) error
	ReadBatch(ms []ipv4.Message, flags int) (int, error)
	ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error)
	WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error)
}

// plainConn is a Conn as a net.PacketConn.
type plainConn struct{ c *Conn }

func (p *plainConn) ReadFrom(b []byte) (n int, addr net.Addr, err error) {
	for {
		if p.c.out.pop(func(r *rebuiltPacket) { n, addr = copy(b, r.data), r.from }) {
			return n, addr, nil
		}
		n, addr, err = p.c.below.ReadFrom(b)
		if err != nil || !p.c.took(b[:n], addr, nil) {
			return n, addr, err
		}
	}
}

func (p *plainConn) WriteTo(b []byte, addr net.Addr) (int, error) {
	n, err := p.c.below.WriteTo(b, addr)
	if err == nil {
		p.c.wrote(b, len(b), addr, nil)
	}
	return n, err
}

func (p *plainConn) Close() error                       { return p.c.Close() }
func (p *plainConn) LocalAddr() net.Addr                { return p.c.below.LocalAddr() }
func (p *plainConn) SetDeadline(t time.Time) error      { return p.c.below.SetDeadline(t) }
func (p *plainConn) SetReadDeadline(t time.Time) error  { return p.c.below.SetReadDeadline(t) }
func (p *plainConn) SetWriteDeadline(t time.Time) error { return p.c.below.SetWriteDeadline(t) }

func (p *plainConn) SetReadBuffer(bytes int) error {
	if b, ok := p.c.below.(interface{ SetReadBuffer(int) error }); ok {
		return b.SetReadBuffer(bytes)
	}
	return errors.ErrUnsupported
}

func (p *plainConn) SetWriteBuffer(bytes int) error {
	if b, ok := p.c.below.(interface{ SetWriteBuffer(int) error }); ok {
		return b.SetWriteBuffer(bytes)
	}
	return errors.ErrUnsupported
}

// batchConn is a Conn over a socket that reads in batches.
type batchConn struct{ plainConn }

func (p *batchConn) SyscallConn() (syscall.RawConn, error) { return p.c.oob.SyscallConn() }

// ReadBatch reads as udp.Conn does, rebuilt packets first.
func (p *batchConn) ReadBatch(ms []ipv4.Message, flags int) (int, error) {
	if len(ms) == 0 {
		return 0, nil
	}
	for {
		n := 0
		for n < len(ms) && p.c.out.pop(func(r *rebuiltPacket) { fill(&ms[n], r.data, r.oob, r.from) }) {
			n++
		}
		if n > 0 {
			return n, nil
		}
		got, err := p.c.oob.ReadBatch(ms, flags)
		if err != nil {
			return 0, err
		}
		for i := range ms[:got] {
			m := &ms[i]
			if len(m.Buffers) == 1 && p.c.took(m.Buffers[0][:m.N], m.Addr, m.OOB[:m.NN]) {
				continue
			}
			if n != i { // buffers stay where they are: quic-go knows them by place
				fill(&ms[n], m.Buffers[0][:m.N], m.OOB[:m.NN], m.Addr)
				ms[n].Flags = m.Flags
			}
			n++
		}
		if n > 0 {
			return n, nil
		}
	}
}

func fill(m *ipv4.Message, data, oob []byte, from net.Addr) {
	m.N = 0
	for _, b := range m.Buffers {
		m.N += copy(b, data[m.N:])
	}
	m.NN, m.Addr, m.Flags = copy(m.OOB, oob), from, 0
}

func (p *batchConn) ReadMsgUDP(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	for {
		if p.c.out.pop(func(r *rebuiltPacket) {
			n, oobn, flags = copy(b, r.data), copy(oob, r.oob), 0
			addr, _ = r.from.(*net.UDPAddr)
		}) {
			return n, oobn, flags, addr, nil
		}
		n, oobn, flags, addr, err = p.c.oob.ReadMsgUDP(b, oob)
		if err != nil || !p.c.took(b[:n], addr, oob[:oobn]) {
			return n, oobn, flags, addr, err
		}
	}
}

func (p *batchConn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, _, _, addr, err := p.ReadMsgUDP(b, nil)
	if addr == nil {
		return n, nil, err
	}
	return n, addr, err
}

func (p *batchConn) WriteMsgUDP(b, oob []byte, addr *net.UDPAddr) (n, oobn int, err error) {
	n, oobn, err = p.c.oob.WriteMsgUDP(b, oob, addr)
	if err == nil && addr != nil {
		segment := len(b)
		if s := segmentOf(oob); s > 0 {
			segment = s
		}
		p.c.wrote(b, segment, addr, oob)
	}
	return n, oobn, err
}
