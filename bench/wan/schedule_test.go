package wan

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseSchedule(t *testing.T) {
	t.Parallel()
	base := Model{RTT: 70 * time.Millisecond, Rate: 1e8, Loss: 0.5}
	got, err := ParseSchedule(strings.NewReader("# a day\n\nat 10s set rtt=150ms,rate=50Mbps\n  at 20s cut\nat 25s heal\nat 25s set loss=0\nat 30s stop\n"), base)
	if err != nil {
		t.Fatal(err)
	}
	slow := Model{RTT: 150 * time.Millisecond, Rate: 5e7, Loss: 0.5}
	clean := slow
	clean.Loss = 0
	want := Schedule{{10 * time.Second, Set, slow, 3}, {20 * time.Second, Cut, Model{}, 4}, {25 * time.Second, Mend, Model{}, 5}, {25 * time.Second, Set, clean, 6}, {30 * time.Second, Stop, Model{}, 7}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseScheduleRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"cut", `line 1: "cut": want "at TIME`},
		{"\nat 10 cut", `line 2: time "10": want a duration`},
		{"at -1s cut", `time "-1s"`},
		{"at 1s break", `action "break": want set, cut, heal or stop`},
		{"at 1s cut now", `nothing may follow cut`},
		{"at 1s set", "want one word after set"},
		{"at 1s set rtt=70ms rate=1Mbps", "want one word after set"},
		{"at 1s set rtt=70", "line 1: wan: rtt=70"},
		{"at 1s set speed=1", `unknown key "speed"`},
		{"at 1s set loss=2", "loss 2: want a probability"},
		{"at 2s cut\nat 1s heal", "line 2: at 1s comes after at 2s of line 1"},
		{"at 1s stop\nat 2s cut", `line 2: "at 2s cut" comes after the stop of line 1`},
		{strings.Repeat("#\n", maxSchedule/2+1), "more than 1048576 bytes"},
		{strings.Repeat("#", 1<<17), "a line is longer"},
	} {
		s, err := ParseSchedule(strings.NewReader(c.text), Model{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40q: %v, %v, want an error with %q", c.text, s, err, c.want)
		}
	}
}

// recorder notes what is done to it, with the time.
type recorder struct {
	began time.Time
	log   []string
}

func (r *recorder) note(text string) {
	r.log = append(r.log, fmt.Sprintf("%v %s", time.Since(r.began), text))
}
func (r *recorder) SetModel(m Model) error { r.note("set " + m.String()); return nil }
func (r *recorder) Cut()                   { r.note("cut") }
func (r *recorder) Heal()                  { r.note("heal") }

func TestScheduleRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, err := ParseSchedule(strings.NewReader("at 0s set rate=1Mbps\nat 1.5s cut\nat 2s heal\nat 2s set rtt=1s\nat 1h stop"), Model{})
		if err != nil {
			t.Fatal(err)
		}
		r := &recorder{began: time.Now()}
		var lines []int
		if !s.Run(t.Context(), r, func(e Event) { lines = append(lines, e.Line) }) {
			t.Error("not stopped")
		}
		r.note("end")
		want := []string{"0s set rtt=0s,rate=1Mbps,loss=0", "1.5s cut", "2s heal", "2s set rtt=1s,rate=1Mbps,loss=0", "1h0m0s end"}
		if diff := cmp.Diff(want, r.log); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]int{1, 2, 3, 4, 5}, lines); diff != "" {
			t.Error(diff)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if s.Run(ctx, &recorder{}, nil) {
			t.Error("stopped by a context that ended")
		}
		if Schedule(nil).Run(t.Context(), r, nil) {
			t.Error("an empty schedule has no stop")
		}
	})
}

func FuzzParseSchedule(f *testing.F) {
	f.Add([]byte("at 10s set rtt=150ms,rate=50Mbps\nat 20s cut\nat 25s heal\nat 30s stop\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseSchedule(bytes.NewReader(data), Model{})
		if err != nil {
			return
		}
		// What was read is what is written, line by line.
		var b strings.Builder
		for _, e := range s {
			fmt.Fprintf(&b, "at %v %v", e.At, e.Action)
			if e.Action == Set {
				b.WriteString(" " + e.Model.String())
				if err := e.Model.Validate(); err != nil {
					t.Error(err)
				}
			}
			b.WriteString("\n")
		}
		again, err := ParseSchedule(strings.NewReader(b.String()), Model{})
		if err != nil {
			t.Fatalf("%v in %q", err, b.String())
		}
		for i := range s {
			s[i].Line = i + 1
		}
		// Keys at their zero are not written, and keep what an earlier line set.
		if len(again) != len(s) {
			t.Errorf("%d events, want %d", len(again), len(s))
		}
	})
}

// ipEnd keeps what arrives.
type ipEnd struct {
	ok bool
	mu sync.Mutex
	// got is guarded by mu.
	got []byte
}

func (e *ipEnd) arrived() []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.got)
}

func (e *ipEnd) Receive(ip []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got = append(e.got, ip...)
	return e.ok
}

// A whole IP packet counts with its own length: no header is added.
func TestSendIP(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := OpenLink(Model{RTT: 20 * time.Millisecond, Rate: 8e6, MTU: 1000}, "ip") // a byte a microsecond
		defer func() { _ = l.Close() }()
		end := &ipEnd{ok: true}
		l.SendIP(make([]byte, 1001), end) // over the MTU
		l.SendIP(bytes.Repeat([]byte{1}, 1000), end)
		l.SendIP(bytes.Repeat([]byte{2}, 500), &ipEnd{})
		time.Sleep(11*time.Millisecond - 1)
		synctest.Wait()
		if len(end.arrived()) != 0 {
			t.Error("early")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := end.arrived(); !bytes.Equal(got, bytes.Repeat([]byte{1}, 1000)) {
			t.Errorf("got %d bytes", len(got))
		}
		time.Sleep(500 * time.Microsecond)
		synctest.Wait()
		want := LinkStats{Packets: 2, Bytes: 1500, Delivered: 1, DeliveredBytes: 1000, DroppedMTU: 1, DroppedReceiver: 1, MaxQueueBytes: 1500}
		if diff := cmp.Diff(want, l.Stats()); diff != "" {
			t.Error(diff)
		}
	})
}
