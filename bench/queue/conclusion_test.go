package queue

import (
	"strings"
	"testing"
)

// What is said of sharing follows the numbers of each spread of sizes, not those of one of them.
func TestSharingFollowsItsNumbers(t *testing.T) {
	t.Parallel()
	at := func(mean, half float64) Measured { return Measured{Mean: mean, Low: mean - half, High: mean + half} }
	for _, tc := range []struct {
		name                   string
		exponential, lognormal Measured
		want                   string
		not                    []string
	}{
		{"both", at(.7250, .002), at(.7260, .002), "that of M/M/1 within its interval for exponential and lognormal sizes.", []string{"from it", "whatever"}},
		{"lognormal only", at(.7200, .002), at(.7260, .002), "within its interval for lognormal sizes, and -0.0055 from it for exponential ones ([0.7180, 0.7220]).", []string{"exponential and", "whatever"}},
		{"exponential only", at(.7250, .002), at(.7400, .002), "within its interval for exponential sizes, and +0.0145 from it for lognormal ones", nil},
		{"neither", at(.7200, .002), at(.7400, .002), "-0.0055 from that of M/M/1 for exponential sizes ([0.7180, 0.7220]) and +0.0145 from that of M/M/1 for lognormal sizes", []string{"within"}},
	} {
		c := &Crossover{Predicted: .7255, ServiceRate: 20, Laws: []LawCrossover{
			{Law: "processor sharing, exponential", Measured: tc.exponential}, {Law: "processor sharing, lognormal", Measured: tc.lognormal},
		}}
		text := c.concludeSharing()
		if !strings.Contains(text, tc.want) {
			t.Errorf("%s: %q lacks %q", tc.name, text, tc.want)
		}
		for _, not := range tc.not {
			if strings.Contains(text, not) {
				t.Errorf("%s: %q has %q", tc.name, text, not)
			}
		}
	}
}

// The verdict is about the sender as daemons run it; what one that serves in turn does is said to be that.
func TestVerdictIsAboutDaemons(t *testing.T) {
	t.Parallel()
	point := func(law string, wait float64) Point {
		return Point{Source: SourceQUIC, Utilization: .6, Wait: Wait{Measured: wait, Laws: Laws{MM1: 1}}, QUIC: &LinkPoint{Law: law, Conclusive: true, Overlaps: true}}
	}
	r := &Result{
		Points: []Point{point(LinkLaw, .5), point(SharingLaw, 1)}, Crossover: &Crossover{},
		Link: &Link{Law: LinkLaw, Calibrated: true, Discipline: orderLeast}, Sharing: &Link{Law: SharingLaw, Calibrated: true, Discipline: orderSharing},
	}
	if v := r.verdict(); !strings.Contains(v, "for daemons as they run by default the mean fetch waits 0.50 times") {
		t.Errorf("verdict %q", v)
	}
	link := r.concludeLink()
	if !strings.Contains(link, "as daemons run it") || !strings.Contains(link, "0.50 of M/M/1's at 0.6") || !strings.Contains(link, "which daemons do not do by default, the mean wait is 1.00") {
		t.Errorf("link %q", link)
	}
	r.Points = r.Points[1:] // nothing is known of daemons' sender
	if v := r.verdict(); v != "" {
		t.Errorf("verdict %q from another sender", v)
	}
}
