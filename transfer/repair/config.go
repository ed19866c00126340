package repair

import (
	"errors"
	"fmt"
)

// Config configures a Conn. Zero means the documented default, negative means off
// where a field says so.
type Config struct {
	// Parity is how much parity a whole group has, in symbols of half a packet, 2
	// to 40: s symbols repair s/2 lost packets. 0, the default: as much as the
	// losses of the path ask for, none on a clean one. Negative: off, nothing is
	// sent or repaired.
	Parity int
	// Group is how many packets a group covers at most, 1 to 108. Default 108.
	Group int
	// Depth is how many groups are open at a time, packets taking turns, 1 to 8.
	// A burst of losses is spread over them. 0, the default: as the bursts ask for.
	Depth int
	// MaxOverhead bounds the bytes of parity, in percent of the bytes it covers,
	// 1 to 100. Default 25.
	MaxOverhead int
	// MaxSpan is the most packets between the first and the last of a group that
	// the receiving side remembers, 128 to 4096. It keeps twice as many, rounded
	// up to a power of two, of up to 1,452 bytes each: 1,024 are 3 MiB a session
	// at most, of which a path without bursts uses 0.8; none while no parity comes.
	// Default 1024.
	MaxSpan int
}

const (
	maxDepth       = 8
	defaultMaxSpan = 1024
	minSpan        = 128
)

// Off says that nothing is to be negotiated.
func (c Config) Off() bool { return c.Parity < 0 }

// Validate joins an error for each field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	check := func(field string, v, low, high int) {
		if v != 0 && (v < low || v > high) {
			errs = append(errs, fmt.Errorf("repair: Config.%s is %d; allowed are %d to %d, or 0 for the default: choose a value in that range", field, v, low, high))
		}
	}
	if !c.Off() {
		check("Parity", c.Parity, 2, MaxParity)
	}
	check("Group", c.Group, 1, MaxGroup)
	check("Depth", c.Depth, 1, maxDepth)
	check("MaxOverhead", c.MaxOverhead, 1, 100)
	check("MaxSpan", c.MaxSpan, minSpan, MaxSpan)
	return errors.Join(errs...)
}

// WithDefaults returns c with the defaults put in.
func (c Config) WithDefaults() Config {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.Group, MaxGroup)
	def(&c.MaxOverhead, 25)
	def(&c.MaxSpan, defaultMaxSpan)
	return c
}
