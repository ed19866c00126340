package transfer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/kvferry/kvferry/internal/fault"
	"github.com/kvferry/kvferry/transfer/wire"
)

// maxReceivers bounds the chunks of one stripe that are read at a time: more
// than a stripe's window holds, so that one that waits for a retransmission
// does not hold up the others.
const maxReceivers = 64

// acceptChunks takes the streams of a stripe, each on a goroutine of its own,
// and returns when the connection has ended and all of them are done.
func (l *Link) acceptChunks(s *stripe) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, maxReceivers)
	for {
		stream, err := s.conn.AcceptUniStream(s.conn.Context())
		if err != nil {
			return
		}
		slots <- struct{}{}
		wg.Go(func() {
			l.openStream(1)
			defer func() { l.openStream(-1); <-slots }()
			if err := l.receiveChunk(s, stream); err != nil {
				l.protocolError(err)
			}
		})
	}
}

// receiveChunk reads one chunk page by page. An error is a breach of the
// protocol.
//
// Pages pass through a pooled buffer and not straight into their place: quic-go
// copies under a mutex that it does not unlock on a panic, so a fault on a
// mapping that someone truncated would wedge the connection; and in this way no
// unverified byte ever reaches the place of a page.
func (l *Link) receiveChunk(s *stripe, stream *quic.ReceiveStream) error {
	buf := l.agent.inBuffers.Get().(*chunkBuffer)
	defer l.agent.inBuffers.Put(buf)
	buf.grow(wire.ChunkFixedBytes, 0)
	var h wire.ChunkHeader
	_ = stream.SetReadDeadline(time.Now().Add(l.agent.cfg.IdleTimeout)) // always nil
	if _, err := io.ReadFull(stream, buf.b); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			l.agent.metrics.cut.Inc()
			stream.CancelRead(quic.StreamErrorCode(CodeTimeout))
		}
		return l.unheaded(err)
	}
	_ = stream.SetReadDeadline(time.Time{})
	if err := wire.DecodeChunkHeader(&h, buf.b); err != nil {
		return err
	}
	key := flowKey{own: h.Flags&wire.FlagChunkOwn == 0, id: h.Transfer}
	l.mu.Lock()
	in := l.mu.intakes[key]
	l.mu.Unlock()
	if in == nil {
		l.agent.metrics.late.Inc()
		stream.CancelRead(quic.StreamErrorCode(CodeUnknownTransfer))
		return nil
	}
	if err := in.check(&h); err != nil {
		stream.CancelRead(quic.StreamErrorCode(CodeProtocol))
		return err
	}
	if !in.track(stream) {
		l.agent.metrics.late.Inc()
		stream.CancelRead(quic.StreamErrorCode(CodeUnknownTransfer))
		return nil
	}
	defer in.untrack(stream)
	return l.receivePages(s, stream, in, &h, buf)
}

// unheaded judges a stream that ended within its header: a reset or a broken
// connection is no breach. The pages are unknown, so the sender's record of the
// stripe, or the progress timeout, has to find them.
func (l *Link) unheaded(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("read chunk header: %w", io.ErrUnexpectedEOF)
	}
	return nil
}

func (l *Link) receivePages(s *stripe, stream *quic.ReceiveStream, in *intake, h *wire.ChunkHeader, buf *chunkBuffer) error {
	pages, pair, first := int(h.Pages), int(h.Pair), int(h.FirstPage)
	pageBytes := in.mems[pair].PageBytes
	buf.grow(max(4*pages, pageBytes), pages)
	if _, err := io.ReadFull(stream, buf.b[:4*pages]); err != nil {
		return l.broken(s, in, pair, first, pages, err)
	}
	if err := wire.DecodeSums(buf.sums, buf.b[:4*pages]); err != nil {
		return err
	}
	in.received.Add(int64(wire.ChunkFixedBytes + 4*pages))
	page := buf.b[:pageBytes]
	c := pageReader{coded: h.Codec == wire.CodecPages, left: int(h.WireLength), by: l.agent.processors, codes: &l.agent.inCodes}
	defer c.close()
	var bad []int
	for i := range pages {
		p, err := c.next(stream, page)
		if errors.Is(err, ErrProtocol) {
			return err
		}
		if err == nil {
			err = l.strike(stream, &p)
		}
		if err != nil {
			in.ask(wire.ReasonBadPage, s.number, bad)
			return l.broken(s, in, pair, first+i, pages-i, err)
		}
		l.agent.metrics.bytesReceived.Add(float64(pageBytes))
		in.received.Add(int64(p.wire + c.header()))
		l.pagesIn.add(p.codec, pageBytes, p.wire+c.header())
		l.pagesIn.busy.Add(int64(p.took))
		p.sum = buf.sums[i]
		again, over := in.land(pair, first+i, p)
		if over && i < pages-1 {
			stream.CancelRead(quic.StreamErrorCode(CodeCancelled))
			return nil
		}
		if again {
			bad = append(bad, in.base[pair]+first+i)
		}
	}
	in.ask(wire.ReasonBadPage, s.number, bad)
	in.report()
	if c.left != 0 {
		return fmt.Errorf("chunk of transfer %d has %d bytes besides its pages: %w", h.Transfer, c.left, ErrProtocol)
	}
	// The end of the stream has to be read for its credit to return.
	if n, err := stream.Read(page[:1]); n != 0 || err == nil {
		return fmt.Errorf("bytes after a chunk of transfer %d: %w", h.Transfer, ErrProtocol)
	}
	return nil
}

// strike has injected faults act on a page that has come.
func (l *Link) strike(stream *quic.ReceiveStream, p *arrived) error {
	name := string(l.agent.cfg.Name)
	if hit := fault.Page(fault.Receive, name, p.b); hit != nil {
		stream.CancelRead(quic.StreamErrorCode(CodeInternal))
		return fmt.Errorf("%w: %w", io.ErrUnexpectedEOF, hit)
	}
	if hit := fault.At(fault.Decode, name); hit != nil {
		p.err = fmt.Errorf("%w: %w", ErrChecksumMismatch, hit)
	}
	return nil
}

// broken deals with pages whose stream ended early. With the whole connection
// gone, they are asked for as the stripe's loss.
func (l *Link) broken(s *stripe, in *intake, pair, first, pages int, err error) error {
	se, reset := errors.AsType[*quic.StreamError](err)
	if reset && se.Remote && Code(se.ErrorCode) == CodeHedged {
		return nil // the pages come over another stripe
	}
	if reset || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		in.cutShort(pair, first, pages, s.number)
	}
	return nil
}

// report tells the initiator of a write how far it is.
func (in *intake) report() {
	if in.key.own {
		return
	}
	in.Lock()
	done, decided := in.done, in.decided
	in.Unlock()
	if !decided {
		in.link.push(wire.TypeProgress, 0, in.key.id, wire.AppendProgress(nil, uint64(done)))
	}
}
