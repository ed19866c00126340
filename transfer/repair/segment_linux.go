package repair

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// segmentBody finds the segment size among control messages (UDP_SEGMENT), nil: none.
func segmentBody(oob []byte) []byte {
	for len(oob) > 0 {
		h, body, rest, err := unix.ParseOneSocketControlMessage(oob)
		if err != nil {
			return nil
		}
		if h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_SEGMENT && len(body) >= 2 {
			return body
		}
		oob = rest
	}
	return nil
}

func segmentOf(oob []byte) int {
	if b := segmentBody(oob); b != nil {
		return int(binary.NativeEndian.Uint16(b))
	}
	return 0
}

// setSegment changes the segment size in oob; false: it has none.
func setSegment(oob []byte, size int) bool {
	b := segmentBody(oob)
	if b == nil {
		return false
	}
	binary.NativeEndian.PutUint16(b, uint16(size))
	return true
}
