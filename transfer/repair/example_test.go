package repair_test

import (
	"fmt"
	"net"

	"github.com/kvferry/kvferry/transfer/repair"
)

// A socket is wrapped, QUIC has it, and a connection that its two ends agree on has
// a session.
func Example() {
	socket, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	conn := repair.Wrap(socket, repair.Config{})
	defer conn.Close()
	_ = conn.PacketConn() // for quic.Transport.Conn

	session, err := conn.Attach(repair.SessionConfig{
		Addr: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4433}, Send: repair.Token{1}, Receive: repair.Token{2},
		SendKey: repair.Key{1}, ReceiveKey: repair.Key{2}, MaxSpan: 1024,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close()
	s := session.Stats()
	fmt.Println(s.Packets, "covered,", s.Repaired, "repaired,", s.Depth, "groups open at a time at first")
	// Output: 0 covered, 0 repaired, 4 groups open at a time at first
}
