package transfer_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// TestShortReads has a warm link serve reads of about one bandwidth-delay product,
// each of which takes what its bytes take; then the same after one of its four
// connections has been replaced by a cold one, which must not hold them up.
func TestShortReads(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector is too slow for links of this size; TestChaos runs the code")
	}
	const (
		rtt    = 70 * time.Millisecond
		rate   = 250e6 * 0.95 / 8 // page bytes a second
		warmUp = 14 << 20
	)
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, "rtt=70ms,rate=250Mbps,loss=0")
		p := newPull(t, f, warmUp/pageBytes, nil)
		read := func(bytes int) time.Duration {
			t.Helper()
			start := time.Now()
			if _, err := readAll(t, p.link, p.mine, p.theirs, uint32(bytes/pageBytes), transfer.TransferOptions{}); err != nil {
				t.Fatal(err)
			}
			return time.Since(start)
		}
		for range 4 {
			read(warmUp)
		}
		rng := rand.New(rand.NewPCG(1, 2))
		short := func(what string, most float64) {
			t.Helper()
			var took, ideal time.Duration
			for range 12 {
				n := (1 + rng.IntN(8)) << 20
				took += read(n)
				ideal += rtt + time.Duration(float64(n)/rate*float64(time.Second))
				time.Sleep(300 * time.Millisecond)
			}
			t.Logf("%s: %v, ideal %v", what, took, ideal)
			if float64(took) > most*float64(ideal) {
				t.Errorf("%s: %v for what ideally takes %v", what, took, ideal)
			}
			if n := p.link.Stats().Stripes; n != 4 {
				t.Errorf("%s: %d connections, want 4", what, n)
			}
		}
		short("warm", 1.1)
		taps := tapStripes(f, p)
		read(1 << 20) // packets of every connection
		taps.silence(t, true, true)
		read(1 << 20)
		time.Sleep(5 * time.Minute) // the keep-alives end it, and another one is dialled
		short("one is cold", 1.25)
	})
}
