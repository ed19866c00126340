package steady

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

// Cell is one link to fill. Zero means the documented default.
type Cell struct {
	// WAN is the link, both directions alike. It has a Rate.
	WAN wan.Model
	// Warm is how long the transfer runs before the span. Default 40 round trips, at least 3 s.
	Warm time.Duration
	// Measure is the span. Default 50 round trips, at least 2 s.
	Measure time.Duration
	// Cold, when not zero, measures instead one transfer of so many bytes over fresh connections, from its start to its last page.
	Cold int64
	// PageBytes and PagesPerBlock are the shape of what moves. Defaults 64 KiB and 80.
	PageBytes, PagesPerBlock int
	// PacketCost is the processor time that a full packet costs each end; a small one costs a quarter of it. See the package
	// documentation. Default none.
	PacketCost time.Duration
	// Codec is that of both agents, as of transfer.Config, and has pages be BF16 values with the entropy of a cache's. Empty: pages are
	// noise, of which agents know nothing, and travel as they are.
	Codec string
	// Costs are of processor time that coding takes, by codec, at the source and at the destination. Default none.
	Costs map[codec.ID]Cost
	// Cores is how many processors each end has: what Costs and PacketCost charge takes turns on them, in order of arrival. Default no
	// bound: all of it side by side.
	Cores int
	// Agents edits the configuration of both agents, source and destination. Nil: their defaults.
	Agents func(*transfer.Config)
}

// Cost is what a codec takes of a processor, seconds a byte of pages before coding, 0 to 1e-6.
type Cost struct{ Encode, Decode float64 }

func (c Cell) withDefaults() Cell {
	if c.Warm == 0 {
		c.Warm = max(40*c.WAN.RTT, 3*time.Second)
	}
	if c.Measure == 0 {
		c.Measure = max(50*c.WAN.RTT, 2*time.Second)
	}
	if c.PageBytes == 0 {
		c.PageBytes = 64 << 10
	}
	if c.PagesPerBlock == 0 {
		c.PagesPerBlock = 80
	}
	return c
}

// bytes is what the cell's transfer moves: more than the link can carry in its time.
func (c Cell) bytes() int64 {
	want := c.Cold
	if want == 0 {
		want = int64(c.WAN.Rate / 8 * (c.Warm + c.Measure).Seconds())
		if c.Codec != "" {
			want *= 2 // no codec makes more of BF16
		}
	}
	block := int64(c.PageBytes) * int64(c.PagesPerBlock)
	return (want + block - 1) / block * block
}

// Validate reports what is not allowed, joined.
func (c Cell) Validate() error {
	errs := []error{c.WAN.Validate()}
	check := func(ok bool, field string, value any, allowed string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s %v: must be %s", field, value, allowed))
		}
	}
	check(c.WAN.Rate > 0, "rate", c.WAN.Rate, "above 0: a share of it is measured")
	check(c.Warm >= 0, "warm", c.Warm, "0 for the default, or more")
	check(c.Measure >= 0, "measure", c.Measure, "0 for the default, or more")
	check(c.Cold >= 0, "cold", c.Cold, "0 for steady state, or bytes")
	check(transfer.CheckCodec(c.Codec) == nil, "codec", c.Codec, "auto, off or a codec's name, or empty for noise")
	check(c.Cores >= 0 && c.Cores <= 1<<10, "cores", c.Cores, "1 to 1024, or 0 for no bound")
	for id, cost := range c.Costs {
		for _, v := range [...]float64{cost.Encode, cost.Decode} {
			check(v >= 0 && v <= 1e-6, fmt.Sprintf("costs of %v", id), v, "0 to 1e-6 s a byte")
		}
	}
	check(c.PacketCost >= 0 && c.PacketCost <= time.Millisecond, "packet cost", c.PacketCost, "0 to 1ms")
	c = c.withDefaults()
	check(c.PageBytes >= 4<<10 && c.PageBytes <= 4<<20, "page", c.PageBytes, "4 KiB to 4 MiB")
	check(c.PagesPerBlock >= 1 && c.PagesPerBlock <= 4096, "pages per block", c.PagesPerBlock, "1 to 4096")
	return errors.Join(errs...)
}

// PacketPayload is the share of a full packet on the in-memory link that is page bytes: of 1,280 bytes of UDP payload QUIC takes 30
// (flags 1, connection id 4, packet number 2, tag 16; frame type 1, stream id 2, offset 4; RFC 9000, sections 17.3.1 and 19.8), and IP
// and UDP add 28.
const PacketPayload = 1250.0 / 1308

// Measure is what a cell gave.
type Measure struct {
	// Bytes of verified pages in Seconds.
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	// WireBytes is what pages took that came in that time, less than theirs where they were coded, and CodedBytes is theirs of those.
	WireBytes  int64 `json:"wire_bytes"`
	CodedBytes int64 `json:"coded_bytes"`
	// Share is Bytes over what the link's rate carries in that time: with a codec more than 1 is possible.
	Share float64 `json:"share"`
	// Ceiling is the share that a perfect sender would have: PacketPayload times the data packets' part of what was sent.
	Ceiling float64 `json:"ceiling"`
	// OfCeiling is Share over Ceiling.
	OfCeiling float64 `json:"of_ceiling"`
	// Stripes at the end of the span.
	Stripes int `json:"stripes"`
	// PacketsSent by the source in the span, and those that QUIC took for lost.
	PacketsSent uint64 `json:"packets_sent"`
	PacketsLost uint64 `json:"packets_lost"`
	// DroppedLoss and DroppedQueue are what the link towards the destination dropped in the span.
	DroppedLoss  int64 `json:"dropped_loss"`
	DroppedQueue int64 `json:"dropped_queue"`
	// PagesDouble arrived though they were there; of the whole transfer.
	PagesDouble int `json:"pages_double"`
	// Repair is the packet repair in use at the end of the span: k data packets to r of parity, interleaved; empty without.
	Repair string `json:"repair"`
	// RampSeconds is the time from the start until a tenth of a second first had nine tenths of Share; 0 when none had.
	RampSeconds float64 `json:"ramp_seconds"`
}

// Run measures a cell. Errors: Validate's, those of package transfer, context.Cause(ctx).
func Run(ctx context.Context, c Cell) (_ *Measure, err error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	r, err := newRig(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	began := time.Now()
	x, err := r.start(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = x.Release() }() // always nil
	var m *Measure
	if c.Cold > 0 {
		before := r.count()
		if _, err := x.Wait(ctx); err != nil {
			return nil, err
		}
		m = r.between(before, r.count())
	} else {
		ramp := &ramp{began: began, r: r}
		if err := ramp.until(ctx, c.Warm); err != nil {
			return nil, err
		}
		before := r.count()
		if err := ramp.until(ctx, c.Warm+c.Measure); err != nil {
			return nil, err
		}
		m = r.between(before, r.count())
		m.RampSeconds = ramp.reached(0.9 * m.Share * c.WAN.Rate / 8)
		x.Cancel()
		if _, err := x.Wait(ctx); err != nil && !errors.Is(err, transfer.ErrCancelled) {
			return nil, err
		}
	}
	m.PagesDouble = x.Progress().PagesDouble
	return m, nil
}

// ramp notes what has landed every tenth of a second.
type ramp struct {
	began  time.Time
	r      *rig
	landed []int64
}

const rampStep = 100 * time.Millisecond

// until goes on until so long after the beginning.
func (s *ramp) until(ctx context.Context, d time.Duration) error {
	for {
		next := time.Duration(len(s.landed)+1) * rampStep
		step := min(next, d) - time.Since(s.began)
		if step > 0 {
			t := time.NewTimer(step)
			select {
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return context.Cause(ctx)
			}
		}
		if next <= d {
			s.landed = append(s.landed, s.r.pages.landed.Load())
		}
		if next >= d {
			return nil
		}
	}
}

// reached is when a step first had that rate, bytes a second; 0 for never.
func (s *ramp) reached(rate float64) float64 {
	var last int64
	for i, n := range s.landed {
		if float64(n-last) >= rate*rampStep.Seconds() {
			return (time.Duration(i+1) * rampStep).Seconds()
		}
		last = n
	}
	return 0
}
