package daemon

import (
	"context"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/planner"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
	"github.com/kvferry/kvferry/transfer"
	"github.com/kvferry/kvferry/transfer/codec"
)

// timedCodecs take their time a page, which in a bubble nothing else does.
type timedCodecs struct{ encode, decode time.Duration }

func (c timedCodecs) Encode(id codec.ID, dst, src []byte, s *codec.Scratch) ([]byte, error) {
	time.Sleep(c.encode)
	return codec.Encode(id, dst, src, s)
}

func (c timedCodecs) Decode(id codec.ID, dst, src []byte, s *codec.Scratch) error {
	time.Sleep(c.decode)
	return codec.Decode(id, dst, src, s)
}

// What codecs do to a link's pages is in its metrics and in ListLinks at both ends, and plans have it as a stage of its own, after a
// restart, too.
func TestCodecShown(t *testing.T) {
	const page = 2 << 10 // of testLayout
	for name, tc := range map[string]struct {
		codecs timedCodecs
		slow   bool // slower than the link
	}{
		"hidden by the link":    {timedCodecs{20 * time.Microsecond, 10 * time.Microsecond}, false},
		"slower than the link":  {timedCodecs{time.Millisecond, 10 * time.Microsecond}, true},
		"decoding is slower":    {timedCodecs{10 * time.Microsecond, time.Millisecond}, true},
		"decoding is hidden":    {timedCodecs{10 * time.Microsecond, 20 * time.Microsecond}, false},
		"as slow at both ends ": {timedCodecs{time.Millisecond, time.Millisecond}, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				// Named, so that it is used whatever it takes; the link is faster than the slow ones on any number of processors.
				rate := 5e6
				if tc.slow {
					rate = 16 * page * 1e3 * float64(runtime.GOMAXPROCS(0))
				}
				r := newRig(t, wan.Model{RTT: 20 * time.Millisecond, Rate: rate, Seed: 5}, func(_ string, c *Config, p *Parts) {
					c.Link.Codec, p.Codecs = codec.Huff.String(), tc.codecs
				})
				r.ea.values, r.eb.values = true, true
				for _, s := range []string{"one", "two"} {
					r.ea.session(s, 150)
					r.b.begin(request(s)).end()
				}
				r.settle()
				in, out := r.b.d.agent.Links()[0].Stats(), r.a.d.agent.Links()[0].Stats()
				checkCodecMetrics(t, r.b, "a", in)
				checkCodecMetrics(t, r.a, r.a.d.links.label("b"), out)
				ratio := float64(in.Received.PageBytes) / float64(in.Received.WireBytes)
				if in.Received.PageBytes != 2*150*4*page || in.Received.CodedBytes != in.Received.PageBytes || ratio < 1.2 || out.Sent.WireBytes != in.Received.WireBytes {
					t.Errorf("received %+v, sent %+v", in.Received, out.Sent)
				}
				r.ea.session("three", 150)
				checkCodecPlan(t, r.b, in.Estimates, tc.slow)
			})
		})
	}
}

// checkCodecMetrics compares what a node says of a link with what the link counted.
func checkCodecMetrics(t *testing.T, n *node, peer string, st transfer.LinkStats) {
	t.Helper()
	label := `{peer="` + peer + `"}`
	want := map[string]float64{
		"kvferry_link_sent_page_bytes_total" + label:           float64(st.Sent.PageBytes),
		"kvferry_link_sent_page_wire_bytes_total" + label:      float64(st.Sent.WireBytes),
		"kvferry_link_sent_coded_page_bytes_total" + label:     float64(st.Sent.CodedBytes),
		"kvferry_link_received_page_bytes_total" + label:       float64(st.Received.PageBytes),
		"kvferry_link_received_page_wire_bytes_total" + label:  float64(st.Received.WireBytes),
		"kvferry_link_received_coded_page_bytes_total" + label: float64(st.Received.CodedBytes),
		"kvferry_link_encode_seconds_total" + label:            st.Sent.Busy.Seconds(),
		"kvferry_link_decode_seconds_total" + label:            st.Received.Busy.Seconds(),
		"kvferry_link_codec_ratio" + label:                     math.NaN(), // absent
		"kvferry_link_codec_bytes_per_second" + label:          math.NaN(),
	}
	if st.Received.PageBytes > 0 {
		want["kvferry_link_codec_ratio"+label] = st.Estimates.Ratio.Value
		want["kvferry_link_codec_bytes_per_second"+label] = st.Estimates.CodecRate.Value
	}
	wantSamples(t, n.samples(), want)
	links, err := n.region.ListLinks(context.Background(), &pb.ListLinksRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links.GetLinks() {
		for _, c := range []struct {
			got  *pb.PageCoding
			want transfer.Coding
		}{{l.GetPagesSent(), st.Sent}, {l.GetPagesReceived(), st.Received}} {
			name := ""
			if c.want.PageBytes > 0 {
				name = "huff"
			}
			if c.got.GetPageBytes() != int64(c.want.PageBytes) || c.got.GetWireBytes() != int64(c.want.WireBytes) || c.got.GetCodedBytes() != int64(c.want.CodedBytes) ||
				c.got.GetBusy().AsDuration() != c.want.Busy || c.got.GetCodec() != name {
				t.Errorf("%s lists %v, counted %+v", n.name, c.got, c.want)
			}
		}
		if l.GetCodecRatio().GetValue() != st.Estimates.Ratio.Value || l.GetCodecRate().GetValue() != 8*st.Estimates.CodecRate.Value {
			t.Errorf("%s lists ratio %v at %v, knows %+v", n.name, l.GetCodecRatio(), l.GetCodecRate(), st.Estimates)
		}
	}
}

// checkCodecPlan: the plan of another session has the codec as a stage.
func checkCodecPlan(t *testing.T, n *node, e transfer.Estimates, slow bool) {
	t.Helper()
	plan, err := n.mig.Plan(context.Background(), &pb.PlanRequest{Migrate: request("three")})
	if err != nil {
		t.Fatal(err)
	}
	link, err := n.d.links.get(context.Background(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if own, other := n.d.linkInputs(link, codec.BF16, 0), n.d.linkInputs(link, codec.FP8, 0); own.CodecRatio != e.Ratio.Value || other.CodecRatio != 0 || other.CodecRate != 0 {
		t.Errorf("pages of BF16 are planned with %+v, of FP8, of which none came, with %+v", own, other)
	}
	terms := map[string]*pb.PlanTerm{}
	for _, m := range plan.GetPlan().GetModes() {
		if m.GetMode() == pb.Mode_MODE_FETCH {
			for _, term := range m.GetTerms() {
				terms[term.GetName()] = term
			}
		}
	}
	const bytes = 150 * 8 << 10
	moving, coding, alone := terms[planner.TermBytes].GetSeconds(), terms[planner.TermCodec].GetSeconds(), bytes/e.CodecRate.Value
	switch {
	case terms[planner.TermCodec] == nil || !strings.Contains(terms[planner.TermBytes].GetNote(), "coded"):
		t.Errorf("terms %v", terms)
	// The slower stage counts. A slow codec keeps the goodput that is measured near its own pace: either may be the slower one, by little.
	case math.Abs(coding-max(0, alone-moving)) > 1e-6*alone || slow && moving > 1.1*alone:
		t.Errorf("bytes take %v s and codec %v s, the codec alone %v: %v", moving, coding, alone, terms)
	case !slow && coding != 0:
		t.Errorf("a codec faster than the link takes %v", terms[planner.TermCodec])
	}
}
