package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// TestPrepareRefuses has each fault of a transfer's lists named before anything
// is sent.
func TestPrepareRefuses(t *testing.T) {
	f := loopback(t)
	a, b := f.open(1, nil), f.open(2, nil)
	mem := func(n *node, m transfer.Memory) transfer.MemoryID { return register(t, n, m) }
	plain := func(pages int) transfer.Memory { return transfer.Bytes(make([]byte, pages*8), 8) }
	deaf, mute := plain(4), plain(4)
	deaf.Sink, mute.Source = nil, nil
	theirs, theirsMute, theirs16 := mem(a, plain(4)), mem(a, mute), mem(a, transfer.Bytes(make([]byte, 64), 16))
	mine, mineDeaf := mem(b, plain(4)), mem(b, deaf)
	l := connect(t, b, a)
	waitMemory(t, l, theirs16)
	d := func(id transfer.MemoryID, offset uint64, pages uint32) transfer.Desc {
		return transfer.Desc{Memory: id, Offset: offset, Pages: pages}
	}
	list := func(ds ...transfer.Desc) []transfer.Desc { return ds }
	for _, tc := range []struct {
		name          string
		op            transfer.Op
		local, remote []transfer.Desc
		opts          transfer.TransferOptions
		field         string
		is            error
	}{
		{name: "no op", local: list(d(mine, 0, 1)), remote: list(d(theirs, 0, 1)), field: "op"},
		{name: "empty", op: transfer.Read, field: "local and remote"},
		{name: "uneven", op: transfer.Read, local: list(d(mine, 0, 1)), remote: list(d(theirs, 0, 1), d(theirs, 8, 1)), field: "local and remote"},
		{name: "unknown here", op: transfer.Read, local: list(d(99, 0, 1)), remote: list(d(theirs, 0, 1)), field: "local[0]", is: transfer.ErrUnknownMemory},
		{name: "unknown there", op: transfer.Read, local: list(d(mine, 0, 1)), remote: list(d(99, 0, 1)), field: "remote[0]", is: transfer.ErrUnknownMemory},
		{name: "beyond here", op: transfer.Read, local: list(d(mine, 8, 4)), remote: list(d(theirs, 0, 4)), field: "local[0]", is: transfer.ErrOutOfRange},
		{name: "beyond there", op: transfer.Read, local: list(d(mine, 0, 4)), remote: list(d(theirs, 1, 4)), field: "remote[0]", is: transfer.ErrOutOfRange},
		{name: "no pages", op: transfer.Read, local: list(d(mine, 0, 0)), remote: list(d(theirs, 0, 0)), field: "local[0]", is: transfer.ErrOutOfRange},
		{name: "counts differ", op: transfer.Read, local: list(d(mine, 0, 1)), remote: list(d(theirs, 0, 2)), field: "local[0] and remote[0]"},
		{name: "sizes differ", op: transfer.Read, local: list(d(mine, 0, 2)), remote: list(d(theirs16, 0, 2)), field: "local[0] and remote[0]"},
		{name: "no sink here", op: transfer.Read, local: list(d(mineDeaf, 0, 1)), remote: list(d(theirs, 0, 1)), field: "local[0]", is: transfer.ErrNotPermitted},
		{name: "no source there", op: transfer.Read, local: list(d(mine, 0, 1)), remote: list(d(theirsMute, 0, 1)), field: "remote[0]", is: transfer.ErrNotPermitted},
		{name: "no writing there", op: transfer.Write, local: list(d(mine, 0, 1)), remote: list(d(theirs, 0, 1)), field: "remote[0]", is: transfer.ErrNotPermitted},
		{name: "overlap", op: transfer.Read, local: list(d(mine, 0, 2), d(mine, 12, 1)), remote: list(d(theirs, 0, 2), d(theirs, 0, 1)), field: "local[1]", is: transfer.ErrOutOfRange},
		{name: "token", op: transfer.Read, local: list(d(mine, 0, 1)), remote: list(d(theirs, 0, 1)), opts: transfer.TransferOptions{Token: make([]byte, 257)}, field: "TransferOptions.Token"},
		{name: "notify", op: transfer.Read, local: list(d(mine, 0, 1)), remote: list(d(theirs, 0, 1)), opts: transfer.TransferOptions{Notify: make([]byte, 65537)}, field: "TransferOptions.Notify"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x, err := l.Prepare(tc.op, tc.local, tc.remote, tc.opts)
			fe, ok := errors.AsType[*transfer.FieldError](err)
			if x != nil || !ok || fe.Field != tc.field || tc.is != nil && !errors.Is(err, tc.is) {
				t.Errorf("prepare: %v", err)
			}
		})
	}
}

// TestStates walks a transfer through its states and the calls that come too
// early, twice or too late.
func TestStates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPull(t, overWAN(t, slow), 64, nil)
		x := p.prepare(t, transfer.TransferOptions{Timeout: time.Minute})
		if s := x.Progress().State; s != transfer.Prepared {
			t.Errorf("state %v", s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := x.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("wait before post: %v", err)
		}
		if err := x.Post(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("post with a dead context: %v", err)
		}
		if err := x.Post(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := x.Post(t.Context()); !errors.Is(err, transfer.ErrClosed) {
			t.Errorf("second post: %v", err)
		}
		// Every change shows: progress only grows, up to the end.
		last := -1
		for {
			changed := x.Changed()
			pr := x.Progress()
			if pr.PagesDone < last || pr.BytesDone != int64(pr.PagesDone*pageBytes) {
				t.Fatalf("after %d: %+v", last, pr)
			}
			last = pr.PagesDone
			if pr.State != transfer.Running {
				break
			}
			<-changed
		}
		x.Cancel() // too late
		res, err := x.Wait(t.Context())
		if err != nil || res.State != transfer.Done || last != 64 || x.Landed(0).Count() != 64 {
			t.Errorf("%+v, %v", res, err)
		}
		never := p.prepare(t, transfer.TransferOptions{})
		if err := errors.Join(never.Release(), never.Release()); err != nil {
			t.Error(err)
		}
		if err := never.Post(t.Context()); !errors.Is(err, transfer.ErrClosed) {
			t.Errorf("post after release: %v", err)
		}
		if s := never.Progress().State; s != transfer.Cancelled {
			t.Errorf("state %v", s)
		}
		late := p.post(t, transfer.TransferOptions{Timeout: 100 * time.Millisecond})
		if res, err := late.Wait(t.Context()); !errors.Is(err, context.DeadlineExceeded) || res.Duration != 100*time.Millisecond || res.State != transfer.Failed {
			t.Errorf("timeout: %+v, %v", res, err)
		}
		time.Sleep(time.Second)
		idle(t, p.src, p.dst)
	})
}

// TestConcurrent runs reads and writes in both directions at once over links
// that both sides dialled.
func TestConcurrent(t *testing.T) {
	f := loopback(t)
	nodes := []*node{f.open(1, nil), f.open(2, nil)}
	const pages, each = 24, 6
	memories := [2][]*probe{}
	ids := [2][]transfer.MemoryID{}
	for i, n := range nodes {
		for k := range 2 * each {
			p := newProbe(random(uint64(100*i+k), pages*pageBytes))
			memories[i] = append(memories[i], p)
			ids[i] = append(ids[i], register(t, n, p.memory()))
		}
	}
	links := []*transfer.Link{connect(t, nodes[0], nodes[1]), connect(t, nodes[1], nodes[0])}
	var wg sync.WaitGroup
	for i := range nodes {
		for k := range each {
			wg.Go(func() {
				// Even k: node i reads memory k of the other into each+k of its own;
				// odd k: it writes its own k into each+k of the other.
				op, mine, theirs := transfer.Read, each+k, k
				if k%2 == 1 {
					op, mine, theirs = transfer.Write, k, each+k
				}
				_, err := run(t, links[i], op, []transfer.Desc{{Memory: ids[i][mine], Pages: pages}},
					[]transfer.Desc{{Memory: ids[1-i][theirs], Pages: pages}}, transfer.TransferOptions{})
				if err != nil {
					t.Errorf("node %d, %v %d: %v", i, op, k, err)
				}
			})
		}
	}
	wg.Wait()
	for i, n := range nodes {
		for _, id := range ids[i] {
			if err := n.Deregister(id); err != nil {
				t.Error(err)
			}
		}
	}
	for i := range nodes {
		for k := range each {
			into, from := memories[i][each+k], memories[1-i][k]
			if k%2 == 1 {
				into = memories[1-i][each+k]
				from = memories[i][k]
			}
			if !bytes.Equal(into.b, from.b) {
				t.Errorf("node %d, %d: bytes differ", i, k)
			}
		}
	}
}
