package goodput

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/bench/results"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
)

// A path that loses one packet in a hundred is reported to, though repair hides nearly all of it from QUIC; parity is in the
// bytes of the wire.
func TestLossIsThePaths(t *testing.T) {
	o := inBubble(t, Config{WAN: model(t, "rtt=20ms,rate=200Mbps,loss=0.01,seed=1"), Bytes: 16 << 20, PagesPerBlock: 16, Repeats: 2, Codec: transfer.CodecOff}).Best()
	if o.Loss == nil || math.Abs(*o.Loss-0.01) > 0.003 {
		t.Errorf("loss %s, the path's is 0.01", text(o.Loss, "%.4f"))
	}
	if *o.LossUnrepaired >= *o.Loss/2 || *o.RepairedPackets < 1 || *o.ParityBytes <= 0 {
		t.Errorf("unrepaired %.4f of %.4f, %v repaired, %v bytes of parity", *o.LossUnrepaired, *o.Loss, *o.RepairedPackets, *o.ParityBytes)
	}
	var dropped, seen int64
	for _, m := range o.Runs {
		dropped, seen = dropped+m.drops.loss, seen+*m.PacketsLost+*m.PacketsRepaired
		if m.WireBytes < *m.PacketsSent*1000+*m.ParityBytes || *m.ParityPackets == 0 {
			t.Errorf("run %+v: parity is not in the bytes of the wire", m)
		}
	}
	// The link dropped parity as well, which is not counted, and some that both QUIC and parity made good count twice.
	if ratio := float64(seen) / float64(dropped); ratio < 0.6 || ratio > 1.3 {
		t.Errorf("%d packets said to be lost, the link dropped %d", seen, dropped)
	}
	if o.LimitedBy == LimitLoss && (strings.Contains(o.Why, "more stripes") || !strings.Contains(o.Why, "parity rebuilt")) {
		t.Errorf("limited by loss: %s", o.Why)
	}
}

// 0 stripes are as many as the path needs; a fixed number is compared with it, under a name of its own.
func TestAdaptiveStripes(t *testing.T) {
	res := inBubble(t, Config{WAN: model(t, "rtt=20ms,rate=200Mbps,loss=0"), Bytes: 4 << 20, PagesPerBlock: 16, Stripes: []int{0, 2}, Repeats: 1, Warmup: -1})
	if len(res.Configurations) != 2 {
		t.Fatalf("configurations %+v", res.Configurations)
	}
	adaptive, two := res.Configurations[0], res.Configurations[1]
	if !adaptive.Adaptive || adaptive.Stripes < 1 || two.Adaptive || two.Stripes != 2 || two.Runs[0].Stripes != 2 {
		t.Errorf("%d stripes (adaptive: %v) and %d (%v)", adaptive.Stripes, adaptive.Adaptive, two.Stripes, two.Adaptive)
	}
	f := checkFile(t, res)
	for _, name := range []string{"goodput/stripes=0", "goodput/stripes=2"} {
		if _, ok := f.Metric(name); !ok {
			t.Errorf("no metric %s", name)
		}
	}
	if c := (Config{}).withDefaults(); !slices.Equal(c.Stripes, []int{0}) {
		t.Errorf("%v stripes by default", c.Stripes)
	}
}

// Losses are pooled over the transfers, and the packets a transfer agree with them.
func TestLossesArePooled(t *testing.T) {
	run := func(sent, lost, repaired, parity int64) *Measure {
		return &Measure{PacketsSent: &sent, PacketsLost: &lost, PacketsRepaired: &repaired, ParityBytes: &parity}
	}
	o := &Outcome{Runs: []*Measure{run(1000, 0, 0, 0), run(1000, 0, 0, 300), run(2000, 4, 16, 900), {}}}
	o.losses()
	for _, x := range []struct {
		name string
		got  *float64
		want float64
	}{
		{"loss", o.Loss, 20. / 4000},
		{"unrepaired", o.LossUnrepaired, 4. / 4000},
		{"resent", o.RetransmittedPackets, 4. / 3},
		{"repaired", o.RepairedPackets, 16. / 3},
		{"parity", o.ParityBytes, 400},
	} {
		if x.got == nil || math.Abs(*x.got-x.want) > 1e-12 {
			t.Errorf("%s is %s, want %v", x.name, text(x.got, "%v"), x.want)
		}
	}
}

// What the daemons count is taken at the end that knows it; counters that began anew are nothing.
func TestCountersOfDaemons(t *testing.T) {
	before := &pb.LinkStatus{BytesSent: 100, PacketsSent: 10, PacketsLost: 1, ParityPacketsSent: 2, ParityBytesSent: 20, PacketsRepaired: 1000}
	after := &pb.LinkStatus{BytesSent: 1100, PacketsSent: 110, PacketsLost: 3, ParityPacketsSent: 7, ParityBytesSent: 90, PacketsRepaired: 1000}
	had, mine := &pb.LinkStatus{PacketsRepaired: 5, PacketsLost: 50}, &pb.LinkStatus{PacketsRepaired: 9, PacketsLost: 60}
	var m Measure
	m.between(before, after, had, mine)
	if m.WireBytes != 1070 || *m.PacketsSent != 100 || *m.PacketsLost != 2 || *m.PacketsRepaired != 4 || *m.ParityPackets != 5 || *m.ParityBytes != 70 {
		t.Errorf("measure %+v", m)
	}
	for name, f := range map[string]func(m *Measure){
		"a link made anew at the source": func(m *Measure) { m.between(after, before, had, mine) },
		"and at the destination":         func(m *Measure) { m.between(before, after, mine, had) },
		"nothing sent":                   func(m *Measure) { m.between(before, before, had, had) },
	} {
		var m Measure
		if f(&m); m.WireBytes != 0 || m.PacketsSent != nil || m.PacketsRepaired != nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
	var old Measure // of a daemon that does not tell packets
	if old.between(&pb.LinkStatus{}, &pb.LinkStatus{BytesSent: 7, PacketsLost: 1}, had, had); old.WireBytes != 7 || old.PacketsSent != nil || old.PacketsLost != nil {
		t.Errorf("of an older daemon: %+v", old)
	}
	// 1,500 bytes of pages came in 1,000 meanwhile, and so did those of the transfer.
	c := Measure{Bytes: 600, CodedBytes: 600, GoodputBps: 9e3, EffectiveBps: 9e3}
	had.PagesReceived, mine.PagesReceived = &pb.PageCoding{PageBytes: 500, WireBytes: 450}, &pb.PageCoding{PageBytes: 2000, WireBytes: 1450}
	if c.between(before, after, had, mine); c.CodedBytes != 400 || math.Abs(c.GoodputBps-6e3) > 1e-6 || c.EffectiveBps != 9e3 || c.Bytes != 600 {
		t.Errorf("coded: %+v", c)
	}
	path := pathOfLink(&pb.LinkStatus{
		Goodput: &pb.Estimate{Value: 5, Basis: pb.EstimateBasis_ESTIMATE_BASIS_CONFIGURED}, Ramp: &pb.Estimate{Value: 0.7, Basis: pb.EstimateBasis_ESTIMATE_BASIS_PERSISTED},
	})
	if path == nil || path.GoodputBps != nil || *path.RampSeconds != 0.7 || pathOfLink(&pb.LinkStatus{}) != nil {
		t.Errorf("path %+v", path)
	}
}

// Processor time of daemons is among what --diff compares, of the end where it is known.
func TestDaemonCPUIsCompared(t *testing.T) {
	o := &Outcome{Runs: []*Measure{{Bytes: 2e9, daemonCPU: [2]float64{6, -1}}, {Bytes: 2e9, daemonCPU: [2]float64{8, -1}}}}
	f := results.New(results.KindGoodput, nil, nil)
	o.metrics(f, "")
	m, ok := f.Metric("cpu_source")
	if !ok || !slices.Equal(m.Samples, []float64{3, 4}) {
		t.Errorf("cpu_source %+v", m)
	}
	if _, ok := f.Metric("cpu_destination"); ok {
		t.Error("the processor time of a daemon elsewhere is known")
	}
}
