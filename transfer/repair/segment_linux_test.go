package repair

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// segmentMessage is the control message that quic-go sends batches with.
func segmentMessage(size int) []byte {
	b := make([]byte, unix.CmsgSpace(2))
	n := unix.CmsgLen(2)
	if unix.SizeofPtr == 8 {
		binary.NativeEndian.PutUint64(b, uint64(n))
	} else {
		binary.NativeEndian.PutUint32(b, uint32(n))
	}
	at := unix.SizeofCmsghdr - 8
	binary.NativeEndian.PutUint32(b[at:], unix.IPPROTO_UDP)
	binary.NativeEndian.PutUint32(b[at+4:], unix.UDP_SEGMENT)
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0):], uint16(size))
	return b
}
