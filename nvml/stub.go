package nvml

import (
	"context"
	"errors"
	"sync/atomic"
)

// ErrClosed is returned by Sample after Close.
var ErrClosed = errors.New("nvml: sampler is closed")

// reasonNoBinding is why a build without the driver binding has nothing to say.
const reasonNoBinding = "built without a driver binding"

// Open returns the sampler of this build, whose snapshots are unavailable: "built without a driver binding". The caller
// owes it a Close. The error is nil in this build.
func Open() (Sampler, error) { return Unavailable(reasonNoBinding), nil }

// Unavailable returns a sampler whose every snapshot is unavailable for that reason; "" reads "not sampled".
func Unavailable(reason string) Sampler { return &unavailable{reason: reason} }

type unavailable struct {
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
	return Snapshot{State: StateUnavailable, Reason: u.reason}, nil
}

func (u *unavailable) Close() error {
	u.closed.Store(true)
	return nil
}
