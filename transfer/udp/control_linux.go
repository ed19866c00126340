package udp

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

var errControl = errors.New("malformed control message")

const cmsgHeader = unix.SizeofCmsghdr

func cmsgAlign(n int) int {
	const word = int(unsafe.Sizeof(uintptr(0)))
	return (n + word - 1) &^ (word - 1)
}

// cutControl splits off the first control message: space is what it takes with its
// padding, which the last one may lack.
func cutControl(b []byte) (level, kind int, body []byte, space int, err error) {
	if len(b) < cmsgHeader {
		return 0, 0, nil, 0, errControl
	}
	// By copy: the bytes need not be aligned.
	var h unix.Cmsghdr
	copy((*[cmsgHeader]byte)(unsafe.Pointer(&h))[:], b)
	n := uint64(h.Len)
	if n < cmsgHeader || n > uint64(len(b)) {
		return 0, 0, nil, 0, errControl
	}
	return int(h.Level), int(h.Type), b[cmsgHeader:n], min(cmsgAlign(int(n)), len(b)), nil
}

// splitControl takes the kernel's segment size, if it is there, out of the control
// messages in b; the others move together, in b.
func splitControl(b []byte) (rest []byte, segment int, err error) {
	kept := 0
	for pos := 0; pos < len(b); {
		level, kind, body, space, err := cutControl(b[pos:])
		if err != nil {
			return nil, 0, err
		}
		if level == unix.IPPROTO_UDP && kind == unix.UDP_GRO {
			if segment, err = groSegment(body); err != nil {
				return nil, 0, err
			}
		} else {
			kept += copy(b[kept:], b[pos:pos+space])
		}
		pos += space
	}
	return b[:kept], segment, nil
}

// groSegment reads an int; kernels that wrote 16 bits are said to exist.
func groSegment(body []byte) (int, error) {
	n := 0
	switch len(body) {
	case 2:
		n = int(binary.NativeEndian.Uint16(body))
	case 4:
		n = int(int32(binary.NativeEndian.Uint32(body)))
	}
	if n < 1 || n > messageBytes {
		return 0, errControl
	}
	return n, nil
}

// copyControl copies whole control messages, as many as fit, and says whether all
// did. src is what splitControl returned.
func copyControl(dst, src []byte) (n int, fits bool) {
	if len(src) <= len(dst) {
		return copy(dst, src), true
	}
	for n < len(src) {
		_, _, _, space, err := cutControl(src[n:])
		if err != nil || n+space > len(dst) {
			break
		}
		n += space
	}
	copy(dst, src[:n])
	return n, false
}
