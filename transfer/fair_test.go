package transfer

import (
	"fmt"
	"math"
	mrand "math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// queuedFlow starts a flow of one descriptor of pages pages of 64 KiB.
func queuedFlow(l *Link, class Class, share Share, pages int, deadline time.Time) *outflow {
	f := testFlow(l, 1, pages, 64<<10)
	f.class, f.share, f.sched.deadline = class, share, deadline
	return f
}

// sim drives a scheduler at random and keeps what it should know.
type sim struct {
	t    *testing.T
	rng  *mrand.Rand
	l    *Link
	live []*simFlow // in order of arrival
}

type simFlow struct {
	f     *outflow
	left  int64
	order int
}

// next asks class by class, the lowest first: a sender of a lower class must
// find nothing while a higher one has something.
func (s *sim) next(stripe uint32) (chunk, bool) {
	q := &s.l.sched
	q.mu.Lock()
	defer q.mu.Unlock()
	for c := Class(classes - 1); ; c-- {
		if got, _, ok := q.next(stripe, c); ok {
			return got, true
		}
		if c == 0 {
			return chunk{}, false
		}
	}
}

// TestSchedulerOrder drives schedulers at random against a plain reference: the
// chunk is one of the highest class that has any, and within its tenant of the
// transfer with the earliest deadline, or the least left; nobody waits while
// there is something to send.
func TestSchedulerOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for seed := range uint64(100) {
			s := &sim{t: t, rng: mrand.New(mrand.NewPCG(seed, 1)), l: testLink()}
			s.l.sched.rules.ageAfter = -1
			s.l.sched.addStripe(1, nil)
			base := time.Now()
			for step := range 600 {
				if step < 400 && s.rng.IntN(4) == 0 {
					var deadline time.Time
					if s.rng.IntN(2) == 0 {
						deadline = base.Add(time.Duration(1+s.rng.IntN(5)) * time.Second)
					}
					f := queuedFlow(s.l, Class(s.rng.IntN(classes)), Share{Tenant: fmt.Sprint(s.rng.IntN(4)), Weight: float64(1 + s.rng.IntN(3))}, 1+s.rng.IntN(60), deadline)
					s.l.sched.start(f)
					s.live = append(s.live, &simFlow{f: f, left: f.bytes(), order: step})
				}
				if len(s.live) > 0 && s.rng.IntN(60) == 0 {
					i := s.rng.IntN(len(s.live))
					s.l.sched.stop(s.live[i].f)
					s.live = slices.Delete(s.live, i, i+1)
				}
				got, ok := s.next(1)
				if ok != (len(s.live) > 0) {
					t.Fatalf("seed %d step %d: a chunk %v with %d transfers to send", seed, step, ok, len(s.live))
				}
				if ok {
					s.check(seed, step, got)
				}
			}
			if n := s.l.sched.queued; n != [classes]int64{} && len(s.live) == 0 {
				t.Fatalf("seed %d: %v bytes are queued with nothing to send", seed, n)
			}
		}
	})
}

func (s *sim) check(seed uint64, step int, got chunk) {
	s.t.Helper()
	var me *simFlow
	for _, f := range s.live {
		if f.f == got.flow {
			me = f
		}
	}
	if me == nil {
		s.t.Fatalf("seed %d step %d: a chunk of a transfer that is over", seed, step)
	}
	for _, o := range s.live {
		if o.f.class < me.f.class {
			s.t.Fatalf("seed %d step %d: a chunk of class %v while %v is ready", seed, step, me.f.class, o.f.class)
		}
		if o == me || o.f.class != me.f.class || o.f.share.Tenant != me.f.share.Tenant {
			continue
		}
		a, b := o.f.sched.deadline, me.f.sched.deadline
		first := false
		switch {
		case a.IsZero() != b.IsZero():
			first = b.IsZero()
		case !a.Equal(b):
			first = a.Before(b)
		case a.IsZero() && o.left != me.left:
			first = o.left < me.left
		default:
			first = o.order < me.order
		}
		if first {
			s.t.Fatalf("seed %d step %d: chunk of (deadline %v, %d left, from %d) while (%v, %d, %d) waits", seed, step, b, me.left, me.order, a, o.left, o.order)
		}
	}
	s.l.sched.sent(got, 1, false)
	if me.left -= got.bytes(); me.left == 0 {
		s.live = slices.DeleteFunc(s.live, func(f *simFlow) bool { return f == me })
	}
}

// TestShares holds tenants to their weights: over any time in which two of them
// have something to send, what each got over its weight differs by no more than a
// chunk of each over its weight (Goyal, Vin, Cheng 1996, theorem 1).
func TestShares(t *testing.T) {
	for seed := range uint64(60) {
		rng := mrand.New(mrand.NewPCG(seed, 2))
		l := testLink()
		q := &l.sched
		q.addStripe(1, nil)
		const tenants = 4
		var weight, got [tenants]float64
		var pending [tenants]int64
		for i := range weight {
			weight[i] = math.Exp2(float64(rng.IntN(5) - 2))
		}
		type span struct{ low, high float64 }
		together := map[[2]int]*span{} // of got over weight, while both have something
		for step := range 3000 {
			if i := rng.IntN(tenants); step < 2500 && rng.IntN(3) == 0 && pending[i] < 64<<20 {
				f := queuedFlow(l, Interactive, Share{Tenant: fmt.Sprint(i), Weight: weight[i]}, 1+rng.IntN(70), time.Time{})
				q.start(f)
				pending[i] += f.bytes()
			}
			q.mu.Lock()
			c, _, ok := q.next(1, Interactive)
			q.mu.Unlock()
			if !ok {
				continue
			}
			q.sent(c, 1, false)
			var i int
			_, _ = fmt.Sscan(c.flow.share.Tenant, &i)
			had := pending
			pending[i] -= c.bytes()
			got[i] += float64(c.bytes()) / weight[i]
			for a := range tenants {
				for b := range a {
					k := [2]int{a, b}
					if had[a] == 0 || had[b] == 0 {
						delete(together, k)
						continue
					}
					d := got[a] - got[b]
					s := together[k]
					if s == nil {
						before := d
						if i == a {
							before -= float64(c.bytes()) / weight[a]
						} else if i == b {
							before += float64(c.bytes()) / weight[b]
						}
						s = &span{before, before}
						together[k] = s
					}
					s.low, s.high = min(s.low, d), max(s.high, d)
					if bound := 1 << 20 * (1/weight[a] + 1/weight[b]); s.high-s.low > bound*1.000001 {
						t.Fatalf("seed %d step %d: tenants of weight %v and %v are %.0f bytes apart, bound %.0f", seed, step, weight[a], weight[b], s.high-s.low, bound)
					}
				}
			}
		}
		if n := len(q.queues[Interactive].tenants); n > tenants {
			t.Fatalf("%d tenants remembered", n)
		}
	}
}

// TestIdleTenantsAreBounded: tenants that come once leave nothing behind for good.
func TestIdleTenantsAreBounded(t *testing.T) {
	l := testLink()
	q := &l.sched
	q.addStripe(1, nil)
	q.start(queuedFlow(l, Interactive, Share{Tenant: "big"}, 1<<16, time.Time{}))
	for i := range 5000 {
		q.start(queuedFlow(l, Interactive, Share{Tenant: fmt.Sprint(i), Weight: minWeight}, 1, time.Time{}))
		q.mu.Lock()
		c, _, ok := q.next(1, Interactive)
		q.mu.Unlock()
		if !ok {
			t.Fatal("nothing to send")
		}
		q.sent(c, 1, false)
	}
	idle := 0
	for _, f := range q.queues[Interactive].tenants {
		if len(f.flows) == 0 {
			idle++
		}
	}
	if idle > maxIdleTenants {
		t.Errorf("%d idle tenants are remembered, at most %d", idle, maxIdleTenants)
	}
}

// server takes chunks as fast as the link's rate allows, until nothing is left.
func server(q *scheduler, class Class, took func(chunk)) {
	for {
		c, ok := q.take(1, class)
		if !ok {
			return
		}
		took(c)
		q.sent(c, 1, false)
	}
}

// TestAging: a big transfer behind an endless supply of small ones of its tenant
// gets a quarter of the bytes once it is old, so that it ends within AgeAfter and four
// times its own length, and so does the next one after it.
func TestAging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLink()
		q := &l.sched
		const rate = 16 << 20 // a chunk of 1 MiB takes 62.5 ms
		q.rules.ageAfter = 5 * time.Second
		q.limit.setRate(rate, time.Now())
		q.addStripe(1, nil)
		const bigPages = 16 * 40
		var ends []time.Duration
		start := time.Now()
		bigs := []*outflow{queuedFlow(l, Interactive, Share{}, bigPages, time.Time{}), queuedFlow(l, Interactive, Share{}, bigPages, time.Time{})}
		for _, f := range bigs {
			q.start(f)
		}
		small := func() { q.start(queuedFlow(l, Interactive, Share{}, 32, time.Now().Add(time.Second))) } // a deadline does not help, either
		small()
		small()
		go server(q, Interactive, func(c chunk) {
			if c.flow != bigs[0] && c.flow != bigs[1] {
				if !c.flow.pending() {
					small()
				}
				return
			}
			if !c.flow.pending() {
				ends = append(ends, time.Since(start))
				if len(ends) == 2 {
					q.close()
				}
			}
		})
		synctest.Wait()
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		own := time.Duration(bigPages) * 64 << 10 * time.Second / rate
		chunkTime := time.Second * (1 << 20) / rate
		for i, end := range ends {
			least := 5*time.Second + time.Duration(i+1)*agedEvery*own - time.Duration(2*agedEvery)*chunkTime
			if most := 5*time.Second + time.Duration(i+1)*agedEvery*own + agedEvery*chunkTime; end > most || end < least {
				t.Errorf("big transfer %d of %v ended after %v, want %v to %v", i, own, end, least, most)
			}
		}
		if len(ends) != 2 {
			t.Errorf("%d big transfers ended", len(ends))
		}
	})
}

// TestCaps: chunks start at the nanosecond that the bytes before them take at the
// rate, for the link's and for a tenant's over two links.
func TestCaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 10_000_019 // nothing divides it
		l := testLink()
		q := &l.sched
		q.limit.setRate(rate, time.Now())
		q.addStripe(1, nil)
		f := queuedFlow(l, Background, Share{}, 16*100+3, time.Time{})
		start := time.Now()
		q.start(f)
		var sent int64
		go server(q, Background, func(c chunk) {
			want := time.Duration(math.Ceil(float64(sent) * 1e9 / rate))
			if got := time.Since(start); got < want-1 || got > want+1 {
				t.Errorf("chunk after %d bytes started at %v, want %v", sent, got, want)
			}
			if sent += c.bytes(); sent == f.bytes() {
				q.close()
			}
		})
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		if sent != f.bytes() {
			t.Errorf("%d of %d bytes", sent, f.bytes())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		const rate = 50 << 20
		agent := &Agent{cfg: Config{}.withDefaults()}
		var freeBytes, cappedBytes atomic.Int64 // of both links
		for range 2 {
			l := &Link{agent: agent}
			l.sched.init(agent.cfg.schedulerRules(), nil)
			q := &l.sched
			q.limit.setRate(400<<20, time.Now())
			q.addStripe(1, nil)
			q.start(queuedFlow(l, Interactive, Share{Tenant: "capped", Weight: 1000, MaxRate: rate}, 1<<20, time.Time{}))
			q.start(queuedFlow(l, Interactive, Share{Tenant: "free"}, 1<<20, time.Time{}))
			q.start(queuedFlow(l, Background, Share{Tenant: "lower"}, 1<<20, time.Time{}))
			for c := range Class(classes) {
				go server(q, c, func(c chunk) {
					switch c.flow.share.Tenant {
					case "capped":
						cappedBytes.Add(c.bytes())
					case "free":
						freeBytes.Add(c.bytes())
					default:
						t.Errorf("a chunk of a lower class")
					}
				})
			}
			defer q.close()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		free, capped := freeBytes.Load(), cappedBytes.Load()
		if capped < rate*10-2<<20 || capped > rate*10+2<<20+rate/100 {
			t.Errorf("the tenant got %d bytes in 10 s, its rate allows %d", capped, rate*10)
		}
		if all := free + capped; all < 2*400<<20*10-4<<20 || all > 2*400<<20*10+4<<20+2*4<<20 {
			t.Errorf("the links sent %d bytes in 10 s, their rates allow %d", all, 2*400<<20*10)
		}
	})
}

// TestThrottledTenantSavesNothingUp: the share that a tenant left to others while
// its rate held it back is not made up for later.
func TestThrottledTenantSavesNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLink()
		q := &l.sched
		const rate = 100 << 20
		q.limit.setRate(rate, time.Now())
		q.addStripe(1, nil)
		var capped int64
		q.start(queuedFlow(l, Interactive, Share{Tenant: "capped", MaxRate: rate * 2 / 5}, 1<<20, time.Time{}))
		q.start(queuedFlow(l, Interactive, Share{Tenant: "b"}, 1<<20, time.Time{}))
		go server(q, Interactive, func(c chunk) {
			if c.flow.share.Tenant == "capped" {
				capped += c.bytes()
			}
		})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if capped < rate*4-2<<20 || capped > rate*4+2<<20 {
			t.Errorf("%d bytes at its rate in 10 s, want %d", capped, rate*4)
		}
		before := capped
		q.start(queuedFlow(l, Interactive, Share{Tenant: "c"}, 1<<20, time.Time{}))
		q.start(queuedFlow(l, Interactive, Share{Tenant: "d"}, 1<<20, time.Time{}))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := capped - before; got < rate/2-2<<20 || got > rate/2+2<<20 {
			t.Errorf("%d bytes of a quarter of the link in 2 s, want %d", got, rate/2)
		}
		q.close()
	})
}

// TestThrottledClassLetsLowerOnesGo: a class that only its tenants' rates hold
// back holds nobody else back, and a stripe that a chunk must avoid serves others.
func TestThrottledClassLetsLowerOnesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLink()
		q := &l.sched
		q.addStripe(1, nil)
		q.addStripe(2, nil)
		q.limit.setRate(100<<20, time.Now())
		slow := queuedFlow(l, Interactive, Share{Tenant: "slow", MaxRate: 1 << 20}, 16*20, time.Time{})
		low := queuedFlow(l, Replication, Share{}, 16*1000, time.Time{})
		q.start(slow)
		q.start(low)
		var got [classes]int64
		for c := range Class(classes) {
			go server(q, c, func(k chunk) { got[c] += k.bytes() })
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got[Interactive] < 5<<20 || got[Interactive] > 6<<20 || got[Replication] < 490<<20 {
			t.Errorf("in 5 s the capped class got %d bytes, the lower one %d", got[Interactive], got[Replication])
		}
		q.close()
	})
	synctest.Test(t, func(t *testing.T) { // nothing else wakes the lower class's sender
		l := testLink()
		q := &l.sched
		q.addStripe(1, nil)
		capped := queuedFlow(l, Interactive, Share{Tenant: "slow", MaxRate: 1 << 20}, 16*3, time.Time{})
		low := queuedFlow(l, Background, Share{}, 16*1000, time.Time{})
		q.start(capped)
		q.start(low)
		var lows int
		go func() {
			for {
				c, ok := q.take(1, Background)
				if !ok {
					return
				}
				lows++
				q.sent(c, 1, false)
				time.Sleep(10 * time.Millisecond)
			}
		}()
		synctest.Wait()
		if lows != 0 {
			t.Errorf("%d chunks of a lower class while a higher one is ready", lows)
		}
		c, ok := q.take(1, Interactive)
		synctest.Wait()
		if !ok || lows != 1 {
			t.Errorf("%d chunks of the lower class once the higher one is at its rate", lows)
		}
		q.sent(c, 1, false)
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if lows < 49 || lows > 52 {
			t.Errorf("%d chunks of the lower class in half a second, want 50", lows)
		}
		q.close()
		time.Sleep(time.Second)
	})
	l := testLink()
	q := &l.sched
	q.addStripe(1, nil)
	q.addStripe(2, nil)
	high, low := queuedFlow(l, Interactive, Share{}, 1, time.Time{}), queuedFlow(l, Background, Share{}, 1, time.Time{})
	q.start(high)
	c, ok := q.take(1, Interactive)
	if !ok {
		t.Fatal("no chunk")
	}
	q.sent(c, 1, false)
	c.avoid = 1
	q.again(high, []chunk{c})
	q.start(low)
	next := func(stripe uint32, class Class) *outflow {
		q.mu.Lock()
		defer q.mu.Unlock()
		c, _, _ := q.next(stripe, class)
		return c.flow
	}
	if next(2, Background) != nil {
		t.Error("a lower class on the stripe that could take the chunk")
	}
	if next(1, Background) != low {
		t.Error("the stripe that the chunk avoids is idle")
	}
	if next(2, Interactive) != high {
		t.Error("the other stripe does not take it")
	}
}

// TestPlace: what is said to go before a transfer is what goes before it, to the
// byte within a tenant and to a chunk of each tenant beside others.
func TestPlace(t *testing.T) {
	for seed := range uint64(200) {
		rng := mrand.New(mrand.NewPCG(seed, 3))
		l := testLink()
		q := &l.sched
		q.addStripe(1, nil)
		tenants := 1 + rng.IntN(3)
		var flows []*outflow
		for range 2 + rng.IntN(6) {
			i := rng.IntN(tenants)
			f := queuedFlow(l, Class(rng.IntN(classes)), Share{Tenant: fmt.Sprint(i), Weight: float64(i + 1)}, 1+rng.IntN(200), time.Time{})
			flows = append(flows, f)
			q.start(f)
		}
		me := flows[rng.IntN(len(flows))]
		q.mu.Lock()
		at := q.placeLocked(me)
		q.mu.Unlock()
		var before int64
		for {
			var c chunk
			ok := false
			q.mu.Lock()
			for class := range Class(classes) {
				if c, _, ok = q.next(1, class); ok {
					break
				}
			}
			q.mu.Unlock()
			if !ok {
				t.Fatalf("seed %d: the transfer never came", seed)
			}
			q.sent(c, 1, false)
			if c.flow == me {
				break
			}
			before += c.bytes()
		}
		slack := int64(0)
		if tenants > 1 {
			slack = int64(tenants) * 4 << 20 // a chunk of each, by the ratio of the weights
		}
		if d := at.Bytes - before; !at.Waits || d < -slack || d > slack {
			t.Errorf("seed %d: said %+v, %d bytes went before it", seed, at, before)
		}
	}
}

// TestCharge: what a chunk counts for at its rates is what travels: less when it was coded, more when it goes twice.
func TestCharge(t *testing.T) {
	const pages = 16*100 + 3
	for name, tc := range map[string]struct {
		charge func(raw int64) int64
		factor float64
	}{
		"coded":    {func(raw int64) int64 { return -raw / 2 }, 0.5},
		"doubled":  {func(raw int64) int64 { return raw }, 2},
		"nothing":  {func(int64) int64 { return 0 }, 1},
		"too much": {func(int64) int64 { return math.MinInt32 }, 0},
	} {
		for _, tenant := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				const rate = 10_000_019
				l := testLink()
				q := &l.sched
				share := Share{}
				if tenant {
					share = Share{Tenant: "capped", MaxRate: rate}
				} else {
					q.limit.setRate(rate, time.Now())
				}
				q.addStripe(1, nil)
				f := queuedFlow(l, Background, share, pages, time.Time{})
				start := time.Now()
				var last time.Duration
				var sent, before int64 // before the last chunk
				q.start(f)
				go server(q, Background, func(c chunk) {
					last = time.Since(start)
					before, sent = sent, sent+c.bytes()
					q.charge(c, tc.charge(c.bytes()))
					if sent == f.bytes() {
						q.close()
					}
				})
				time.Sleep(time.Hour)
				synctest.Wait()
				want := time.Duration(tc.factor * float64(before) * 1e9 / rate)
				if sent != f.bytes() || last < want-time.Microsecond || last > want+time.Microsecond {
					t.Errorf("%s, of a tenant %v: %d of %d bytes, the last chunk after %v, want %v", name, tenant, sent, f.bytes(), last, want)
				}
			})
		}
	}
}
