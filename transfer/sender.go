package transfer

import (
	"errors"
	"fmt"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/internal/fault"
	"github.com/kvferry/kvferry/transfer/codec"
	"github.com/kvferry/kvferry/transfer/wire"
)

// chunkBuffer holds one chunk with its header on its way out, or one page on its
// way in.
type chunkBuffer struct {
	b    []byte
	sums []uint32
}

func (c *chunkBuffer) grow(bytes, sums int) {
	if cap(c.b) < bytes {
		c.b = make([]byte, bytes)
	}
	c.b = c.b[:bytes]
	if cap(c.sums) < sums {
		c.sums = make([]uint32, sums)
	}
	c.sums = c.sums[:sums]
}

// sendChunks is one of the senders of a stripe: it takes the next chunk of its
// class and writes it on a stream of its own, until the stripe or link ends. The
// write blocks while the connection cannot send, so chunks go to whichever
// stripe can.
func (l *Link) sendChunks(s *stripe, class Class) {
	w := newWriter(l, s, class)
	for {
		c, ok := l.sched.take(s.number, class)
		if !ok {
			return
		}
		lost, err := l.sendChunk(w, c)
		l.sched.sent(c, s.number, lost)
		if err != nil {
			l.endStuck(c.flow, err)
		}
		l.hedge()
	}
}

// sendChunk sends one chunk. lost: the connection broke under it. An error is a
// fault of the source, or of a peer that takes nothing, and fails the transfer.
func (l *Link) sendChunk(w *writer, c chunk) (lost bool, err error) {
	f, s := c.flow, w.stripe
	buf := l.agent.outBuffers.Get().(*chunkBuffer)
	defer l.agent.outBuffers.Put(buf)
	head, raw := wire.ChunkBytes(c.pages), int(c.bytes())
	buf.grow(head+raw, c.pages)
	if err := f.read(c, buf.b[head:], buf.sums); err != nil {
		if errors.Is(err, ErrClosed) && f.hasEnded() {
			return false, nil
		}
		return false, err
	}
	h := wire.ChunkHeader{
		Codec: wire.CodecRaw, Pages: uint32(c.pages), Transfer: f.key.id, Pair: uint32(c.pair),
		FirstPage: uint32(c.first), RawLength: uint32(raw), WireLength: uint32(raw),
	}
	if f.key.own {
		h.Flags = wire.FlagChunkOwn
	}
	id, n, err := l.code(c, buf.b[head:])
	if err != nil {
		return false, fmt.Errorf("code chunk: %w", err)
	}
	if id != codec.Raw {
		buf.b = buf.b[:head+n]
		h.Codec, h.WireLength = wire.CodecPages, uint32(n)
	}
	if err := wire.PutChunkHeader(buf.b, &h, buf.sums); err != nil {
		return false, fmt.Errorf("encode chunk: %w", err)
	}
	stream, err := l.openChunk(f, s)
	if err != nil {
		return l.stuck(s, c, err)
	}
	l.openStream(1)
	defer l.openStream(-1)
	// Streams of one urgency go out in the order they were opened, so that a
	// chunk is whole before the next one begins; the rest of a chunk waits while
	// one of a higher class is written to the same connection.
	stream.SetPriority(f.class.urgency(), false)
	if !f.track(stream) {
		stream.CancelWrite(quic.StreamErrorCode(CodeCancelled))
		return false, nil
	}
	defer f.untrack(stream)
	r := l.hedges.begin(s, c, stream)
	if r == nil {
		stream.CancelWrite(quic.StreamErrorCode(CodeHedged))
		return false, nil
	}
	defer func() { l.hedges.end(r, l.sched.hasReady()) }()
	switch travels := int64(h.WireLength); {
	case c.twin != nil: // nothing was charged for it yet
		l.sched.charge(c, travels)
	case travels != int64(raw):
		l.sched.charge(c, travels-int64(raw))
	}
	if hit := fault.At(fault.Send, string(l.agent.cfg.Name)); hit != nil {
		breakOff(stream, buf.b, head, hit)
		return false, nil
	}
	if err := w.write(stream, c, buf.b, r); err != nil {
		// A reset by either end is an answer: the receiver asks for what it
		// misses. Everything else is the connection's end.
		if _, reset := errors.AsType[*quic.StreamError](err); reset {
			return false, nil
		}
		return l.stuck(s, c, err)
	}
	if err := stream.Close(); err != nil {
		return false, nil // reset by the flow's end, at the same time
	}
	l.agent.metrics.bytesSent.Add(float64(raw))
	l.pagesOut.add(id, raw, n)
	if !l.hedges.written(r) {
		return false, nil
	}
	if c.twin != nil {
		l.sched.carried(c, s.number)
	}
	if hook := l.agent.cfg.OnServed; hook != nil && !f.key.own {
		hook(l.Peer(), f.served(int64(raw)))
	}
	return false, nil
}

// breakOff ends a chunk's stream before its end, as an injected fault asks for: with a reset, or as if that were all.
func breakOff(stream *quic.SendStream, b []byte, head int, hit error) {
	if !fault.Is(hit, fault.Short) {
		stream.CancelWrite(quic.StreamErrorCode(CodeInternal))
		return
	}
	_, _ = stream.Write(b[:(head+len(b))/2])
	_ = stream.Close()
}

// served is the report of bytes that went out.
func (f *outflow) served(bytes int64) Served {
	r := Served{Token: f.token, Class: f.class, Tenant: f.share.Tenant, Bytes: bytes}
	f.link.sched.mu.Lock()
	defer f.link.sched.mu.Unlock()
	if r.First = !f.sched.reported; r.First {
		f.sched.reported, r.Waited = true, f.sched.waited
	}
	return r
}
