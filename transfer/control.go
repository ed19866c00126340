package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvferry/kvferry/transfer/wire"
)

type answer struct {
	payload []byte
	err     error
}

// push queues a control frame. Encoding fails only on what callers bounded
// before; a full queue means a peer that reads nothing, and ends the link.
func (l *Link) push(t wire.Type, flags uint8, id uint64, payload []byte) {
	frame, err := wire.AppendFrame(make([]byte, 0, wire.FrameHeaderBytes+len(payload)), t, flags, id, payload)
	if err == nil {
		err = l.out.push(frame)
	}
	if err != nil {
		l.endSoon(fmt.Errorf("queue control message: %w", err), CodeBusy)
	}
}

// writeControl is the one writer of control frames. It ends with the link.
func (l *Link) writeControl() {
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.out.ready:
		}
		for _, frame := range l.out.takeAll() {
			s := frame.over
			if s == nil {
				if s = l.controlStripe(); s == nil {
					return
				}
				s.control.Store(true)
			}
			// A frame that is lost with its connection is made up for by resync.
			_, _ = s.stream.Write(frame.b)
		}
	}
}

// controlStripe waits for the stripe that carries control frames; nil: the link
// has ended.
func (l *Link) controlStripe() *stripe {
	for {
		l.mu.Lock()
		s, changed, ended := l.mu.control, l.mu.changed, l.mu.ended
		l.mu.Unlock()
		if ended {
			return nil
		}
		if s != nil {
			return s
		}
		select {
		case <-changed:
		case <-l.ctx.Done():
			return nil
		}
	}
}

// readControl reads the control frames of one stripe until its connection ends.
func (l *Link) readControl(s *stripe) {
	var head [wire.FrameHeaderBytes]byte
	for {
		if _, err := io.ReadFull(s.stream, head[:]); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				l.protocolError(fmt.Errorf("control stream ended: %w", err))
			}
			return
		}
		h, err := wire.DecodeFrameHeader(head[:])
		if err != nil {
			l.protocolError(err)
			return
		}
		payload, err := readPayload(s.stream, int(h.Length))
		if err != nil {
			return
		}
		if h.Type == wire.TypePing {
			continue
		}
		s.control.Store(true)
		l.follow(s)
		if err := l.dispatch(h, payload); err != nil {
			l.protocolError(fmt.Errorf("control frame type %d: %w", h.Type, err))
			return
		}
	}
}

// readPayload reads n bytes, and takes memory as they come: a length is a word, not bytes.
func readPayload(r io.Reader, n int) ([]byte, error) {
	b := make([]byte, 0, min(n, 16<<10))
	for len(b) < n {
		b = slices.Grow(b, min(n-len(b), max(len(b), 1)))
		part := b[len(b):min(cap(b), n)]
		if _, err := io.ReadFull(r, part); err != nil {
			return nil, err
		}
		b = b[:len(b)+len(part)]
	}
	return b, nil
}

// follow has the accepting side answer where the dialler speaks, which knows
// first when a stripe is dead.
func (l *Link) follow(s *stripe) {
	if l.dialled {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.stripes[s.number] == s {
		l.mu.control = s
	}
}

// protocolError ends the link: an authenticated peer that breaks the protocol
// is of another build or broken.
func (l *Link) protocolError(err error) {
	l.end(fmt.Errorf("peer %q: %w: %w", l.want, ErrProtocol, err), CodeProtocol)
}

// dispatch acts on one control frame. It must not block.
func (l *Link) dispatch(h wire.FrameHeader, payload []byte) error {
	key := flowKey{own: h.Flags&wire.FlagOwn == 0, id: h.ID}
	switch h.Type {
	case wire.TypeMetadata:
		return l.handleMetadata(payload)
	case wire.TypeCall:
		l.handleCall(h.ID, payload)
	case wire.TypeResult:
		l.handleAnswer(h.ID, answer{payload: payload})
	case wire.TypeCallError:
		f, err := wire.DecodeFailure(payload)
		if err != nil {
			return err
		}
		l.handleAnswer(h.ID, answer{err: &RemoteError{Code: Code(f.Code), Message: f.Message, Details: f.Details}})
	case wire.TypeCallCancel:
		l.mu.Lock()
		cancel := l.mu.serving[h.ID]
		l.mu.Unlock()
		if cancel != nil {
			cancel()
		}
	case wire.TypeBegin:
		return l.handleBegin(h.ID, payload)
	case wire.TypePath:
		p, err := wire.DecodePath(payload)
		if err != nil {
			return err
		}
		l.look(p, false)
	case wire.TypeCosts:
		m, err := wire.DecodeCosts(payload)
		if err != nil {
			return err
		}
		l.coder.heed(m)
	case wire.TypeRetire:
		l.handleRetire(h.ID)
	default:
		return l.dispatchTransfer(h.Type, key, payload)
	}
	return nil
}

// Call sends an opaque payload to the peer's Handler and returns its answer.
// Many calls may be in flight. payload is at most wire.MaxPayload (1 MiB) and
// is not retained. Errors: a *RemoteError from the peer; context.Cause(ctx), and
// the handler's context then ends; ErrAnswerLost when the connection under the
// call broke; ErrBusy; the link's end (ErrClosed, ErrPeerGone, ErrPeerRestarted).
func (l *Link) Call(ctx context.Context, payload []byte) ([]byte, error) {
	if len(payload) > wire.MaxPayload {
		return nil, &FieldError{Field: "payload", Value: len(payload), Allowed: "at most 1048576 bytes", Fix: "split the call"}
	}
	result := make(chan answer, 1) // the one answer never blocks its reader
	l.mu.Lock()
	if l.mu.ended {
		defer l.mu.Unlock()
		return nil, l.mu.err
	}
	l.mu.nextID++
	id := l.mu.nextID
	l.mu.calls[id] = result
	l.mu.Unlock()
	frame, err := wire.AppendFrame(nil, wire.TypeCall, wire.FlagOwn, id, payload)
	if err == nil {
		err = l.out.push(frame)
	}
	if err != nil {
		l.dropCall(id)
		return nil, fmt.Errorf("call %q: %w", l.want, err)
	}
	select {
	case a := <-result:
		return a.payload, a.err
	case <-ctx.Done():
		if l.dropCall(id) {
			l.push(wire.TypeCallCancel, wire.FlagOwn, id, nil)
		}
		return nil, context.Cause(ctx)
	}
}

func (l *Link) dropCall(id uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.mu.calls[id]
	delete(l.mu.calls, id)
	return ok
}

func (l *Link) handleAnswer(id uint64, a answer) {
	l.mu.Lock()
	c := l.mu.calls[id]
	delete(l.mu.calls, id)
	l.mu.Unlock()
	if c != nil { // else it came late: the caller has gone
		c <- a
	}
}

// handleCall runs the handler on a goroutine of its own, owned by the link.
func (l *Link) handleCall(id uint64, payload []byte) {
	handler := l.agent.cfg.Handler
	if handler == nil {
		l.push(wire.TypeCallError, 0, id, failure(&RemoteError{Code: CodeHandler, Message: "this node answers no calls"}))
		return
	}
	ctx, cancel := context.WithCancel(l.ctx)
	l.mu.Lock()
	full := len(l.mu.serving) >= maxCalls || l.mu.carried+len(payload) > maxCallBytes
	if full || l.mu.ended || l.mu.serving[id] != nil {
		l.mu.Unlock()
		cancel()
		if full {
			l.push(wire.TypeCallError, 0, id, failure(fmt.Errorf("as many calls of this peer are running as may, %d or %d bytes: %w", maxCalls, maxCallBytes, ErrBusy)))
		}
		return
	}
	l.mu.serving[id] = cancel
	l.mu.carried += len(payload)
	peer := l.mu.peer
	l.wg.Go(func() {
		defer cancel()
		out, err := handler(ctx, peer, payload)
		l.mu.Lock()
		delete(l.mu.serving, id)
		l.mu.carried -= len(payload)
		l.mu.Unlock()
		if err == nil && len(out) > wire.MaxPayload {
			err = fmt.Errorf("answer of %d bytes, at most %d", len(out), wire.MaxPayload)
		}
		if err != nil {
			l.push(wire.TypeCallError, 0, id, failure(handlerError(err)))
			return
		}
		l.push(wire.TypeResult, 0, id, out)
	})
	l.mu.Unlock()
}

// handlerError gives an error without a code of its own that of handlers.
func handlerError(err error) error {
	if codeOf(err) == CodeInternal {
		return &RemoteError{Code: CodeHandler, Message: err.Error()}
	}
	return err
}

// resync makes up for control frames that may be lost with a connection:
// calls in flight fail, everything about transfers is said again.
func (l *Link) resync() {
	lost := fmt.Errorf("peer %q: %w", l.want, ErrAnswerLost)
	l.mu.Lock()
	calls := l.mu.calls
	l.mu.calls = make(map[uint64]chan answer)
	finals := make(map[flowKey][]byte, len(l.mu.finals))
	for k, frame := range l.mu.finals {
		finals[k] = frame
	}
	intakes, outflows := l.flows()
	l.mu.Unlock()
	for _, c := range calls {
		c <- answer{err: lost}
	}
	l.pushMetadata()
	l.tellCosts(true)
	for _, in := range intakes {
		if in.key.own {
			l.pushBegin(wire.OpRead, in.key.id, in.remote)
		}
		in.resync()
	}
	for _, f := range outflows {
		if f.key.own {
			l.pushBegin(wire.OpWrite, f.key.id, f.remote)
		}
	}
	for _, frame := range finals {
		if err := l.out.push(frame); err != nil {
			l.endSoon(fmt.Errorf("queue control message: %w", err), CodeBusy)
			return
		}
	}
}
