package nvml

import (
	"context"
	"sync/atomic"
)

// Unavailable returns a sampler whose every snapshot is unavailable for that reason, with [CauseOff]; "" reads "off".
func Unavailable(reason string) Sampler { return unavailableFor(CauseOff, reason) }

func unavailableFor(cause Cause, reason string) Sampler {
	return &unavailable{cause: cause, reason: reasonText(cause, reason)}
}

type unavailable struct {
	cause  Cause
	reason string
	closed atomic.Bool
}

func (u *unavailable) Sample(ctx context.Context) (Snapshot, error) {
	if ctx.Err() != nil {
		return Snapshot{}, context.Cause(ctx)
	}
	if u.closed.Load() {
		return Snapshot{}, ErrClosed
	}
	return Snapshot{State: StateUnavailable, Cause: u.cause, Reason: u.reason}, nil
}

func (u *unavailable) Close() error {
	u.closed.Store(true)
	return nil
}
