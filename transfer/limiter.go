package transfer

import (
	"math/bits"
	"sync"
	"time"
)

// burst is how much of its rate a limiter lets a late sender catch up on: timers
// fire late, and a rate would be lost a little at every chunk.
const burst = 10 * time.Millisecond

// limiter spaces chunks so that bytes flow at a rate. A chunk may start when the
// bytes before it are paid for, and is paid for after: n bytes started since a
// moment take (n - the last chunk) / rate seconds at least, less burst. With a
// sender that is never late the times are exact to the nanosecond. The zero
// limiter does not limit. It is safe for concurrent use.
type limiter struct {
	mu struct {
		sync.Mutex
		rate  uint64 // bytes a second, 0: unbounded
		base  time.Time
		bytes uint64 // started since base
	}
}

// setRate changes the rate from the next chunk on; 0 or less is unbounded.
func (l *limiter) setRate(bytesPerSec int64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rate := uint64(max(bytesPerSec, 0))
	if rate == l.mu.rate {
		return
	}
	l.mu.base, l.mu.bytes = l.nextLocked(), 0 // what was started is paid for at the old rate
	if l.mu.base.IsZero() {
		l.mu.base = now
	}
	l.mu.rate = rate
}

// nextLocked is when the next chunk may start.
func (l *limiter) nextLocked() time.Time {
	if l.mu.rate == 0 {
		return l.mu.base
	}
	hi, lo := bits.Mul64(l.mu.bytes, uint64(time.Second))
	if hi >= l.mu.rate { // 584 years
		return l.mu.base.Add(1<<63 - 1)
	}
	ns, rest := bits.Div64(hi, lo, l.mu.rate)
	if rest > 0 {
		ns++
	}
	return l.mu.base.Add(time.Duration(min(ns, 1<<62)))
}

// wait is how long it takes until a chunk may start; 0: one may.
func (l *limiter) wait(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waitLocked(now)
}

func (l *limiter) waitLocked(now time.Time) time.Duration {
	if l.mu.rate == 0 {
		return 0
	}
	return max(l.nextLocked().Sub(now), 0)
}

// take starts a chunk of n bytes if one may start; else it returns the wait.
func (l *limiter) take(now time.Time, n int64) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.rate == 0 {
		return 0
	}
	if d := l.waitLocked(now); d > 0 {
		return d
	}
	if now.Sub(l.nextLocked()) > burst {
		l.mu.base, l.mu.bytes = now.Add(-burst), 0
	}
	l.mu.bytes += uint64(n)
	return 0
}

// charge corrects what was started by n bytes: less, because a chunk was coded, or more, because it is written twice.
func (l *limiter) charge(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.rate == 0 {
		return
	}
	if n < 0 {
		l.mu.bytes -= min(uint64(-n), l.mu.bytes)
		return
	}
	l.mu.bytes += uint64(n)
}

// idle reports whether forgetting the limiter would let nothing through early.
func (l *limiter) idle(now time.Time) bool { return l.wait(now) == 0 }

// limiters are those of an agent's tenants, which its links share.
type limiters struct {
	mu struct {
		sync.Mutex
		byTenant map[string]*tenantLimiter
	}
}

type tenantLimiter struct {
	limiter
	users int // transfers; guarded by the lock of limiters
}

// use returns the limiter of the share's tenant; release must follow. Those that
// nobody uses and that owe nothing are dropped, so that there are at most as many
// as transfers, and as many as began within the time that a chunk takes.
func (ls *limiters) use(s Share, now time.Time) *tenantLimiter {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l := ls.mu.byTenant[s.Tenant]
	if l == nil {
		if s.MaxRate <= 0 {
			return nil
		}
		for name, old := range ls.mu.byTenant {
			if old.users == 0 && old.idle(now) {
				delete(ls.mu.byTenant, name)
			}
		}
		if ls.mu.byTenant == nil {
			ls.mu.byTenant = make(map[string]*tenantLimiter)
		}
		l = new(tenantLimiter)
		ls.mu.byTenant[s.Tenant] = l
	}
	l.users++
	l.setRate(s.MaxRate, now)
	return l
}

func (ls *limiters) release(l *tenantLimiter) {
	if l == nil {
		return
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.users--
}
