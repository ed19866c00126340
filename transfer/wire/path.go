package wire

import (
	"encoding/binary"
	"time"
)

// PathBytes is the size of a Path payload.
const PathBytes = 48

// maxPathTime bounds the round-trip times of a Path.
const maxPathTime = time.Hour

// A Path is what a side that sends pages knows of the path and the side that
// dialled does not: it decides on the number of connections. Counters are those
// of all connections since the link began, lost ones included.
type Path struct {
	// Starved: since the last Path, some connection could have taken a chunk and
	// there was none.
	Starved     bool
	PacketBytes uint32        // mean size of a sent packet; 0: none was sent
	Window      uint64        // congestion windows, in bytes, all connections together
	Sent, Lost  uint64        // packets
	RTTMin, RTT time.Duration // least of late; smoothed, a mean weighted by windows; at most an hour, 0: unknown
}

// Validate reports the first field that is out of range.
func (p Path) Validate() error {
	const frame, want = "path", "0 to 1h"
	switch {
	case p.RTTMin < 0 || p.RTTMin > maxPathTime:
		return malformed(frame, "least round-trip time", p.RTTMin, want)
	case p.RTT < 0 || p.RTT > maxPathTime:
		return malformed(frame, "round-trip time", p.RTT, want)
	}
	return nil
}

// AppendPath validates p and appends it to b.
func AppendPath(b []byte, p Path) ([]byte, error) {
	if err := p.Validate(); err != nil {
		return b, err
	}
	var starved byte
	if p.Starved {
		starved = 1
	}
	b = append(b, starved, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, p.PacketBytes)
	for _, v := range [...]uint64{p.Window, p.Sent, p.Lost, uint64(p.RTTMin), uint64(p.RTT)} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	return b, nil
}

// DecodePath decodes exactly one Path.
func DecodePath(b []byte) (Path, error) {
	c := cursor{b: b, frame: "path"}
	flags := c.u8("flags")
	if flags&^1 != 0 {
		c.fail("flags", flags, "0 or 1")
	}
	if r := c.take(3, "reserved"); r != nil && r[0]|r[1]|r[2] != 0 {
		c.fail("reserved", r, "0")
	}
	p := Path{Starved: flags == 1, PacketBytes: c.u32("packet bytes"), Window: c.u64("window"), Sent: c.u64("sent"), Lost: c.u64("lost")}
	p.RTTMin = time.Duration(c.u64("least round-trip time"))
	p.RTT = time.Duration(c.u64("round-trip time"))
	if err := c.end(); err != nil {
		return Path{}, err
	}
	return p, p.Validate()
}
