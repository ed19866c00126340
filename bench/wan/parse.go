package wan

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// keys lists what Parse understands, for its errors.
const keys = "rtt, rate, loss, jitter, queue, burst, seed, mtu"

// maxSpec bounds the text that Parse looks at, in bytes.
const maxSpec = 1024

// Parse reads a Model from comma-separated key=value pairs, each key at most
// once, in any order. The empty string is the zero Model.
//
//	rtt=70ms          two-way delay, a Go duration
//	rate=100Mbps      bit/s: a number with bps, kbps, Mbps, Gbps or Tbps, or none; 0 or "unlimited"
//	loss=0.001        probability; 0.1% is the same
//	jitter=1ms        uniform extra delay
//	queue=256KiB      bytes: a number with B, kB, KiB, MB, MiB, GB, GiB, or none; 0 is one BDP; "unlimited"
//	burst=p/r/h       Gilbert–Elliott: good to bad, bad to good, loss in the bad state (1 if left out)
//	seed=7            seed of loss and jitter
//	mtu=1500          bytes of IP packet; 0 is 1500; "unlimited"
//
// The result m is valid, and Parse(m.String()) gives m again. An error names
// the key, the value and what is allowed.
func Parse(s string) (Model, error) { return Model{}.With(s) }

// With is m with the keys that s names changed, in the form that Parse reads.
// Its errors are Parse's.
func (m Model) With(s string) (Model, error) {
	if len(s) > maxSpec {
		return Model{}, fmt.Errorf("wan: link text of %d bytes: at most %d are read", len(s), maxSpec)
	}
	if strings.TrimSpace(s) == "" {
		return m, nil
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		key, value, ok := strings.Cut(part, "=")
		key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		if !ok {
			return Model{}, fmt.Errorf("wan: %q in %q: want key=value with a key among %s, as in rtt=70ms,rate=100Mbps,loss=0", part, s, keys)
		}
		if seen[key] {
			return Model{}, fmt.Errorf("wan: key %q is given twice in %q", key, s)
		}
		seen[key] = true
		if err := m.set(key, value); err != nil {
			return Model{}, err
		}
	}
	if err := m.Validate(); err != nil {
		return Model{}, err
	}
	return m, nil
}

func (m *Model) set(key, value string) error {
	var err error
	switch key {
	case "rtt":
		m.RTT, err = time.ParseDuration(value)
	case "jitter":
		m.Jitter, err = time.ParseDuration(value)
	case "rate":
		m.Rate, err = parseUnits(value, rateUnits)
		if value == "unlimited" {
			m.Rate, err = 0, nil
		}
	case "loss":
		m.Loss, err = parseProbability(value)
	case "queue":
		m.QueueBytes, err = parseLimit(value)
	case "burst":
		m.Burst, err = parseBurst(value)
	case "seed":
		m.Seed, err = strconv.ParseUint(value, 10, 64)
	case "mtu":
		var v int64
		v, err = parseLimit(value)
		m.MTU = int(min(v, math.MaxInt32))
	default:
		return fmt.Errorf("wan: unknown key %q: known keys are %s", key, keys)
	}
	if err != nil {
		return fmt.Errorf("wan: %s=%s: %w; want %s", key, value, err, examples[key])
	}
	return nil
}

var examples = map[string]string{
	"rtt":    "a duration such as 70ms",
	"jitter": "a duration such as 1ms",
	"rate":   "a rate such as 100Mbps, 1.5Gbps, or unlimited",
	"loss":   "a probability such as 0.001, or 0.1%",
	"queue":  "a size such as 256KiB, 0 for one bandwidth-delay product, or unlimited",
	"burst":  "good-to-bad/bad-to-good[/loss-in-bad], such as 0.001/0.25",
	"seed":   "an unsigned number such as 7",
	"mtu":    "a size in bytes such as 1500, or unlimited",
}

type unit struct {
	name  string
	scale float64
}

// Longest names first: "Mbps" also ends in "bps".
var (
	rateUnits = []unit{{"tbps", 1e12}, {"gbps", 1e9}, {"mbps", 1e6}, {"kbps", 1e3}, {"bps", 1}}
	sizeUnits = []unit{{"gib", 1 << 30}, {"mib", 1 << 20}, {"kib", 1 << 10}, {"gb", 1e9}, {"mb", 1e6}, {"kb", 1e3}, {"b", 1}}
)

func parseUnits(value string, units []unit) (float64, error) {
	number, scale := strings.ToLower(value), 1.0
	for _, u := range units {
		if n, ok := strings.CutSuffix(number, u.name); ok {
			number, scale = strings.TrimSpace(n), u.scale
			break
		}
	}
	v, err := parseFloat(number)
	if err != nil {
		return 0, err
	}
	return v * scale, nil
}

func parseFloat(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, errors.New("not a number")
	}
	return v + 0, nil // -0 becomes 0
}

func parseLimit(value string) (int64, error) {
	if value == "unlimited" {
		return -1, nil
	}
	v, err := parseUnits(value, sizeUnits)
	switch {
	case err != nil:
		return 0, err
	case v < 0 || v > 1<<50:
		return 0, errors.New("out of range")
	case v != math.Trunc(v):
		return 0, errors.New("not a whole number of bytes")
	}
	return int64(v), nil
}

func parseProbability(value string) (float64, error) {
	if p, ok := strings.CutSuffix(value, "%"); ok {
		v, err := parseFloat(strings.TrimSpace(p))
		return v / 100, err
	}
	return parseFloat(value)
}

func parseBurst(value string) (*GilbertElliott, error) {
	parts := strings.Split(value, "/")
	if len(parts) != 2 && len(parts) != 3 {
		return nil, fmt.Errorf("%d numbers", len(parts))
	}
	var p [3]float64
	for i, s := range parts {
		var err error
		if p[i], err = parseProbability(strings.TrimSpace(s)); err != nil {
			return nil, err
		}
	}
	if len(parts) == 3 && p[2] == 0 {
		p[2] = -1 // written out, 0 means 0; in the struct zero is the default
	}
	return &GilbertElliott{PGoodToBad: p[0], PBadToGood: p[1], LossBad: p[2]}, nil
}

// String is the text that Parse reads back to m: rtt, rate and loss always,
// the others where they are not zero.
func (m Model) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rtt=%s,rate=%s,loss=%s", m.RTT, formatRate(m.Rate), formatFloat(m.Loss))
	if m.Jitter != 0 {
		fmt.Fprintf(&b, ",jitter=%s", m.Jitter)
	}
	if m.QueueBytes != 0 {
		fmt.Fprintf(&b, ",queue=%s", formatSize(m.QueueBytes))
	}
	if g := m.Burst; g != nil {
		fmt.Fprintf(&b, ",burst=%s/%s", formatFloat(g.PGoodToBad), formatFloat(g.PBadToGood))
		if g.LossBad != 0 {
			fmt.Fprintf(&b, "/%s", formatFloat(g.LossBad))
		}
	}
	if m.Seed != 0 {
		fmt.Fprintf(&b, ",seed=%d", m.Seed)
	}
	if m.MTU != 0 {
		fmt.Fprintf(&b, ",mtu=%s", formatSize(int64(m.MTU)))
	}
	return b.String()
}

func formatFloat(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// formatRate picks the largest unit that reads back to the same float.
func formatRate(rate float64) string {
	if rate == 0 {
		return "unlimited"
	}
	for _, u := range []unit{{"Tbps", 1e12}, {"Gbps", 1e9}, {"Mbps", 1e6}, {"kbps", 1e3}} {
		if v := rate / u.scale; v >= 1 && v*u.scale == rate {
			return strconv.FormatFloat(v, 'f', -1, 64) + u.name
		}
	}
	return formatFloat(rate) + "bps"
}

func formatSize(v int64) string {
	switch {
	case v < 0:
		return "unlimited"
	case v == 0:
		return "0"
	case v%(1<<20) == 0:
		return strconv.FormatInt(v>>20, 10) + "MiB"
	case v%(1<<10) == 0:
		return strconv.FormatInt(v>>10, 10) + "KiB"
	}
	return strconv.FormatInt(v, 10)
}
