package transfer

import (
	"fmt"

	"github.com/kvferry/kvferry/transfer/wire"
)

// Metadata is what an agent tells its peers about itself.
type Metadata struct {
	Peer     Peer
	Memories []MemoryShape // ascending ids
}

// MemoryShape describes a registered memory.
type MemoryShape struct {
	ID        MemoryID
	PageBytes int
	Length    int64 // bytes
	Readable  bool  // it has a Source
	Writable  bool  // peers may write into it
}

// Memory returns the shape of a memory.
func (m Metadata) Memory(id MemoryID) (MemoryShape, bool) {
	for _, r := range m.Memories {
		if r.ID == id {
			return r, true
		}
	}
	return MemoryShape{}, false
}

// MarshalBinary encodes m as wire.Metadata, for those who carry it by other
// means than a Link.
func (m Metadata) MarshalBinary() ([]byte, error) {
	w := wire.Metadata{Version: wire.Version, Name: string(m.Peer.ID), Incarnation: m.Peer.Incarnation}
	for _, r := range m.Memories {
		w.Memories = append(w.Memories, wire.Memory{
			ID: uint32(r.ID), PageBytes: uint32(r.PageBytes),
			Readable: r.Readable, Writable: r.Writable, Length: uint64(r.Length),
		})
	}
	return wire.AppendMetadata(nil, w)
}

// UnmarshalBinary decodes what MarshalBinary encoded. Errors wrap
// wire.ErrMalformed or ErrVersion.
func (m *Metadata) UnmarshalBinary(b []byte) error {
	w, err := wire.DecodeMetadata(b)
	if err != nil {
		return err
	}
	if w.Version != wire.Version {
		return &VersionError{Ours: wire.Version, Theirs: w.Version}
	}
	*m = Metadata{Peer: Peer{ID: PeerID(w.Name), Incarnation: w.Incarnation}}
	for _, r := range w.Memories {
		m.Memories = append(m.Memories, MemoryShape{
			ID: MemoryID(r.ID), PageBytes: int(r.PageBytes),
			Length: int64(r.Length), Readable: r.Readable, Writable: r.Writable,
		})
	}
	return nil
}

func (l *Link) pushMetadata() {
	payload, err := l.agent.Metadata().MarshalBinary()
	if err != nil { // Register bounds what is announced
		l.cancel(fmt.Errorf("BUG: encode metadata: %w", err))
		return
	}
	l.push(wire.TypeMetadata, 0, 0, payload)
}

func (l *Link) handleMetadata(payload []byte) error {
	var m Metadata
	if err := m.UnmarshalBinary(payload); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	m.Peer.Region = l.mu.peer.Region // the certificate's, which a peer has no word in
	if m.Peer != l.mu.peer {
		return fmt.Errorf("metadata of %q on the link of %q: %w", m.Peer.ID, l.mu.peer.ID, ErrProtocol)
	}
	l.mu.metadata = m
	if !l.mu.hasMeta {
		l.mu.hasMeta = true
		close(l.ready)
	}
	return nil
}
