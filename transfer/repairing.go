package transfer

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/kvferry/kvferry/transfer/repair"
	"github.com/kvferry/kvferry/transfer/wire"
)

// offerRepair is what a hello says of repair.
func (c *Config) offerRepair() wire.Repair {
	if c.Repair.Off() {
		return wire.Repair{}
	}
	return wire.Repair{Version: repair.Version, Span: uint16(c.Repair.MaxSpan)}
}

// startRepair attaches a connected stripe to the repair of its socket, if both
// sides offer it.
func (l *Link) startRepair(s *stripe, offer wire.Repair) error {
	if s.repairConn == nil || offer.Version < repair.Version {
		return nil
	}
	send, receive := repairToken(l.nonce, s.number, l.dialled), repairToken(l.nonce, s.number, !l.dialled)
	var err error
	s.repair, err = s.repairConn.Attach(repair.SessionConfig{
		Addr: s.conn.RemoteAddr(), Send: send, Receive: receive, MaxSpan: int(offer.Span), Estimator: l.losses,
		Path: func() repair.Path {
			c := s.conn.ConnectionStats()
			return repair.Path{Addr: s.conn.RemoteAddr(), RTT: c.SmoothedRTT, Latest: c.LatestRTT, Least: c.MinRTT, Sent: c.PacketsSent, Lost: c.PacketsLost}
		},
	})
	if err != nil {
		return fmt.Errorf("start repair: %w", err)
	}
	return nil
}

// endRepair ends what startRepair began.
func (s *stripe) endRepair() {
	if s.repair != nil {
		_ = s.repair.Close() // never fails
	}
}

func (s *stripe) repairStats() repair.Stats {
	if s.repair == nil {
		return repair.Stats{}
	}
	return s.repair.Stats()
}

// repairToken names one direction of a stripe. The nonce is known to the two ends
// only: it crosses the network inside of TLS.
func repairToken(nonce wire.Nonce, stripe uint32, fromDialler bool) repair.Token {
	b := append([]byte("kvferry repair 1 "), nonce[:]...)
	b = binary.BigEndian.AppendUint32(b, stripe)
	if fromDialler {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	sum := sha256.Sum256(b)
	return repair.Token(sum[:len(repair.Token{})])
}
