package refengine

import (
	"context"
	"fmt"
	"slices"
	"time"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// batchTokens is the length of one prefill step. Blocks divide it.
const batchTokens = segmentTokens

// Generate runs one turn and returns when it is done. It waits for the turn
// before it. Trouble with the daemon costs caching and is told in
// Result.Warnings; only publishing fails the call, with ErrPublish and the
// result. Other errors: the request's faults, joined, ctx's cause, ErrClosed.
func (e *Engine) Generate(ctx context.Context, req Request) (*Result, error) {
	if err := req.validate(e.cfg.Model); err != nil {
		return nil, err
	}
	if err := e.begin(ctx); err != nil {
		return nil, err
	}
	defer e.end()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(e.closing, func() { cancel(ErrClosed) })()

	t := &turn{e: e, ctx: ctx, req: req, tokens: slices.Clone(req.Tokens)}
	t.res = &Result{
		Tokens: []int{}, Steps: []Step{},
		Watermarked: e.cfg.Watermark != nil && req.Commit, Paced: e.cfg.Pace != nil,
	}
	defer t.finishTurn()
	if err := t.generate(); err != nil {
		return nil, err
	}
	e.count(func(c *Counters) { c.Requests++; c.Tokens += int64(len(t.res.Tokens)) })
	if req.Publish {
		return t.res, t.publish()
	}
	return t.res, nil
}

// turn is one request under way. It lives as long as Generate, so it holds ctx.
type turn struct {
	e   *Engine
	ctx context.Context //nolint:containedctx // the turn is the call
	req Request
	res *Result

	tokens []int    // prompt and what is generated so far
	keys   [][]byte // of the whole blocks of tokens whose KV exists, and of the prompt's
	seq    *sequence

	slots     map[int]*kvferryv1.SlotRef // reserved for a block and not committed
	pending   []int                      // blocks written and not committed
	elsewhere map[int]bool               // blocks that the daemon has and this cache lacks
	inDaemon  map[int]bool               // blocks that the daemon has
	attached  bool                       // to another arena, under way
	front     *front                     // beside a migration; nil: the turn has the prompt for itself
}

func (t *turn) blockTokens() int { return t.e.cfg.Model.BlockTokens }

// watermark is nil unless this turn's committed blocks are perturbed.
func (t *turn) watermark() *Watermark {
	if !t.req.Commit {
		return nil
	}
	return t.e.cfg.Watermark
}

func (t *turn) generate() error {
	start := time.Now()
	t.start()
	loaded := time.Now()
	step, err := t.prefill()
	if err != nil {
		return err
	}
	prefilled := time.Now()
	if err := t.decode(step); err != nil {
		return err
	}
	t.res.LoadSeconds = loaded.Sub(start).Seconds()
	t.res.PrefillSeconds = prefilled.Sub(loaded).Seconds()
	t.res.DecodeSeconds = time.Since(prefilled).Seconds()
	t.res.Keys = t.keys
	t.countCommitted()
	return nil
}

// countCommitted counts the blocks that the daemon has without a gap.
func (t *turn) countCommitted() {
	t.res.CommittedBlocks = 0
	for t.inDaemon[t.res.CommittedBlocks] {
		t.res.CommittedBlocks++
	}
}

// start finds the longest prefix that is cached and reserves room for the rest
// of the prompt's blocks.
func (t *turn) start() {
	t.forgetDaemon()
	t.keys = BlockKeys(t.e.cfg.Names.HashSeed, t.blockTokens(), t.tokens)
	if t.req.UseCache {
		t.e.applyInvalidations()
		t.seq = t.e.cache.take(t.req.Tenant, t.keys, t.watermark() != nil, t.blockTokens())
	}
	if t.seq == nil {
		if t.req.UseCache {
			t.e.cache.makeRoom()
		}
		t.seq = &sequence{tenant: t.req.Tenant, mem: t.e.compute.newMemory()}
	}
	local := len(t.seq.keys)
	if t.req.UseCache && local < len(t.keys) {
		t.load(local, t.keys[local:])
	}
	t.res.LocalTokens = local * t.blockTokens()
	t.res.LoadedTokens = (len(t.seq.keys) - local) * t.blockTokens()
	t.res.CachedTokens = t.res.LocalTokens + t.res.LoadedTokens
	t.front = t.newFront()
	switch {
	case t.front != nil: // the rest is reserved as it is granted
		t.front.until = len(t.seq.keys)
		t.reserve(0, t.keys[:len(t.seq.keys)])
	case t.req.Commit:
		t.reserve(0, t.keys)
	}
}

// prefill computes what is not cached of the prompt and returns the first
// step, if one is wanted.
func (t *turn) prefill() (step Step, err error) {
	n, size, want := len(t.tokens), t.blockTokens(), t.req.MaxNew > 0
	have := false // step follows from the cache as it stands
	for pos := len(t.seq.keys) * size; pos < n; {
		block := pos / size // a step starts at a block: blocks divide batches
		if t.waits(block) {
			if err = t.advance(block); err != nil {
				return step, err
			}
			pos = len(t.seq.keys) * size
			continue
		}
		if t.elsewhere[block] && t.loadOne(block) {
			pos += size
			t.res.CachedTokens += size
			t.res.LoadedTokens += size
			continue
		}
		to := min(n, t.stepEnd(pos))
		if step, err = t.seq.mem.prefill(t.ctx, t.tokens, t.keys, pos, to, want && to == n); err != nil {
			return step, err
		}
		have = want && to == n
		t.res.PrefilledTokens += to - pos
		for pos = to; (block+1)*size <= to; block++ {
			t.seq.add(t.keys[block], false)
			if t.finish(block) {
				have = false
			}
		}
		if t.front != nil { // the other end is told by it
			t.commit()
		}
	}
	t.commit()
	if !want || have {
		return step, nil
	}
	t.res.PrefilledTokens = max(t.res.PrefilledTokens, 1)
	return t.seq.mem.evaluate(t.ctx, t.tokens, t.keys, n-1)
}

// stepEnd is where a prefill step from pos ends at the latest: with a
// watermark after one block, which is perturbed before the next is computed,
// and never beyond a block that can be loaded.
func (t *turn) stepEnd(pos int) int {
	size := t.blockTokens()
	if t.watermark() != nil {
		return pos + size
	}
	end := pos + size
	for end < pos+batchTokens && !t.elsewhere[end/size] && !t.waits(end/size) {
		end += size
	}
	return end
}

// decode continues greedily from the first step.
func (t *turn) decode(step Step) (err error) {
	size := t.blockTokens()
	for i := range t.req.MaxNew {
		t.res.Steps = append(t.res.Steps, step)
		t.res.Tokens = append(t.res.Tokens, step.Token)
		t.tokens = append(t.tokens, step.Token)
		if i == t.req.MaxNew-1 {
			break // the last token has no KV yet
		}
		at := len(t.tokens) - 1
		if step, err = t.seq.mem.decode(t.ctx, t.tokens, t.keys, at); err != nil {
			return err
		}
		if (at+1)%size != 0 || !t.grow(at/size) {
			continue
		}
		if step, err = t.seq.mem.evaluate(t.ctx, t.tokens, t.keys, at); err != nil {
			return err
		}
	}
	return nil
}

// grow takes in a block that decoding has filled and says whether its KV
// changed as it was committed.
func (t *turn) grow(block int) (changed bool) {
	size := t.blockTokens()
	parent := rootKey(t.e.cfg.Names.HashSeed)
	if block > 0 {
		parent = t.keys[block-1]
	}
	key := nextKey(parent, t.tokens[block*size:(block+1)*size])
	t.keys = append(t.keys, key)
	if t.req.Commit {
		t.reserve(block, t.keys[block:])
		if t.elsewhere[block] && t.loadOne(block) {
			return true
		}
	}
	t.seq.add(key, false)
	changed = t.finish(block)
	t.commit()
	return changed
}

// finish perturbs a block that has a slot, if the engine does that, and writes
// it. A block that the daemon has but would not lend is perturbed too: it was
// when it was committed. It says whether the KV changed.
func (t *turn) finish(block int) (changed bool) {
	if t.slots[block] == nil && !t.inDaemon[block] {
		return false
	}
	if w := t.watermark(); w != nil && !t.seq.final[block] {
		t.seq.mem.perturb(block, t.keys[block], *w)
		changed = true
	}
	t.seq.final[block] = true
	if t.slots[block] != nil {
		t.write(block)
	}
	return changed
}

// finishTurn gives back what the turn still holds. It runs after every
// outcome.
func (t *turn) finishTurn() {
	t.abort()
	if t.req.UseCache && t.seq != nil {
		t.e.cache.put(t.seq)
	}
}

func (t *turn) warn(format string, args ...any) {
	const maxWarnings = 16
	if len(t.res.Warnings) < maxWarnings {
		t.res.Warnings = append(t.res.Warnings, fmt.Sprintf(format, args...))
	}
}
