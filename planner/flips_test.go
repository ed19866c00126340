package planner

import (
	"math"
	"math/rand/v2"
	"testing"
)

// By hand: linear prefill of 1 ms a token, 1,000 tokens of 1 MB at 12 Gbps, one round trip of 10 ms and nothing else. Fetch takes
// 10 ms + 0.667 s, recompute 1 s.
func TestFlipsByHand(t *testing.T) {
	t.Parallel()
	r := Request{PrefixTokens: 1000, RoundTrips: 1}
	m := Model{BytesPerToken: 1e6}
	c := Compute{SecondsPerToken: 1e-3}
	l := Link{RTT: 10 * ms, Goodput: 12e9, WindowPackets: -1}
	got, err := Flips(r, m, c, l)
	if err != nil {
		t.Fatal(err)
	}
	want := [...]Flip{
		{FigureGoodput, true, 12e9, true, 8e9 / .99, ModeRecompute},                   // 10 ms + 8e9/B = 1 s
		{FigurePrefill, true, 1000, true, 1000 / (.01 + 2./3), ModeRecompute},         // tokens a second in 0.677 s
		{FigurePrefix, true, 1000, true, math.Floor(.01 / (1e-3 / 3)), ModeRecompute}, // 10 ms = n/3 ms
	}
	for i, w := range want {
		g := got[i]
		near := 1e-6 * w.At
		if w.Figure == FigurePrefix {
			near = 1
		}
		if math.Abs(g.At-w.At) > near || math.Abs(g.Now-w.Now) > 1e-9*w.Now {
			t.Errorf("%v: %+v, want %+v", w.Figure, g, w)
		}
		g.At, g.Now = w.At, w.Now
		if g != w {
			t.Errorf("%+v, want %+v", g, w)
		}
	}
	// Hybrid is never slower than either, and with half of the round trip it has no rival.
	r.Hybrid = true
	got, err = Flips(r, m, c, l)
	if err != nil || got[FigureGoodput].Found || got[FigurePrefix].Winner != ModeRecompute || math.Abs(got[FigurePrefix].At-10) > 1 {
		t.Errorf("%+v, %v", got, err) // below 10 tokens no block lands before they are prefilled
	}
	if got, err := Flips(Request{PrefixTokens: -1}, m, c, l); err == nil || got != ([3]Flip{}) {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = Flips(Request{PrefixTokens: 100}, Model{}, Compute{}, Link{})
	if err != nil || got[FigureGoodput].Known || got[FigurePrefill].Known || !got[FigurePrefix].Known || got[FigurePrefix].Found {
		t.Errorf("nothing known: %+v, %v", got, err)
	}
	if s := FigureGoodput.String() + FigurePrefill.String() + FigurePrefix.String() + Figure(9).String(); s != "goodputprefillprefixfigure" {
		t.Errorf("%q", s)
	}
}

// At what Flips says another mode wins, that mode does; nearer to what the figure is, on a fine grid, the same as before does.
func TestFlipsAgainstGrid(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(25, 26))
	found := 0
	for range 60 {
		s := world(rng)
		s.r.Hybrid, s.r.Deadline = rng.IntN(2) == 0, 0
		s.m.BlockTokens = 1 // with blocks the tokens after the last whole one make a saw of the prefix
		d := s.decide(t)
		flips, err := Flips(s.r, s.m, s.c, s.l)
		if err != nil {
			t.Fatal(err)
		}
		v := varied{s.r, s.m, s.c, s.l}
		for _, f := range flips {
			if !f.Found {
				continue
			}
			found++
			k := f.At / f.Now
			if got := v.winner(f.Figure, k); got != f.Winner || got == d.Winner {
				t.Fatalf("%+v: %v wins there, %v before; %+v", f, got, d.Winner, s)
			}
			for i := range 50 {
				near := math.Pow(k, float64(i)/50*(1-1e-5))
				if f.Figure == FigurePrefix && math.Abs(near-k)*f.Now < 2 {
					continue
				}
				if got := v.winner(f.Figure, near); got != d.Winner && got != ModeNone && math.Abs(math.Log(k)) < math.Log(2)/2 {
					t.Fatalf("%+v: %v wins already at %v of it, %v before; %+v", f, got, near, d.Winner, s)
				}
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d flips in 60 decisions", found)
	}
}
