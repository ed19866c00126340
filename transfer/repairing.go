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

// answerRepair is what the answer to a hello that offers so says of repair: nothing to
// a peer of an older version, who would send what is not understood here.
func (c *Config) answerRepair(offer wire.Repair) wire.Repair {
	if offer.Version < repair.Version {
		return wire.Repair{}
	}
	return c.offerRepair()
}

// startRepair attaches a connected stripe to the repair of its socket, if both
// sides offer it.
func (l *Link) startRepair(s *stripe, offer wire.Repair) error {
	if s.repairConn == nil || offer.Version < repair.Version {
		return nil
	}
	send, receive := repairToken(l.nonce, s.number, l.dialled), repairToken(l.nonce, s.number, !l.dialled)
	state := s.conn.ConnectionState().TLS
	both, err := state.ExportKeyingMaterial("EXPORTER-kvferry-repair-2", nil, 2*len(repair.Key{}))
	if err != nil {
		return fmt.Errorf("start repair: export keys: %w", err)
	}
	sendKey, receiveKey := repair.Key(both), repair.Key(both[len(repair.Key{}):])
	if !l.dialled {
		sendKey, receiveKey = receiveKey, sendKey
	}
	s.repair, err = s.repairConn.Attach(repair.SessionConfig{
		Addr: s.conn.RemoteAddr(), Send: send, Receive: receive, SendKey: sendKey, ReceiveKey: receiveKey, MaxSpan: int(offer.Span), Estimator: l.losses,
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
