package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// parsed is a flag whose text is parsed by a function. It implements pflag.Value.
type parsed[T any] struct {
	v     *T
	parse func(string) (T, error)
	text  func(T) string
	name  string
}

func (p *parsed[T]) String() string {
	if p.v == nil {
		return ""
	}
	return p.text(*p.v)
}

func (p *parsed[T]) Set(s string) error {
	v, err := p.parse(s)
	if err != nil {
		return err
	}
	*p.v = v
	return nil
}

func (p *parsed[T]) Type() string { return p.name }

// newDuration is a flag of a duration of at least least.
func newDuration(v *time.Duration, value, least time.Duration) *parsed[time.Duration] {
	*v = value
	return &parsed[time.Duration]{
		v: v, name: "duration",
		text: func(d time.Duration) string {
			if d == 0 {
				return ""
			}
			return d.String()
		},
		parse: func(s string) (time.Duration, error) {
			d, err := time.ParseDuration(s)
			if err != nil {
				return 0, errors.New("want a number with a unit, such as 70ms, 1.5s or 2m")
			}
			if d < least {
				return 0, fmt.Errorf("want at least %v", least)
			}
			return d, nil
		},
	}
}

// rateUnits are bit/s, longest name first because "mbps" ends in "bps".
var rateUnits = []struct {
	name  string
	scale float64
}{{"tbps", 1e12}, {"gbps", 1e9}, {"mbps", 1e6}, {"kbps", 1e3}, {"bps", 1}}

// parseRate reads bit/s: a positive number with bps, kbps, Mbps, Gbps or Tbps, in any case.
func parseRate(s string) (float64, error) {
	const want = "want a positive rate with a unit of bps, kbps, Mbps, Gbps or Tbps, such as 5Gbps or 100Mbps"
	number, scale := strings.ToLower(strings.TrimSpace(s)), 0.0
	for _, u := range rateUnits {
		if n, ok := strings.CutSuffix(number, u.name); ok {
			number, scale = strings.TrimSpace(n), u.scale
			break
		}
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || scale == 0 || !(v > 0) || math.IsInf(v*scale, 0) {
		return 0, errors.New(want)
	}
	return v * scale, nil
}

// newRate is a flag of bit/s; zero means not given.
func newRate(v *float64) *parsed[float64] {
	return &parsed[float64]{v: v, parse: parseRate, name: "rate", text: func(r float64) string {
		if r == 0 {
			return ""
		}
		return rateText(r)
	}}
}

// rateText is bit/s for a person; parseRate reads it back.
func rateText(r float64) string {
	for _, u := range []struct {
		name  string
		scale float64
	}{{"Tbps", 1e12}, {"Gbps", 1e9}, {"Mbps", 1e6}, {"kbps", 1e3}} {
		if r >= u.scale {
			return strconv.FormatFloat(r/u.scale, 'g', 4, 64) + u.name
		}
	}
	return strconv.FormatFloat(r, 'g', 4, 64) + "bps"
}

// newNumber is a flag of a number in [lo, hi]; zero means not given.
func newNumber(v *float64, value, lo, hi float64) *parsed[float64] {
	*v = value
	return &parsed[float64]{
		v: v, name: "number",
		text: func(x float64) string {
			if x == 0 {
				return ""
			}
			return strconv.FormatFloat(x, 'g', -1, 64)
		},
		parse: func(s string) (float64, error) {
			x, err := strconv.ParseFloat(s, 64)
			if err != nil || !(x >= lo && x <= hi) {
				return 0, fmt.Errorf("want a number from %g to %g", lo, hi)
			}
			return x, nil
		},
	}
}

// newCount is a flag of a whole number in [lo, hi].
func newCount(v *int64, value, lo, hi int64) *parsed[int64] {
	*v = value
	return &parsed[int64]{
		v: v, name: "count",
		text: func(x int64) string {
			if x == 0 {
				return ""
			}
			return strconv.FormatInt(x, 10)
		},
		parse: func(s string) (int64, error) {
			x, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
			if err != nil || x < lo || x > hi {
				return 0, fmt.Errorf("want a whole number from %d to %d", lo, hi)
			}
			return x, nil
		},
	}
}

// newChoice is a flag of one of a few words.
func newChoice(v *string, value string, words ...string) *parsed[string] {
	*v = value
	return &parsed[string]{
		v: v, name: "name",
		text: func(s string) string { return s },
		parse: func(s string) (string, error) {
			for _, w := range words {
				if strings.EqualFold(s, w) {
					return w, nil
				}
			}
			return "", fmt.Errorf("want one of %s", strings.Join(words, ", "))
		},
	}
}
