package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer/wire"
)

// twoAgents opens a server and a client with a short path between them.
func twoAgents(t *testing.T) (server, client *Agent, done func()) {
	t.Helper()
	ca, n := newTestCA(t), wan.NewNetwork(wan.Model{RTT: time.Millisecond, Rate: 1e9})
	a, b := netip.MustParseAddrPort("10.0.0.1:4433"), netip.MustParseAddrPort("10.0.0.2:4433")
	server = openTest(t, n, a, Config{Name: "spiffe://test/a", TLS: ca.node("a"), Handler: func(_ context.Context, _ Peer, p []byte) ([]byte, error) { return p, nil }}, nil)
	client = openTest(t, n, b, Config{Name: "spiffe://test/b", TLS: ca.node("b")}, nil)
	return server, client, func() {
		if err := errors.Join(client.Close(), server.Close(), n.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestPostFullOutbox posts when no control message fits any more: the transfer and
// the link end with ErrBusy, and Post returns.
func TestPostFullOutbox(t *testing.T) {
	for _, op := range []Op{Read, Write} {
		t.Run(op.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, client, done := twoAgents(t)
				defer done()
				m := Bytes(make([]byte, 64), 64)
				m.RemoteWrite = true
				theirs, err := server.Register(m)
				if err != nil {
					t.Fatal(err)
				}
				mine, err := client.Register(m)
				if err != nil {
					t.Fatal(err)
				}
				l, err := client.Connect(t.Context(), server.Addr().String(), server.cfg.Name)
				if err != nil {
					t.Fatal(err)
				}
				x, err := l.Prepare(op, []Desc{{Memory: mine, Pages: 1}}, []Desc{{Memory: theirs, Pages: 1}}, TransferOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer x.Release()
				synctest.Wait() // the writer has sent what there was: else it would empty the outbox
				l.out.mu.Lock()
				l.out.mu.bytes = maxOutbox
				l.out.mu.Unlock()
				posted := make(chan error, 1)
				go func() { posted <- x.Post(t.Context()) }()
				select {
				case err := <-posted:
					if err != nil {
						t.Errorf("post: %v", err)
					}
				case <-time.After(20 * time.Second):
					t.Fatal("Post hangs") // and so would Close
				}
				if _, err := x.Wait(t.Context()); !errors.Is(err, ErrBusy) {
					t.Errorf("transfer: %v", err)
				}
				<-l.Done()
				if err := l.Err(); !errors.Is(err, ErrBusy) {
					t.Errorf("link: %v", err)
				}
			})
		})
	}
}

// TestAgainFlood repeats a request many times: every page that was sent is queued
// once, no other is, and a page that is asked for without end fails the transfer.
func TestAgainFlood(t *testing.T) {
	for _, tc := range []struct {
		reason wire.Reason
		stripe uint32
	}{{wire.ReasonBadPage, 0}, {wire.ReasonBadPage, 1}, {wire.ReasonStalled, 0}, {wire.ReasonStripeLost, 1}, {wire.ReasonStripeLost, 0}} {
		l := testLink()
		q := &l.sched
		q.addStripe(1, nil)
		q.addStripe(2, nil)
		const pages, taken = 1 << 14, 20
		f := testFlow(l, 1, pages, 4096)
		var end error
		f.init(func(err error, _ bool) { end = err })
		q.start(f)
		sent := 0
		for range taken {
			c, ok := q.take(1, Interactive)
			if !ok {
				t.Fatal("no chunk")
			}
			q.sent(c, 1, false)
			sent += c.pages
		}
		// Every other page, then all: runs that overlap what is queued.
		m, want := wire.Again{Reason: tc.reason, Stripe: tc.stripe, Pages: wire.NewBitmap(pages)}, 0
		for i := 0; i < pages; i += 2 {
			m.Pages.Set(i)
		}
		for range 50 {
			f.handleAgain(m)
		}
		if tc != struct {
			reason wire.Reason
			stripe uint32
		}{wire.ReasonStripeLost, 0} {
			want = sent / 2
		}
		all := m
		if tc.reason == wire.ReasonBadPage {
			all.Pages = wire.NewBitmap(pages)
			for i := range pages {
				all.Pages.Set(i)
			}
			want = sent
		}
		for range 50 {
			f.handleAgain(all)
		}
		seen := make([]int, pages)
		got := 0
		for _, c := range f.sched.again {
			for i := range c.pages {
				seen[c.first+i]++
				got++
			}
		}
		for n, k := range seen {
			if k > 1 || k == 1 && n >= sent {
				t.Fatalf("reason %d: page %d, of %d that were sent, is queued %d times", tc.reason, n, sent, k)
			}
		}
		if backlog := int64(pages-sent+want) * 4096; got != want || q.backlog() != backlog {
			t.Errorf("reason %d, stripe %d: %d pages queued, want %d; backlog %d, want %d", tc.reason, tc.stripe, got, want, q.backlog(), backlog)
		}
		if end != nil {
			t.Errorf("reason %d: %v", tc.reason, end)
		}
		q.stop(f)
		if n := q.backlog(); n != 0 {
			t.Errorf("backlog %d after the end", n)
		}
	}

	l := testLink()
	l.sched.addStripe(1, nil)
	f := testFlow(l, 1, 1, 64)
	var end error
	f.init(func(err error, _ bool) { end = err })
	l.sched.start(f)
	m := againFor(make([]bool, 1), wire.ReasonBadPage, 1)
	n := 0
	for ; end == nil && n < 2*leastRepeats; n++ {
		c, ok := l.sched.take(1, Interactive)
		if !ok {
			t.Fatal("no chunk")
		}
		l.sched.sent(c, 1, false)
		f.handleAgain(m)
	}
	if n != leastRepeats+1 || !errors.Is(end, ErrProtocol) {
		t.Errorf("ended after %d repeats: %v", n, end)
	}
}

// TestStripesBounded dials more stripes than a link may have: the refusal is typed,
// and the link works on.
func TestStripesBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client, done := twoAgents(t)
		defer done()
		l, err := client.Connect(t.Context(), server.Addr().String(), server.cfg.Name)
		if err != nil {
			t.Fatal(err)
		}
		n := l.Stats().Stripes
		for ; n <= 2*maxAccepted; n++ {
			if err = l.dialStripe(t.Context(), uint32(1000+n)); err != nil {
				break
			}
		}
		if n != maxAccepted || !errors.Is(err, ErrBusy) {
			t.Errorf("after %d stripes: %v", n, err)
		}
		if got := server.Links()[0].Stats().Stripes; got != maxAccepted {
			t.Errorf("the peer counts %d stripes", got)
		}
		if out, err := l.Call(t.Context(), []byte("still there")); err != nil || string(out) != "still there" {
			t.Errorf("call: %q, %v", out, err)
		}
	})
}

// TestLinksBounded makes more links from one node than it may have.
func TestLinksBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client, done := twoAgents(t)
		defer done()
		dial := func() (*Link, error) {
			var nonce wire.Nonce
			_, _ = rand.Read(nonce[:])
			l, err := client.add(server.cfg.Name, nonce, server.Addr())
			if err != nil {
				t.Fatal(err)
			}
			return l, l.connect(t.Context())
		}
		links := make([]*Link, maxLinks)
		for i := range links {
			var err error
			if links[i], err = dial(); err != nil {
				t.Fatalf("link %d: %v", i, err)
			}
		}
		if _, err := dial(); !errors.Is(err, ErrBusy) {
			t.Errorf("link %d: %v", maxLinks, err)
		}
		if n := len(server.Links()); n != maxLinks {
			t.Errorf("%d links, want %d", n, maxLinks)
		}
		_ = links[0].Close(CodeOK)
		time.Sleep(time.Second)
		if _, err := dial(); err != nil {
			t.Errorf("in place of one that ended: %v", err)
		}
	})
}
