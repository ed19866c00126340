package transfer_test

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// readAll reads the whole of a memory of pages pages into another and returns
// the result and how long the link took for it.
func readAll(t *testing.T, l *transfer.Link, mine, theirs transfer.MemoryID, pages uint32, opts transfer.TransferOptions) (transfer.Result, error) {
	t.Helper()
	d := func(id transfer.MemoryID) []transfer.Desc { return []transfer.Desc{{Memory: id, Pages: pages}} }
	return run(t, l, transfer.Read, d(mine), d(theirs), opts)
}

// TestGoodput moves 128 MiB over a model link of 1 Gbit/s and 70 ms, twice: the
// second transfer finds warm connections.
func TestGoodput(t *testing.T) {
	const page = 64 << 10
	pages := 2048
	if raceEnabled {
		pages = 256
	}
	for _, tc := range []struct {
		name, model string
		warm        float64 // least share of the link
	}{
		{"clean", "rtt=70ms,rate=1Gbps,loss=0", 0.75},
		{"lossy", "rtt=70ms,rate=1Gbps,loss=1e-4,seed=1", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := overWAN(t, tc.model)
				src, dst := f.open(1, nil), f.open(2, nil)
				want, got := random(1, page*pages), make([]byte, page*pages)
				theirs := register(t, src, transfer.Bytes(want, page))
				mine := register(t, dst, transfer.Bytes(got, page))
				start := time.Now()
				l := connect(t, dst, src)
				t.Logf("connected in %v", time.Since(start))
				for _, run := range []string{"cold", "warm"} {
					clear(got)
					res, err := readAll(t, l, mine, theirs, uint32(pages), transfer.TransferOptions{})
					if err != nil {
						t.Fatal(err)
					}
					share := float64(len(want)) * 8 / res.Duration.Seconds() / 1e9
					s := l.Stats()
					t.Logf("%s: %v, %.3f of the link, %d asked again, estimate %.0f Mbit/s, rtt %v, lost here %d", run, res.Duration, share, res.PagesAgain, s.Goodput*8/1e6, s.RTTSmoothed, s.PacketsLost)
					if run == "warm" && share < tc.warm && !raceEnabled {
						t.Errorf("warm goodput %.3f of the link, want %.2f", share, tc.warm)
					}
					if !bytes.Equal(want, got) {
						t.Fatal("bytes differ")
					}
				}
				if s := l.Stats(); s.Stripes == 0 || s.Transfers != 0 || s.QueuedBytes != 0 || !s.GoodputKnown {
					t.Errorf("stats %+v", s)
				}
			})
		})
	}
}
