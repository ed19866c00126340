package goodput

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/transfer"
)

// A Measure is one transfer as measured. What could not be measured is nil.
type Measure struct {
	// Complete: every page arrived. A transfer that was interrupted counts what had arrived.
	Complete bool `json:"complete"`
	// Bytes of verified pages, and the time for them.
	Bytes int64 `json:"bytes"`
	// CodedBytes is what those took on their way: less than Bytes where pages were coded.
	CodedBytes int64   `json:"coded_bytes"`
	Seconds    float64 `json:"seconds"`
	// GoodputBps is bits of verified pages a second, as they travelled; EffectiveBps the same decoded. See the package
	// documentation for what is known between daemons.
	GoodputBps   float64 `json:"goodput_bps"`
	EffectiveBps float64 `json:"effective_bps"`
	// RampSeconds is the time until goodput, in windows of 100 ms, first reached nine tenths of its steady value, the
	// median over the second half; nil for transfers shorter than four windows.
	RampSeconds *float64 `json:"ramp_seconds"`
	// ChunkP50, ChunkP99 and ChunkMean are latencies of chunks, seconds.
	ChunkP50  *float64 `json:"chunk_p50_seconds"`
	ChunkP99  *float64 `json:"chunk_p99_seconds"`
	ChunkMean *float64 `json:"chunk_mean_seconds"`
	// Stripes are the link's connections at the end of the transfer; 0: not known.
	Stripes int `json:"stripes"`
	// RTTMin and RTTSmoothed are the link's at the end of the transfer, as QUIC has them at the source, seconds.
	RTTMin      *float64 `json:"rtt_min_seconds"`
	RTTSmoothed *float64 `json:"rtt_smoothed_seconds"`
	// PacketsSent are QUIC packets that the source sent, without parity. PacketsLost are those that QUIC took for lost: it sent
	// their content again. PacketsRepaired were lost, and rebuilt from parity at the destination before QUIC noticed.
	PacketsSent     *int64 `json:"packets_sent"`
	PacketsLost     *int64 `json:"packets_lost"`
	PacketsRepaired *int64 `json:"packets_repaired"`
	// ParityPackets and ParityBytes are what the source sent beside them for repair.
	ParityPackets *int64 `json:"parity_packets"`
	ParityBytes   *int64 `json:"parity_bytes"`
	// WireBytes that the source sent, QUIC's overhead and parity included, headers of UDP and IP not.
	WireBytes int64 `json:"wire_bytes"`
	// PagesAgain were asked for more than once, PagesDouble arrived so.
	PagesAgain  int64 `json:"pages_again"`
	PagesDouble int64 `json:"pages_double"`

	cpu   cpuSplit
	lag   time.Duration
	share float64 // of the processors
	drops dropCount

	daemonCPU [2]float64 // between daemons: seconds of source and destination; negative: not known
}

// dropCount is what the model link dropped.
type dropCount struct{ loss, queue, receiver int64 }

// gb is 1e9 bytes moved.
func (m *Measure) gb() float64 { return float64(m.Bytes) / 1e9 }

// transferOnce runs one transfer. cutFor cuts the link at the middle. An interrupted transfer is no error.
func (p *pair) transferOnce(ctx context.Context, cutFor time.Duration, tell func(done int64, bps float64)) (*Measure, error) {
	clear(p.rig.to)
	rec := newRecorder(p.rig.blocks, p.rig.cfg.PagesPerBlock, p.rig.cfg.PageBytes)
	p.rec.Store(rec)
	defer p.rec.Store(nil)
	var x *transfer.Transfer
	var err error
	asEnd(ctx, endDestination, func(ctx context.Context) {
		x, err = p.link.Prepare(transfer.Read, p.rig.descs(p.to), p.rig.descs(p.from), transfer.TransferOptions{OnLanded: rec.landed})
	})
	if err != nil {
		return nil, err
	}
	defer func() { _ = x.Release() }() // always nil

	before, wire := p.sending(), p.rig.net.Stats(p.source, p.destination)
	lag, cpu := startLag(), startCPU(!p.rig.cfg.virtual)
	asEnd(ctx, endDestination, func(ctx context.Context) { err = x.Post(context.WithoutCancel(ctx)) }) // a cancelled one would have nothing to report
	var samples []int64
	if err == nil {
		samples = p.watch(ctx, x, cutFor, tell)
	}
	m := &Measure{cpu: cpu.stop(), lag: lag.stop()}
	if err != nil {
		return nil, fmt.Errorf("start transfer: %w", err)
	}
	if ctx.Err() != nil {
		x.Cancel()
	}
	res, err := x.Wait(context.WithoutCancel(ctx)) // it is over, or cancelled
	if err != nil && !(ctx.Err() != nil && errors.Is(err, transfer.ErrCancelled)) {
		return nil, fmt.Errorf("transfer over %s: %w", count(p.stripes), err)
	}
	m.fill(res, samples, rec)
	m.account(before, p.sending())
	after := p.rig.net.Stats(p.source, p.destination)
	m.drops = dropCount{after.DroppedLoss - wire.DroppedLoss, after.DroppedQueue - wire.DroppedQueue, after.DroppedReceiver - wire.DroppedReceiver}
	if !p.rig.cfg.virtual {
		m.share = m.cpu.total / max(m.Seconds, 1e-9) / float64(processors())
	}
	if m.Complete && p.rig.damaged() {
		return nil, errors.New("BUG: the transfer is complete, the bytes differ")
	}
	return m, nil
}

// watch samples the transfer until it or ctx is over and returns the verified bytes at the end of each whole window.
func (p *pair) watch(ctx context.Context, x *transfer.Transfer, cutFor time.Duration, tell func(int64, float64)) (samples []int64) {
	var wg sync.WaitGroup
	done := make(chan struct{})
	waiting, stop := context.WithCancel(ctx)
	defer wg.Wait()
	defer stop()
	wg.Go(func() { // ends with the transfer or with this call
		_, _ = x.Wait(waiting) // asked for again by the caller
		close(done)
	})
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	var heal <-chan time.Time // once the link is cut
	var last int64
	for {
		var changed <-chan struct{} // every page would wake us, so only until the link is cut
		if cutFor > 0 && heal == nil {
			changed = x.Changed()
			if at := x.Progress(); at.BytesDone >= at.BytesTotal/2 {
				p.rig.net.Cut(p.source, p.destination)
				defer p.rig.net.Heal(p.source, p.destination)
				timer := time.NewTimer(cutFor)
				defer timer.Stop()
				heal, changed = timer.C, nil
			}
		}
		select {
		case <-done:
			return samples
		case <-heal:
			p.rig.net.Heal(p.source, p.destination)
		case <-tick.C:
			at := x.Progress().BytesDone
			samples = append(samples, at)
			tell(at, float64(at-last)*8/sampleEvery.Seconds())
			last = at
		case <-changed:
		}
	}
}

// fill takes what the destination knows.
func (m *Measure) fill(res transfer.Result, samples []int64, rec *recorder) {
	m.Complete = res.State == transfer.Done
	m.Bytes, m.CodedBytes, m.Seconds = res.BytesDone, res.CodedBytes, res.Duration.Seconds()
	m.PagesAgain, m.PagesDouble = int64(res.PagesAgain), int64(res.PagesDouble)
	if m.Seconds > 0 {
		m.GoodputBps, m.EffectiveBps = float64(m.CodedBytes)*8/m.Seconds, float64(m.Bytes)*8/m.Seconds
	}
	if m.Complete {
		m.RampSeconds = ramp(samples)
	}
	if l := rec.latencies(); len(l) > 0 {
		var sum float64
		for _, s := range l {
			sum += s
		}
		m.ChunkP50, m.ChunkP99, m.ChunkMean = ptr(results.Quantile(l, 0.5)), ptr(results.Quantile(l, 0.99)), ptr(sum/float64(len(l)))
	}
}

// account takes what the source's side of the link counted.
func (m *Measure) account(before, after transfer.LinkStats) {
	if after.Stripes == 0 || after.PacketsSent < before.PacketsSent {
		return // the link was made anew meanwhile
	}
	parity := int64(after.Repair.ParityBytes - before.Repair.ParityBytes)
	m.Stripes, m.WireBytes = after.Stripes, int64(after.BytesSent-before.BytesSent)+parity
	m.PacketsSent, m.PacketsLost = ptr(int64(after.PacketsSent-before.PacketsSent)), ptr(int64(after.PacketsLost-before.PacketsLost))
	m.PacketsRepaired = ptr(int64(after.Repair.Repaired - before.Repair.Repaired))
	m.ParityPackets, m.ParityBytes = ptr(int64(after.Repair.ParityPackets-before.Repair.ParityPackets)), &parity
	m.RTTMin, m.RTTSmoothed = ptr(after.RTTMin.Seconds()), ptr(after.RTTSmoothed.Seconds())
}

// ramp finds, in verified bytes at the ends of windows of sampleEvery, the end of the first window whose rate is nine tenths of
// the median of the second half; nil when there are fewer than four windows or nothing moved.
func ramp(samples []int64) *float64 {
	if len(samples) < 4 {
		return nil
	}
	rates := make([]float64, len(samples))
	var last int64
	for i, s := range samples {
		rates[i], last = float64(s-last), s
	}
	want := 0.9 * results.Median(rates[len(rates)/2:])
	if want <= 0 {
		return nil
	}
	for i, r := range rates {
		if r >= want {
			return ptr((time.Duration(i+1) * sampleEvery).Seconds())
		}
	}
	return nil
}

func ptr[T any](v T) *T { return &v }
