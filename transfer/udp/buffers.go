package udp

import "fmt"

// DefaultBuffer is the least size of a socket's buffers that is asked for unless
// a Config says otherwise, bytes: a stall of 6 ms at 10 Gbit/s, and above the
// 7 MiB below which quic-go sets sizes itself and warns. A system whose
// net.core.rmem_max or net.core.wmem_max is less gives less.
const DefaultBuffer = 8 << 20

// Buffers are a socket's buffers in the kernel, as Listen or Wrap left them.
type Buffers struct{ Read, Write Buffer }

// A Buffer is one of them.
type Buffer struct {
	// Asked is the least size asked for, bytes; 0: none, the system's was kept.
	Asked int
	// Got is the size that it has, bytes, by the measure of Asked: Linux books
	// twice as much, for its own overhead.
	Got int
	// Fix is how to make Got reach Asked, as a command where there is one: on
	// Linux "sysctl -w net.core.rmem_max=8388608". Empty when it does.
	Fix string
}

// Short says that the system gave less than was asked for.
func (b Buffer) Short() bool { return b.Got < b.Asked }

// String is one line for a log or a check.
func (b Buffer) String() string {
	switch {
	case b.Asked == 0:
		return fmt.Sprintf("%d bytes, the system's default", b.Got)
	case b.Short():
		return fmt.Sprintf("%d bytes of %d asked for; %s", b.Got, b.Asked, b.Fix)
	}
	return fmt.Sprintf("%d bytes", b.Got)
}

// direction is a socket's way in or out.
type direction int

const (
	inbound direction = iota
	outbound
)

// enlarge brings both buffers to the sizes of the Config.
func (c *Conn) enlarge(cfg Config) {
	c.buffers = Buffers{Read: c.enlargeOne(inbound, cfg.ReadBuffer), Write: c.enlargeOne(outbound, cfg.WriteBuffer)}
}

func (c *Conn) enlargeOne(d direction, asked int) Buffer {
	b := Buffer{Asked: max(asked, 0)}
	b.Got = c.setBuffer(d, b.Asked)
	if b.Short() {
		b.Fix = bufferFix(d, b.Asked)
	}
	return b
}
