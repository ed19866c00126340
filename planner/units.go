package planner

import (
	"fmt"
	"math"
)

// Bytes is an amount of data in bytes. Its text uses binary units ("2.44 GiB").
type Bytes int64

// String gives b in the largest binary unit that leaves at least 1, with three significant digits.
func (b Bytes) String() string {
	v, units := float64(b), [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for math.Abs(v) >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%d B", int64(b))
	}
	return fmt.Sprintf("%.4g %s", v, units[i])
}

// Rate is a data rate in bits a second. Its text uses decimal units ("1 Gbps").
type Rate float64

// String gives r in the largest decimal unit that leaves at least 1, with four significant digits.
func (r Rate) String() string {
	v, units := float64(r), [...]string{"bps", "kbps", "Mbps", "Gbps", "Tbps"}
	i := 0
	for math.Abs(v) >= 1000 && i < len(units)-1 {
		v /= 1000
		i++
	}
	return fmt.Sprintf("%.4g %s", v, units[i])
}

// seconds is the time that b takes at rate r. r > 0.
func (r Rate) seconds(b float64) float64 { return 8 * b / float64(r) }

// Round rounds x half away from zero to that many decimals (0 to 15; others are clamped), so that its shortest decimal
// text has no more of them: Round(0.353892, 5) prints as 0.35389. Values that scaling would overflow come back as they
// are, and so do NaN and infinities.
func Round(x float64, decimals int) float64 {
	scale := math.Pow10(max(0, min(decimals, 15)))
	if y := math.Round(x*scale) / scale; !math.IsInf(y, 0) && !math.IsNaN(y) {
		return y
	}
	return x
}
