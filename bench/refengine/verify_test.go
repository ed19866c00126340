package refengine

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// serve serves e on a socket of its own until the test ends.
func serve(t *testing.T, e *Engine) *Client {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	addr, up, down := "unix://"+filepath.Join(t.TempDir(), "e.sock"), make(chan struct{}), make(chan error, 1)
	go func() { down <- Serve(ctx, addr, e, func(net.Addr) { close(up) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-down; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-up:
	case err := <-down:
		t.Fatal(err)
	}
	c := NewClient(addr)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Every block that the daemon has is read, whatever is missing before it, and each wrong page is counted where it is.
func TestVerify(t *testing.T) {
	d := newFakeDaemon(t, 64)
	e := open(t, d, func(c *Config) {
		c.Pace = &Pace{PrefillTokensPerSecond: 1e6, DecodeTokensPerSecond: 1e6, Seed: 3}
	})
	c := serve(t, e)
	res, err := c.Generate(t.Context(), Request{Tokens: prompt(1, 100, 256), Commit: true, UseCache: true})
	if err != nil {
		t.Fatal(err)
	}
	keys := slices.Insert(slices.Clone(res.Keys), 1, []byte("a key that nobody has"))
	got, err := c.Verify(t.Context(), VerifyRequest{Keys: keys})
	if err != nil || got.Present != 6 || !slices.Equal(got.Missing, []int{1}) || len(got.Damaged) > 0 {
		t.Fatalf("got %+v, %v, want 6 blocks in order and the second missing", got, err)
	}
	d.damage(res.Keys[2], func(block []byte) { block[5]++; block[len(block)-1]++ })
	got, err = c.Verify(t.Context(), VerifyRequest{Keys: keys})
	if err != nil || len(got.Damaged) != 1 || got.Damaged[0].Block != 3 || got.Damaged[0].Pages != 2 {
		t.Errorf("got %+v, %v, want 2 wrong pages in block 3", got, err)
	}
	if st, err := c.Status(t.Context()); err != nil || !st.Paced {
		t.Errorf("status %+v, %v", st, err)
	}
	if err := c.Forget(t.Context()); err != nil {
		t.Error(err)
	}
	computes := serve(t, open(t, newFakeDaemon(t, 8), nil))
	if _, err := computes.Verify(t.Context(), VerifyRequest{Keys: keys}); err == nil || !strings.Contains(err.Error(), ErrNotPaced.Error()) {
		t.Errorf("an engine that computes answers %v", err)
	}
}
