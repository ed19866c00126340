package results

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// progressEvery is the time between two lines of progress.
const progressEvery = 2 * time.Second

// Progress tells how far a benchmark is: a line every two seconds, rewritten in place on a terminal, with the share done
// and the time left at the stage's pace so far. The nil *Progress is valid and says nothing. Safe for concurrent use.
type Progress struct {
	w        io.Writer
	terminal bool
	stop     chan struct{}
	wg       sync.WaitGroup

	mu struct {
		sync.Mutex
		stage   string
		done    float64
		total   float64
		started time.Time // of the stage
		begun   time.Time // of it all
		shown   bool      // a line stands on the terminal, to be rewritten
		width   int       // of it
		closed  bool
	}
}

// OpenProgress starts telling on w, which gets one whole line a write and is not used after Close. A nil w gives a nil
// Progress. Close is owed.
func OpenProgress(w io.Writer) *Progress {
	if w == nil {
		return nil
	}
	p := &Progress{w: w, stop: make(chan struct{})}
	if f, ok := w.(*os.File); ok {
		st, err := f.Stat()
		p.terminal = err == nil && st.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	p.mu.begun = time.Now()
	p.wg.Go(p.tick)
	return p
}

// tick is the goroutine that tells, until Close.
func (p *Progress) tick() {
	t := time.NewTicker(progressEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			p.mu.Lock()
			p.print()
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// Stage begins a stage of so much work, in any unit; 0 or less for unknown. It is told at the next line.
func (p *Progress) Stage(name string, total float64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.stage, p.mu.done, p.mu.total, p.mu.started = name, 0, total, time.Now()
}

// Add adds to what is done of the stage.
func (p *Progress) Add(done float64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.done += done
}

// Say writes a line for good, above the progress.
func (p *Progress) Say(format string, args ...any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return
	}
	p.clear()
	fmt.Fprintln(p.w, oneLine(fmt.Sprintf(format, args...)))
}

// Close stops telling and clears the terminal's line. It is idempotent and returns when nothing more will be written.
func (p *Progress) Close() error {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	if !p.mu.closed {
		p.mu.closed = true
		p.clear()
		close(p.stop)
	}
	p.mu.Unlock()
	p.wg.Wait()
	return nil
}

// print writes the line. The lock is held: lines of several goroutines must not mix, and w is a terminal or a file.
func (p *Progress) print() {
	if p.mu.closed || p.mu.stage == "" {
		return
	}
	line := p.line(time.Now())
	if !p.terminal {
		fmt.Fprintln(p.w, line)
		return
	}
	pad := max(0, p.mu.width-width(line))
	fmt.Fprint(p.w, "\r"+line+strings.Repeat(" ", pad))
	p.mu.width, p.mu.shown = width(line), true
}

func (p *Progress) clear() {
	if p.mu.shown {
		fmt.Fprint(p.w, "\r"+strings.Repeat(" ", p.mu.width)+"\r")
		p.mu.shown, p.mu.width = false, 0
	}
}

// line says stage, share, time so far, time left.
func (p *Progress) line(now time.Time) string {
	var b strings.Builder
	b.WriteString(oneLine(p.mu.stage))
	spent := now.Sub(p.mu.started)
	if p.mu.total > 0 {
		share := min(max(p.mu.done/p.mu.total, 0), 1)
		if p.terminal {
			const cells = 20
			full := int(share * cells)
			b.WriteString(" [" + strings.Repeat("#", full) + strings.Repeat(".", cells-full) + "]")
		}
		fmt.Fprintf(&b, " %d %%", int(100*share))
		if share > 0 && share < 1 && spent > 0 {
			left := time.Duration(float64(spent) * (1 - share) / share)
			fmt.Fprintf(&b, ", about %s left", roundTime(left))
		}
	}
	fmt.Fprintf(&b, ", %s so far", roundTime(now.Sub(p.mu.begun)))
	return b.String()
}

// roundTime rounds up to whole seconds, and whole minutes from an hour on.
func roundTime(d time.Duration) time.Duration {
	unit := time.Second
	if d >= time.Hour {
		unit = time.Minute
	}
	return (d + unit - 1).Truncate(unit)
}
