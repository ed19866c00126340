package repair

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
)

const (
	// sealBytes end each repair packet: a number and a tag.
	sealBytes   = numberBytes + tagBytes
	numberBytes = 8
	tagBytes    = 12
	// replayWindow is how far behind the highest number one may come, packets.
	replayWindow = 1024
)

// A Key authenticates one direction of a session, and of no other: numbers begin
// at 0 with each session. Derive it from the QUIC connection's TLS exporter.
type Key [16]byte

// seal makes and checks the ends of packets: AES-GCM over everything before the
// tag, nothing encrypted, the number as nonce. The session's lock guards it.
type seal struct {
	aead  cipher.AEAD
	nonce [12]byte

	next uint64 // number of the next packet to send

	highest uint64 // one more than the highest number that came
	seen    [replayWindow / 64]uint64
}

func newSeal(k Key) seal {
	b, err := aes.NewCipher(k[:])
	if err != nil {
		panic("BUG: repair: cipher: " + err.Error())
	}
	a, err := cipher.NewGCMWithTagSize(b, tagBytes)
	if err != nil {
		panic("BUG: repair: tag: " + err.Error())
	}
	return seal{aead: a}
}

// size is what add appends; a sender without key, which no session has, seals nothing.
func (s *seal) size() int {
	if s.aead == nil {
		return 0
	}
	return sealBytes
}

// add seals the packet that begins at from in b.
func (s *seal) add(b []byte, from int) []byte {
	if s.aead == nil {
		return b
	}
	b = binary.BigEndian.AppendUint64(b, s.next)
	binary.BigEndian.PutUint64(s.nonce[4:], s.next)
	s.next++
	// The capacity of the whole is b's, and what is signed is not changed.
	return s.aead.Seal(b, s.nonce[:], nil, b[from:])
}

// open takes the seal off. False: the packet is forged, changed, or came before, and
// nothing of it was taken in.
func (s *seal) open(b []byte) (packet []byte, ok bool) {
	if len(b) < sealBytes {
		return nil, false
	}
	signed := len(b) - tagBytes
	n := binary.BigEndian.Uint64(b[signed-numberBytes:])
	if n+1 == 0 || n+replayWindow < s.highest || n < s.highest && s.seen[n/64%uint64(len(s.seen))]&(1<<(n%64)) != 0 {
		return nil, false
	}
	binary.BigEndian.PutUint64(s.nonce[4:], n)
	if _, err := s.aead.Open(nil, s.nonce[:], b[signed:], b[:signed]); err != nil {
		return nil, false
	}
	if n >= s.highest {
		if n-s.highest >= replayWindow {
			clear(s.seen[:])
		} else {
			for i := s.highest; i < n; i++ {
				s.seen[i/64%uint64(len(s.seen))] &^= 1 << (i % 64)
			}
		}
		s.highest = n + 1
	}
	s.seen[n/64%uint64(len(s.seen))] |= 1 << (n % 64)
	return b[:signed-numberBytes], true
}
