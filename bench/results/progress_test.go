package results

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		p := OpenProgress(&b)
		time.Sleep(2500 * time.Millisecond) // no stage: nothing to say
		p.Stage("fetch", 10)
		for range 10 {
			p.Add(1)
			time.Sleep(1070 * time.Millisecond)
		}
		p.Say("fetch %s", "done\n")
		p.Stage("search", 0)
		time.Sleep(2 * time.Second)
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p.Say("too late")
		p.Stage("too late", 1)
		want := []string{
			"fetch 20 %, about 6s left, 4s so far",
			"fetch 40 %, about 6s left, 6s so far",
			"fetch 60 %, about 4s left, 8s so far",
			"fetch 80 %, about 2s left, 10s so far",
			"fetch 90 %, about 2s left, 12s so far",
			"fetch done ",
			"search, 14s so far",
			"",
		}
		if d := cmp.Diff(want, strings.Split(b.String(), "\n")); d != "" {
			t.Errorf("lines (-want +got):\n%s", d)
		}
	})
}

func TestProgressTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		p := OpenProgress(&b)
		p.mu.Lock()
		p.terminal = true
		p.mu.Unlock()
		p.Stage("a rather long name", 4)
		p.Add(1)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		p.Stage("b", 4)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		p.Say("hello")
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		long := "a rather long name [#####...............] 25 %, about 6s left, 2s so far"
		short := "b [....................] 0 %, 4s so far"
		blank := func(s string) string { return "\r" + strings.Repeat(" ", len(s)) + "\r" }
		want := "\r" + long + "\r" + short + strings.Repeat(" ", len(long)-len(short)) + blank(short) + "hello\n" +
			"\r" + strings.Replace(short, "4s", "6s", 1) + blank(short)
		if d := cmp.Diff(want, b.String()); d != "" {
			t.Errorf("bytes (-want +got):\n%s", d)
		}
	})
}

func TestProgressNil(t *testing.T) {
	p := OpenProgress(nil)
	p.Stage("x", 1)
	p.Add(1)
	p.Say("x")
	if err := p.Close(); err != nil || p != nil {
		t.Errorf("progress is %v, closing says %v", p, err)
	}
}

// TestProgressTogether is for the race detector.
func TestProgressTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		p := OpenProgress(&b)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					p.Stage("s", 50)
					p.Add(1)
					p.Say("x")
					time.Sleep(time.Second)
				}
			})
		}
		wg.Wait()
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "x\n"); n != 400 {
			t.Errorf("%d lines are whole, want 400", n)
		}
	})
}

func TestRoundTime(t *testing.T) {
	for d, want := range map[time.Duration]time.Duration{
		0: 0, 1: time.Second, 1500 * time.Millisecond: 2 * time.Second, time.Hour + 1: time.Hour + time.Minute,
	} {
		if got := roundTime(d); got != want {
			t.Errorf("roundTime(%v) = %v, want %v", d, got, want)
		}
	}
}
