package udp

import (
	"errors"
	"fmt"
)

const (
	maxBuffer = 1<<30 - 1 // the kernel doubles it in 32 bits, signed
)

// Config configures a Conn. Zero means the documented default, negative means off
// where a field says so.
type Config struct {
	// NoGRO leaves receive offload (UDP_GRO) off where the kernel has it.
	NoGRO bool
	// ReadBuffer and WriteBuffer are the least sizes of the socket's buffers in
	// the kernel, bytes, at most 1 GiB - 1. A buffer that is larger already stays.
	// They cover the time in which the process is not scheduled: 8 MiB is 6 ms at
	// 10 Gbit/s. Default DefaultBuffer, 8 MiB; negative: as the system has it.
	ReadBuffer, WriteBuffer int
}

// Validate joins an error for each field that cannot be used.
func (c Config) Validate() error {
	check := func(field string, v int) error {
		if v > maxBuffer {
			return fmt.Errorf("udp: Config.%s is %d; allowed are 1 to %d bytes, 0 for the default, negative for the system's: choose a smaller buffer", field, v, maxBuffer)
		}
		return nil
	}
	return errors.Join(check("ReadBuffer", c.ReadBuffer), check("WriteBuffer", c.WriteBuffer))
}

func (c Config) withDefaults() Config {
	if c.ReadBuffer == 0 {
		c.ReadBuffer = DefaultBuffer
	}
	if c.WriteBuffer == 0 {
		c.WriteBuffer = DefaultBuffer
	}
	return c
}
