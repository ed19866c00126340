package transfer_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/transfertest"
)

// TestSuperseded cuts the path under a read, has the puller give its link up while its word of that is lost, and dial anew once the path
// is whole. The source frees what the old link held within the time of a probe, not of the idle timeout.
func TestSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, slow)
		p := newPull(t, f, 256, nil)
		x := p.post(t, transfer.TransferOptions{})
		time.Sleep(200 * time.Millisecond)
		f.network.Cut(p.src.ip, p.dst.ip)
		if err := p.link.Close(transfer.CodePeerGone); err != nil {
			t.Error(err)
		}
		if _, err := x.Wait(t.Context()); err == nil {
			t.Error("the read is done, on a link that was cut and closed")
		}
		time.Sleep(3 * time.Second)
		f.network.Heal(p.src.ip, p.dst.ip)
		if n := p.src.Links(); len(n) != 1 || n[0].Stats().Transfers != 1 {
			t.Fatalf("the source has %d links before the puller is back; there is nothing to test", len(n))
		}
		p.link = connect(t, p.dst, p.src)
		if _, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{}); err != nil {
			t.Fatal(err)
		}
		p.equal(t)
		time.Sleep(4 * time.Second)
		idle(t, p.src, p.dst)
		if n := p.src.Links(); len(n) != 1 {
			t.Errorf("the source has %d links", len(n))
		}
	})
}

// TestNotSuperseded has a second agent of the same name and incarnation dial: the first one's link answers, and stays.
func TestNotSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := overWAN(t, slow)
		same := func(i int, c *transfer.Config) {
			if i > 1 {
				c.Incarnation = "one"
			}
		}
		p := newPull(t, f, 64, same)
		second := f.open(3, func(c *transfer.Config) {
			c.Name, c.TLS, c.Incarnation = transfertest.Name("r2", "n"), ca.Node("r2", "n"), "one"
		})
		connect(t, second, p.src)
		time.Sleep(10 * time.Second)
		if err := p.link.Err(); err != nil || len(p.src.Links()) != 2 {
			t.Fatalf("the first link: %v, the source has %d links, want 2", err, len(p.src.Links()))
		}
		if _, err := readAll(t, p.link, p.mine, p.theirs, p.pages, transfer.TransferOptions{}); err != nil {
			t.Fatal(err)
		}
		p.equal(t)
	})
}
