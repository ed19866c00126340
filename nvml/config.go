package nvml

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Config configures a sampler. Zero means the documented default, negative means off where a field says so. It is copied.
type Config struct {
	// Period is the pause between two passes. A pass asks every GPU some thirty questions, two of which take 20 ms each:
	// about 50 ms a GPU. 10 ms to 1 h; default 1 s; negative: no sampling, and every snapshot is unavailable.
	Period time.Duration
	// Timeout is how long one pass may take before the snapshot becomes [StateHung]. 10 ms to 1 h; default 5 s, enough for
	// 64 GPUs; negative: never.
	Timeout time.Duration
	// RetryMax bounds the pause before the library is initialised again: it begins at Period and doubles with each failure.
	// It is also the pause between attempts to find a lost GPU again. At least Period, at most 24 h; default 1 min, or
	// Period when that is longer.
	RetryMax time.Duration
	// Library is the file name or path of the library, as dlopen(3) takes it. Default "libnvidia-ml.so.1". All samplers of
	// a process must use the same: its functions are bound once.
	Library string
}

// The defaults and bounds of Config.
const (
	defaultPeriod   = time.Second
	defaultTimeout  = 5 * time.Second
	defaultRetryMax = time.Minute
	defaultLibrary  = "libnvidia-ml.so.1"

	minPeriod   = 10 * time.Millisecond
	maxPeriod   = time.Hour
	maxRetryMax = 24 * time.Hour
)

// Validate returns every violation, joined; each names the field, its value and what is allowed.
func (c Config) Validate() error {
	var errs []error
	if c.Period > 0 && (c.Period < minPeriod || c.Period > maxPeriod) {
		errs = append(errs, fmt.Errorf("nvml: Period is %v: use %v to %v, 0 for %v, or a negative value to switch sampling off", c.Period, minPeriod, maxPeriod, defaultPeriod))
	}
	if c.Timeout > 0 && (c.Timeout < minPeriod || c.Timeout > maxPeriod) {
		errs = append(errs, fmt.Errorf("nvml: Timeout is %v: use %v to %v, 0 for %v, or a negative value for none", c.Timeout, minPeriod, maxPeriod, defaultTimeout))
	}
	if period := c.withDefaults().Period; c.RetryMax != 0 && (c.RetryMax < period || c.RetryMax > maxRetryMax) {
		errs = append(errs, fmt.Errorf("nvml: RetryMax is %v: use Period (%v) to %v, or 0 for %v", c.RetryMax, period, maxRetryMax, defaultRetryMax))
	}
	if strings.IndexByte(c.Library, 0) >= 0 || len(c.Library) > 4096 {
		errs = append(errs, fmt.Errorf("nvml: Library is %.40q (%d bytes): use a file name or path of at most 4096 bytes without NUL, or \"\" for %q", c.Library, len(c.Library), defaultLibrary))
	}
	return errors.Join(errs...)
}

// withDefaults returns a copy with the defaults in place of zeros.
func (c Config) withDefaults() Config {
	if c.Period == 0 {
		c.Period = defaultPeriod
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.RetryMax == 0 {
		c.RetryMax = max(defaultRetryMax, c.Period)
	}
	if c.Library == "" {
		c.Library = defaultLibrary
	}
	return c
}
