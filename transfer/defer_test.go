package transfer

import (
	"testing"
	"time"
)

// TestDefers holds when a stripe leaves chunks to others against what list
// scheduling does: it takes one if the others would not be done with everything by
// the time it is done with that.
func TestDefers(t *testing.T) {
	const unit = minTailChunk
	now := time.Unix(1000, 0)
	type other struct {
		window  float64 // chunks a round trip of 100 ms
		writing int64   // chunks
		ago     time.Duration
	}
	for _, tc := range []struct {
		name   string
		window float64 // of the one that asks; 0: its speed is not known
		others []other
		chunks int  // that wait
		again  bool // one of them was asked for again
		want   bool
	}{
		{name: "alone", window: 0.03, chunks: 4},
		{name: "alike, one waits", window: 1, others: []other{{window: 1}, {window: 1}}, chunks: 1},
		{name: "alike, many wait", window: 1, others: []other{{window: 1}, {window: 1}}, chunks: 40},
		{name: "cold, few wait", window: 0.03, others: []other{{window: 2}, {window: 2}}, chunks: 4, want: true},
		{name: "cold, many wait", window: 0.03, others: []other{{window: 2}, {window: 2}}, chunks: 40},
		{name: "half as fast, the others do one each", window: 1, others: []other{{window: 2}, {window: 2}}, chunks: 3},
		{name: "half as fast, two wait", window: 1, others: []other{{window: 2}, {window: 2}}, chunks: 2, want: true},
		{name: "the others are busy", window: 1, others: []other{{window: 2, writing: 2}, {window: 2, writing: 2}}, chunks: 2},
		{name: "the others are almost done", window: 1, others: []other{{window: 2, writing: 2, ago: 95 * time.Millisecond}, {window: 2, writing: 2, ago: 95 * time.Millisecond}}, chunks: 2, want: true},
		{name: "the others are long overdue", window: 1, others: []other{{window: 2, writing: 2, ago: time.Second}, {window: 2, writing: 2, ago: time.Second}}, chunks: 2},
		{name: "one was asked for again", window: 0.03, others: []other{{window: 2}, {window: 2}}, chunks: 4, again: true},
		{name: "not known", others: []other{{window: 2}, {window: 2}}, chunks: 4},
		{name: "nothing known of the others", window: 0.03, others: []other{{}, {}}, chunks: 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			speedOf := func(window float64) func() speed {
				if window == 0 {
					return nil
				}
				return func() speed { return speed{window * unit, 100 * time.Millisecond} }
			}
			l := testLink()
			l.agent.cfg.ChunkBytes = unit
			q := &l.sched
			f := queuedFlow(l, Interactive, Share{}, tc.chunks*unit/(64<<10), time.Time{})
			if n := f.whole(0, 0).bytes(); n != unit {
				t.Fatalf("chunks of %d bytes", n)
			}
			q.addStripe(1, speedOf(tc.window))
			for i, o := range tc.others {
				q.addStripe(uint32(i+2), speedOf(o.window))
				q.live[uint32(i+2)].writing, q.live[uint32(i+2)].since = o.writing*unit, now.Add(-o.ago)
			}
			q.start(f)
			if tc.again {
				c, _ := f.pop(1, true)
				f.unpop(c)
			}
			wait, got := q.defersLocked(1, f.class, now)
			if got != tc.want || got && wait <= 0 {
				t.Errorf("defers %v, looks again in %v; want %v", got, wait, tc.want)
			}
		})
	}
}
