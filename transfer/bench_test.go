//go:build unix

package transfer_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/transfertest"
)

// BenchmarkRead reads 256 MiB of plain memory over loopback, both ends in one
// process; cpu-s/GB is what both took.
func BenchmarkRead(b *testing.B) {
	const pages = 4096
	for _, stripes := range []int{0, 1, 8} {
		for _, socket := range []string{"gro", "plain"} {
			b.Run(fmt.Sprintf("stripes=%d/socket=%s", stripes, socket), func(b *testing.B) {
				var agents []*transfer.Agent
				for _, region := range []string{"a", "b"} {
					cfg := transfer.Config{Name: transfertest.Name(region, "n"), TLS: ca.Node(region, "n"), Stripes: stripes}
					over(b, &cfg, socket)
					a, err := transfer.Open(cfg)
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
				before := cpu(b)
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
				b.ReportMetric((cpu(b)-before).Seconds()/(float64(b.N)*pages*pageBytes/1e9), "cpu-s/GB")
				b.ReportMetric(float64(l.Stats().Stripes), "connections")
			})
		}
	}
}

// cpu returns what the process has used.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
