package wire

import (
	"encoding/binary"
	"fmt"
)

const (
	// FrameHeaderBytes is the size of a control frame's header.
	FrameHeaderBytes = 16
	// MaxPayload bounds the payload of a control frame, in bytes: 1 MiB.
	MaxPayload = 1 << 20
)

// Type says what a control frame means.
type Type uint8

// The control frames. The id of a frame names a call or a transfer.
const (
	TypeMetadata   Type = 1  // payload Metadata; id 0
	TypeCall       Type = 2  // payload opaque; id issued by the sender
	TypeResult     Type = 3  // payload opaque; id of the call it answers
	TypeCallError  Type = 4  // payload Failure; id of the call it answers
	TypeCallCancel Type = 5  // the caller no longer waits
	TypeBegin      Type = 6  // payload Begin; opens a transfer, repeatable
	TypeReady      Type = 7  // a write may start
	TypeAgain      Type = 8  // payload Again; to the side that sends pages
	TypeFailed     Type = 9  // payload Failure; the transfer is over
	TypeCancel     Type = 10 // payload Failure; the initiator ends the transfer
	TypeDone       Type = 11 // every page is verified; from the side that receives pages
	TypeAck        Type = 12 // answers Failed, Cancel and Done
	TypeProgress   Type = 13 // payload Progress; from the side that receives pages of a write
	TypePing       Type = 14 // nothing: whoever sends it watches for any packet in return
	TypePath       Type = 15 // payload Path; id 0; from an accepting side that sends pages
	TypeRetire     Type = 16 // id is the number of a stripe that takes no more chunks; from the dialler
	TypeQueued     Type = 17 // payload Queued; from the side that sends pages: others go first
	TypeCosts      Type = 18 // payload Costs; id 0; to a side that takes them
	typeEnd        Type = 19
)

// FlagOwn is set when the frame's id was issued by the frame's sender.
const FlagOwn = 1

// A FrameHeader precedes every control payload.
type FrameHeader struct {
	Type   Type
	Flags  uint8
	Length uint32 // payload bytes, at most MaxPayload
	ID     uint64
}

// Validate reports the first field that is out of range.
func (h FrameHeader) Validate() error {
	switch {
	case h.Type == 0 || h.Type >= typeEnd:
		return malformed("control frame", "type", h.Type, fmt.Sprintf("1 to %d", typeEnd-1))
	case h.Flags&^FlagOwn != 0:
		return malformed("control frame", "flags", h.Flags, "0 or 1")
	case h.Length > MaxPayload:
		return malformed("control frame", "length", h.Length, "at most 1048576")
	}
	return nil
}

// AppendFrame appends a header for payload, and payload, to b.
func AppendFrame(b []byte, t Type, flags uint8, id uint64, payload []byte) ([]byte, error) {
	if len(payload) > MaxPayload {
		return b, malformed("control frame", "payload", len(payload), "at most 1048576 bytes")
	}
	h := FrameHeader{Type: t, Flags: flags, Length: uint32(len(payload)), ID: id}
	if err := h.Validate(); err != nil {
		return b, err
	}
	b = append(b, byte(h.Type), h.Flags, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Length)
	b = binary.BigEndian.AppendUint64(b, h.ID)
	return append(b, payload...), nil
}

// DecodeFrameHeader decodes exactly FrameHeaderBytes bytes.
func DecodeFrameHeader(b []byte) (FrameHeader, error) {
	c := cursor{b: b, frame: "control frame"}
	h := FrameHeader{Type: Type(c.u8("type")), Flags: c.u8("flags")}
	if r := c.u16("reserved"); r != 0 {
		c.fail("reserved", r, "0")
	}
	h.Length = c.u32("length")
	h.ID = c.u64("id")
	if err := c.end(); err != nil {
		return FrameHeader{}, err
	}
	return h, h.Validate()
}
