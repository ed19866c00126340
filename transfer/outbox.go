package transfer

import (
	"fmt"
	"sync"
)

// maxOutbox bounds the control bytes that wait for a connection: with messages
// of at most 1 MiB it is only met when the peer reads nothing.
const maxOutbox = 64 << 20

// outbox is the queue of control frames of a link. Its reader, the control
// writer, is the only one that waits: those who push run on control readers and
// must not.
type outbox struct {
	mu struct {
		sync.Mutex
		frames []outFrame
		bytes  int
	}
	ready chan struct{} // capacity 1: there may be frames
}

// outFrame is an encoded control frame; over is the stripe it must take, nil for
// the one that carries control.
type outFrame struct {
	b    []byte
	over *stripe
}

func (o *outbox) init() { o.ready = make(chan struct{}, 1) }

func (o *outbox) push(frame []byte) error { return o.pushOver(frame, nil) }

func (o *outbox) pushOver(frame []byte, over *stripe) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.bytes+len(frame) > maxOutbox {
		return fmt.Errorf("%d bytes of control messages wait for the peer: %w", o.mu.bytes, ErrBusy)
	}
	o.mu.frames = append(o.mu.frames, outFrame{frame, over})
	o.mu.bytes += len(frame)
	select {
	case o.ready <- struct{}{}:
	default:
	}
	return nil
}

// takeAll empties the queue.
func (o *outbox) takeAll() []outFrame {
	o.mu.Lock()
	defer o.mu.Unlock()
	frames := o.mu.frames
	o.mu.frames, o.mu.bytes = nil, 0
	return frames
}
