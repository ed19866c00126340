package planner

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Bounds on inputs. They are far outside what exists and keep every sum and product finite.
const (
	maxTokens        = 1 << 30
	maxBytesPerToken = 1 << 30
	maxBytes         = 1 << 60
	maxParams        = 1e18
	maxFLOPS         = 1e24
	maxRate          = 1e18
	maxSeconds       = 1e9
	minSpread        = 1e-9
	maxSpread        = 1e3
	maxCount         = 1e6
)

// InputError is one input that cannot be used. The Validate methods and [Decide] join one a fault; errors.AsType finds
// the first.
type InputError struct {
	Field   string // dotted name of the field, such as "Link.Stripes"
	Value   string // the value given, as text
	Allowed string // what is allowed, with units
	Fix     string // what to do about it
}

// Error names the field, the value, what is allowed and the fix.
func (e *InputError) Error() string {
	return fmt.Sprintf("planner: %s is %s: must be %s; %s", e.Field, e.Value, e.Allowed, e.Fix)
}

// faults collects input errors.
type faults struct{ errs []error }

func (f *faults) add(field, value, allowed, fix string) {
	f.errs = append(f.errs, &InputError{Field: field, Value: value, Allowed: allowed, Fix: fix})
}

func (f *faults) join() error { return errors.Join(f.errs...) }

// float wants v = 0 or lo ≤ v ≤ hi; NaN and infinities fail.
func (f *faults) float(field string, v, lo, hi float64, fix string) {
	if v == 0 || (v >= lo && v <= hi) {
		return
	}
	allowed := fmt.Sprintf("between %g and %g", lo, hi)
	if lo > 0 {
		allowed = "0 or " + allowed
	}
	f.add(field, fmt.Sprint(v), allowed, fix)
}

// required wants lo ≤ v ≤ hi; zero, NaN and infinities fail.
func (f *faults) required(field string, v, lo, hi float64, fix string) {
	if v >= lo && v <= hi {
		return
	}
	f.add(field, fmt.Sprint(v), fmt.Sprintf("between %g and %g", lo, hi), fix)
}

// finite wants v ≤ hi, negative allowed; NaN and infinities fail.
func (f *faults) finite(field string, v, hi float64, fix string) {
	if v <= hi && !math.IsInf(v, -1) {
		return
	}
	f.add(field, fmt.Sprint(v), fmt.Sprintf("a finite number up to %g", hi), fix)
}

// integer wants lo ≤ v ≤ hi.
func (f *faults) integer(field string, v, lo, hi int64, fix string) {
	if v >= lo && v <= hi {
		return
	}
	f.add(field, fmt.Sprint(v), fmt.Sprintf("between %d and %d", lo, hi), fix)
}

// duration wants v ≥ 0.
func (f *faults) duration(field string, v time.Duration, fix string) {
	if v < 0 {
		f.add(field, v.String(), "0s or more", fix)
	}
}
