package engineload

import (
	"errors"
	"fmt"
	"time"
)

// Sentinels for the branches that callers take.
var (
	// ErrStale: the last good scrape is too old to be used. The error is a *StaleError.
	ErrStale = errors.New("engine load is stale")
	// ErrNoScrape: no scrape has ended yet.
	ErrNoScrape = errors.New("engine has not been scraped yet")
	// ErrUnreachable: no answer in time, or one that is no success.
	ErrUnreachable = errors.New("engine metrics unreachable")
	// ErrNotAnEngine: the answer holds no metric of vLLM or SGLang, or those of both.
	ErrNotAnEngine = errors.New("not the metrics of one vLLM or SGLang engine")
	// ErrTooLarge: the answer is larger than allowed.
	ErrTooLarge = errors.New("engine metrics too large")
)

// ScrapeError is a scrape that gave nothing. It wraps one of [ErrUnreachable], [ErrNotAnEngine] and [ErrTooLarge], and
// the cause where there is one.
type ScrapeError struct {
	// URL is the endpoint, without a password.
	URL string
	// Kind is the sentinel.
	Kind error
	// Err is the cause; nil where Kind says it all.
	Err error
	// Fix says what to do.
	Fix string
}

// Error names the endpoint, the kind, the cause and the fix.
func (e *ScrapeError) Error() string {
	s := fmt.Sprintf("scrape %s: %v", e.URL, e.Kind)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	return s
}

// Unwrap returns the kind and the cause.
func (e *ScrapeError) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// StaleError is a load that is too old. It is an [ErrStale] and wraps what made later scrapes fail.
type StaleError struct {
	// Age is how long ago the last good scrape began, MaxAge what is allowed.
	Age, MaxAge time.Duration
	// Err is what the latest scrape failed with; nil where none has ended since.
	Err error
}

// Error names the age, the bound and the latest failure.
func (e *StaleError) Error() string {
	s := fmt.Sprintf("%v: last scraped %v ago, want at most %v", ErrStale, e.Age.Round(time.Millisecond), e.MaxAge)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is makes a StaleError an [ErrStale].
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// Unwrap returns the latest failure.
func (e *StaleError) Unwrap() error { return e.Err }

// ConfigError is a field of [Config] that can't be used.
type ConfigError struct {
	// Field names it, Value is what was given, Allowed says what may be given.
	Field, Value, Allowed string
}

// Error names the field, the value and what is allowed.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("engine load: %s %.200q: want %s", e.Field, e.Value, e.Allowed)
}
