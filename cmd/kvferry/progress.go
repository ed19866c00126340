package main

import (
	"fmt"
	"io"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// barAfter is how long a migration lasts before a bar appears, and how far apart plain lines are.
const barAfter = 2 * time.Second

// progress shows a migration on stderr: a bar on a terminal when it lasts, plain lines elsewhere, nothing with -o json
// unless there is a terminal. One goroutine uses it.
type progress struct {
	w        io.Writer
	terminal bool
	quiet    bool
	began    time.Time
	last     time.Time
	state    pb.MigrationState
	session  string

	bars *mpb.Progress
	bar  *mpb.Bar
}

func (a *app) newProgress(session, requestID string) *progress {
	p := &progress{
		w: a.stderr, terminal: a.terminal, quiet: a.output == outputJSON && !a.terminal,
		began: time.Now(), session: session,
	}
	p.line("migrating %s, request id %s", session, requestID)
	return p
}

func (p *progress) line(format string, args ...any) {
	if p.quiet || p.bars != nil {
		return
	}
	_, _ = fmt.Fprintf(p.w, format+"\n", args...) // a lost line of progress is no failure
}

// update shows where the migration stands.
func (p *progress) update(m *pb.Migration) {
	now := time.Now()
	if m.GetState() != p.state {
		p.state = m.GetState()
		p.last = now
		if m.GetState() != pb.MigrationState_MIGRATION_STATE_TRANSFERRING {
			p.close()
		}
		note := ""
		if plan := m.GetPlan(); plan != nil && m.GetState() == pb.MigrationState_MIGRATION_STATE_RESERVING {
			note = ": " + plan.GetReason()
		}
		p.line("%s%s", stateName(m.GetState()), note)
	}
	at := m.GetProgress()
	if m.GetState() != pb.MigrationState_MIGRATION_STATE_TRANSFERRING || at.GetBytesTotal() <= 0 {
		return
	}
	if !p.terminal {
		if now.Sub(p.last) >= barAfter {
			p.last = now
			p.line("  %d of %d pages, %s of %s", at.GetPagesDone(), at.GetPagesTotal(), bytesText(at.GetBytesDone()), bytesText(at.GetBytesTotal()))
		}
		return
	}
	if p.bars == nil && now.Sub(p.began) >= barAfter {
		p.open(at.GetBytesTotal())
	}
	if p.bar != nil {
		p.bar.SetTotal(at.GetBytesTotal(), false)
		p.bar.SetCurrent(at.GetBytesDone())
	}
}

// open starts the bar; mpb's goroutine draws it until close.
func (p *progress) open(total int64) {
	p.bars = mpb.New(mpb.WithOutput(p.w), mpb.WithWidth(48), mpb.WithAutoRefresh(), mpb.WithRefreshRate(150*time.Millisecond))
	p.bar = p.bars.AddBar(total,
		mpb.PrependDecorators(decor.Name(p.session, decor.WCSyncSpaceR), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.Percentage(decor.WC{W: 5}), decor.Name(" "), decor.AverageSpeed(decor.SizeB1024(0), "% .1f"), decor.Name(" "), decor.AverageETA(decor.ET_STYLE_GO)),
	)
}

// close ends the bar, leaving its last state on the screen. It may be called again.
func (p *progress) close() {
	if p.bars == nil {
		return
	}
	if !p.bar.Completed() {
		p.bar.Abort(false)
	}
	p.bars.Wait()
	p.bars, p.bar = nil, nil
}
