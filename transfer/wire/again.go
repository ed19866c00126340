package wire

import "encoding/binary"

// Reason says why pages are asked for once more.
type Reason uint8

// The reasons.
const (
	ReasonStripeLost Reason = 1 // of the pages, those that were sent over Stripe
	ReasonBadPage    Reason = 2 // all the pages, over another stripe than Stripe
	ReasonStalled    Reason = 3 // of the pages, those that were sent, each over another stripe than before
)

// Again asks the sending side for pages that did not arrive.
type Again struct {
	Reason Reason
	Stripe uint32
	Base   uint32 // page number of bit 0, over all descriptors in order
	Pages  Bitmap // 1 to MaxBits bits
}

// Validate reports the first field that is out of range.
func (m Again) Validate() error {
	const frame = "again"
	switch {
	case m.Reason < ReasonStripeLost || m.Reason > ReasonStalled:
		return malformed(frame, "reason", m.Reason, "1 to 3")
	case m.Pages.Len() < 1 || m.Pages.Len() > MaxBits:
		return malformed(frame, "bits", m.Pages.Len(), "1 to 4194304")
	case m.Base >= MaxPages || int(m.Base)+m.Pages.Len() > MaxPages:
		return malformed(frame, "base", m.Base, "at most 16777216 pages in all")
	}
	return nil
}

// AppendAgain validates m and appends it to b.
func AppendAgain(b []byte, m Again) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return b, err
	}
	b = append(b, byte(m.Reason), 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, m.Stripe)
	b = binary.BigEndian.AppendUint32(b, m.Base)
	b = binary.BigEndian.AppendUint32(b, uint32(m.Pages.Len()))
	return AppendBitmap(b, m.Pages), nil
}

// DecodeAgain decodes exactly one Again.
func DecodeAgain(b []byte) (Again, error) {
	c := cursor{b: b, frame: "again"}
	m := Again{Reason: Reason(c.u8("reason"))}
	if r := c.take(3, "reserved"); r != nil && r[0]|r[1]|r[2] != 0 {
		c.fail("reserved", r, "0")
	}
	m.Stripe = c.u32("stripe")
	m.Base = c.u32("base")
	n := c.u32("bits")
	if c.err != nil {
		return Again{}, c.err
	}
	if n > MaxBits {
		return Again{}, malformed("again", "bits", n, "1 to 4194304")
	}
	var err error
	if m.Pages, err = DecodeBitmap(c.b, int(n)); err != nil {
		return Again{}, err
	}
	return m, m.Validate()
}
