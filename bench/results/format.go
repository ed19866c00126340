package results

import (
	"math"
	"strconv"
	"strings"
)

// Format returns a number with its unit, four digits, and the prefix that suits it: Format(4.123e8, "bps") is "412.3
// Mbps", Format(3<<20, "B") is "3 MiB", Format(0.0123, "s") is "12.3 ms", Format(0.5, "1") is "0.5", Format(8192,
// "tokens") is "8192 tokens". See the package's Units. Numbers that are not finite become "-".
func Format(v float64, unit string) string {
	if !finite(v) {
		return "-"
	}
	switch unit {
	case "1", "":
		return formatNumber(v)
	case "bps", "Hz":
		return prefixed(v, unit, 1000, []string{"", "k", "M", "G", "T", "P"})
	case "B":
		return prefixed(v, unit, 1024, []string{"", "Ki", "Mi", "Gi", "Ti", "Pi"})
	case "s":
		return seconds(v)
	}
	return formatNumber(v) + " " + unit
}

func prefixed(v float64, unit string, base float64, prefixes []string) string {
	i := 0
	// 999.96 would print as 1000: go on to the next prefix when rounding gets there.
	for i < len(prefixes)-1 && math.Abs(round4(v)) >= base {
		v /= base
		i++
	}
	return formatNumber(v) + " " + prefixes[i] + unit
}

func seconds(v float64) string {
	switch a := math.Abs(round4(v)); {
	case a == 0 || a >= 1:
		return formatNumber(v) + " s"
	case math.Abs(round4(v*1e3)) >= 1:
		return formatNumber(v*1e3) + " ms"
	case math.Abs(round4(v*1e6)) >= 1:
		return formatNumber(v*1e6) + " µs"
	}
	return formatNumber(v*1e9) + " ns"
}

// round4 rounds to four significant digits.
func round4(v float64) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return v
	}
	return r
}

// formatNumber writes four significant digits, whole numbers up to 2^53 whole, without an exponent from 1e-4 to 1e15.
func formatNumber(v float64) string {
	a := math.Abs(v)
	switch {
	case !finite(v):
		return "-"
	case v == 0:
		return "0"
	case v == math.Trunc(v) && a < 1<<53:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 1000 && a < 1e15:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a < 1e-4 || a >= 1e15:
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	s := strconv.FormatFloat(v, 'f', 3-int(math.Floor(math.Log10(a))), 64)
	if strings.Contains(s, ".") {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}
