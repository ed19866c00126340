package refengine

import (
	"context"
	"time"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// ClaimBlocks is how many blocks a turn beside a migration claims at a time: as many as it would compute in a few steps.
const ClaimBlocks = 16

const (
	// frontPoll is how often a front that waits for the fetch looks.
	frontPoll = 3 * time.Millisecond
)

// front is the engine's end of a migration that fetches from the back while
// this turn computes from the front. It ends with the migration, or when the
// daemon knows nothing of it; the turn then computes what is missing.
type front struct {
	client    kvferryv1.MigrationServiceClient
	migration string
	until     int // blocks before it are this end's
}

// newFront is nil for a turn that no migration runs beside.
func (t *turn) newFront() *front {
	if t.req.Migration == "" {
		return nil
	}
	return &front{client: kvferryv1.NewMigrationServiceClient(t.e.conn), migration: t.req.Migration}
}

// waits says that a block is neither granted nor loaded.
func (t *turn) waits(block int) bool {
	return t.front != nil && block < len(t.keys) && block >= t.front.until
}

// advance gets the next block: by loading what has landed, or by a grant to
// compute it. It waits as long as the fetch is to bring it. It returns ctx's
// cause.
func (t *turn) advance(block int) error {
	for t.waits(block) {
		before := len(t.seq.keys)
		if t.load(block, t.keys[block:min(len(t.keys), block+maxLoad)]); len(t.seq.keys) > before {
			n := (len(t.seq.keys) - before) * t.blockTokens()
			t.res.CachedTokens += n
			t.res.LoadedTokens += n
			return nil
		}
		ctx, cancel := t.call()
		got, err := t.front.client.ClaimPrefill(ctx, &kvferryv1.ClaimPrefillRequest{
			MigrationId: t.front.migration, ComputedBlocks: uint32(block), WantBlocks: ClaimBlocks,
		})
		cancel()
		switch until := int(got.GetGrantedUntil()); {
		case t.ctx.Err() != nil:
			return context.Cause(t.ctx)
		case err != nil:
			t.warn("claim blocks of migration %s: %v; all are computed", t.front.migration, err)
			t.endFront(block)
		case got.GetEnded():
			t.endFront(block)
		case until > block:
			t.front.until = until
			t.reserve(block, t.keys[block:min(until, len(t.keys))])
		default:
			if err := sleep(t.ctx, frontPoll.Seconds()); err != nil {
				return err
			}
		}
	}
	return nil
}

// maxLoad bounds the blocks that are looked up at a time.
const maxLoad = 256

// endFront leaves the rest of the prompt to this turn alone.
func (t *turn) endFront(block int) {
	t.front = nil
	t.load(block, t.keys[block:]) // what landed last
	n := (len(t.seq.keys) - block) * t.blockTokens()
	t.res.CachedTokens += n
	t.res.LoadedTokens += n
	t.reserve(len(t.seq.keys), t.keys[len(t.seq.keys):])
}
