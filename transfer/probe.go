package transfer

import (
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/transfer/wire"
)

// probeTimeout is how long a stripe may leave a ping unanswered while others
// answer theirs: several round trips of any path, with a retransmission.
const probeTimeout = 3 * time.Second

// probe looks for stripes that are dead and do not know it yet: every stripe
// gets a ping, and those that receive no packet in return, where others do, are
// closed. What they carried is then asked for over the others, and the dialler
// replaces them. With no stripe that answers the link as a whole is silent, which
// the idle timeout is for. It is called when a transfer makes no progress, does
// not block, and does nothing while a probe runs.
func (l *Link) probe() {
	ping, err := wire.AppendFrame(nil, wire.TypePing, 0, 0, nil)
	if err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.probing || l.mu.ended || len(l.mu.stripes) < 2 {
		return
	}
	l.mu.probing = true
	before := make(map[*stripe]uint64, len(l.mu.stripes))
	for _, s := range l.mu.stripes {
		before[s] = s.conn.ConnectionStats().PacketsReceived
		if l.out.pushOver(ping, s) != nil {
			break
		}
	}
	l.wg.Go(func() { l.judge(before) })
}

// closeStripe closes a stripe that the peer has lost, which this side may not
// know yet.
func (l *Link) closeStripe(number uint32) {
	l.mu.Lock()
	s := l.mu.stripes[number]
	l.mu.Unlock()
	if s != nil {
		l.sched.dropStripe(number)
		_ = s.conn.CloseWithError(quic.ApplicationErrorCode(CodeStripeLost), "lost at the peer")
	}
}

// judge is owned by the link.
func (l *Link) judge(before map[*stripe]uint64) {
	timer := time.NewTimer(probeTimeout)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.ctx.Done():
	}
	var silent []*stripe
	for s, n := range before {
		if s.conn.ConnectionStats().PacketsReceived == n {
			silent = append(silent, s)
		}
	}
	l.mu.Lock()
	l.mu.probing = false
	l.mu.Unlock()
	if len(silent) == len(before) {
		return
	}
	for _, s := range silent {
		_ = s.conn.CloseWithError(quic.ApplicationErrorCode(CodeStripeLost), "no packet in return")
	}
}
