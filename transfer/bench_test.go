package transfer_test

import (
	"fmt"
	"net"
	"testing"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/transfertest"
)

// BenchmarkRead reads 64 MiB of plain memory over loopback, both ends in one
// process.
func BenchmarkRead(b *testing.B) {
	const pages = 1024
	for _, stripes := range []int{1, 8} {
		b.Run(fmt.Sprintf("stripes=%d", stripes), func(b *testing.B) {
			var agents []*transfer.Agent
			for _, region := range []string{"a", "b"} {
				conn, err := net.ListenPacket("udp", "127.0.0.1:0")
				if err != nil {
					b.Fatal(err)
				}
				a, err := transfer.Open(transfer.Config{Name: transfertest.Name(region, "n"), TLS: ca.Node(region, "n"), Conn: conn, Stripes: stripes})
				if err != nil {
					b.Fatal(err)
				}
				defer a.Close()
				agents = append(agents, a)
			}
			var ids []transfer.MemoryID
			for _, a := range agents {
				id, err := a.Register(transfer.Bytes(make([]byte, pages*pageBytes), pageBytes))
				if err != nil {
					b.Fatal(err)
				}
				ids = append(ids, id)
			}
			l, err := agents[1].Connect(b.Context(), agents[0].Addr().String(), transfertest.Name("a", "n"))
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(pages * pageBytes)
			b.ReportAllocs()
			for b.Loop() {
				x, err := l.Prepare(transfer.Read, []transfer.Desc{{Memory: ids[1], Pages: pages}}, []transfer.Desc{{Memory: ids[0], Pages: pages}}, transfer.TransferOptions{})
				if err != nil {
					b.Fatal(err)
				}
				if err := x.Post(b.Context()); err != nil {
					b.Fatal(err)
				}
				if _, err := x.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				_ = x.Release()
			}
		})
	}
}
