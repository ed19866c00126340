//go:build !linux

package udp

import (
	"net"
	"runtime"

	"golang.org/x/net/ipv4"
)

// reader reads as net.UDPConn does: one datagram a system call.
type reader struct {
	gro    bool // stays false
	conn   *net.UDPConn
	packet *ipv4.PacketConn
}

func (r *reader) init(c *Conn, _ Config) {
	r.conn, r.packet = c.udp, ipv4.NewPacketConn(c.udp)
}

func (r *reader) readBatch(ms []ipv4.Message) (int, error) { return r.packet.ReadBatch(ms, 0) }

func (r *reader) readMsg(b, oob []byte) (n, oobn, flags int, addr *net.UDPAddr, err error) {
	return r.conn.ReadMsgUDP(b, oob)
}

// setBuffer asks for less until the system agrees.
func (c *Conn) setBuffer(d direction, bytes int) int {
	for ; bytes >= 64<<10; bytes /= 2 {
		if c.set(d, bytes) == nil {
			return bytes
		}
	}
	return 0
}

func (c *Conn) set(d direction, bytes int) error {
	if d == inbound {
		return c.udp.SetReadBuffer(bytes)
	}
	return c.udp.SetWriteBuffer(bytes)
}

func bufferFix(_ direction, bytes int) string {
	if runtime.GOOS == "darwin" || runtime.GOOS == "freebsd" {
		return "raise the sysctl kern.ipc.maxsockbuf above what was asked for"
	}
	return "raise the system's limit of socket buffers"
}
