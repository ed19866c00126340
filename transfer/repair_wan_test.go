package transfer_test

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

func TestRepairGoodputX(t *testing.T) {
	const page = 64 << 10
	models := []string{"loss=0", "loss=1e-4", "loss=1e-3", "loss=1e-2", "loss=0,burst=1e-4/0.1"}
	if m := os.Getenv("MODEL"); m != "" {
		models = []string{m}
	}
	secs := 4
	rate, stripes := "1Gbps", 4
	fmt.Sscan(os.Getenv("RATE"), &rate)
	fmt.Sscan(os.Getenv("STRIPES"), &stripes)
	mbps := map[string]int{"1Gbps": 1000, "100Mbps": 100, "500Mbps": 500, "10Gbps": 10000}[rate]
	fmt.Sscan(os.Getenv("SECS"), &secs)
	for _, m := range models {
		t.Run(m, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := overWAN(t, "rtt=70ms,seed=1,rate="+rate+","+m)
				edit := func(c *transfer.Config) {
					c.Stripes = stripes
					fmt.Sscan(os.Getenv("PARITY"), &c.Repair.Parity)
					fmt.Sscan(os.Getenv("GROUP"), &c.Repair.Group)
					fmt.Sscan(os.Getenv("DEPTH"), &c.Repair.Depth)
				}
				src, dst := f.open(1, edit), f.open(2, edit)
				pages := secs * mbps * 125e3 / page
				want, got := random(1, page*pages), make([]byte, page*pages)
				theirs := register(t, src, transfer.Bytes(want, page))
				mine := register(t, dst, transfer.Bytes(got, page))
				l := connect(t, dst, src)
				for _, run := range []string{"cold", "warm"} {
					clear(got)
					start := time.Now()
					done := make(chan bool)
					go func() {
						for {
							select {
							case <-done:
								return
							case <-time.After(500 * time.Millisecond):
							}
							s := src.Links()[0].Stats()
							t.Logf("%v lost %d rtt %v rep %+v", time.Since(start), s.PacketsLost, s.RTTSmoothed, s.Repair)
						}
					}()
					res, err := readAll(t, l, mine, theirs, uint32(pages), transfer.TransferOptions{})
					close(done)
					if err != nil {
						t.Fatal(err)
					}
					share := float64(len(want)) * 8 / res.Duration.Seconds() / 1e6 / float64(mbps)
					s := src.Links()[0].Stats()
					t.Logf("RESULT %s: %v, %.3f of the link, quic lost %d of %d, repair %+v, %+v", run, res.Duration, share, s.PacketsLost, s.PacketsSent, s.Repair, l.Stats().Repair)
					t.Logf("net %+v", f.network.Stats(src.ip, dst.ip))
					if !bytes.Equal(want, got) {
						t.Fatal("bytes differ")
					}
				}
			})
		})
	}
}
