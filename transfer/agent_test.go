package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kvferry/kvferry/transfer"
)

// TestBytesMove reads and writes plain memory of odd shapes over loopback; the
// oracle is the source itself.
func TestBytesMove(t *testing.T) {
	f := loopback(t)
	src := f.open(1, nil)
	dst := f.open(2, nil)
	l := connect(t, dst, src)
	for _, tc := range []struct {
		name      string
		pageBytes int
		blocks    []int // pages of each descriptor
	}{
		{"one byte", 1, []int{1}},
		{"tiny pages", 7, []int{1, 2, 5000}},
		{"one page", 64 << 10, []int{1}},
		{"blocks", 64 << 10, []int{80, 80, 80}},
		{"not a power of two", 36864, []int{61, 61}},
		{"page larger than a chunk", 3<<20 + 5, []int{2, 1}},
		{"largest page", 4 << 20, []int{1}},
	} {
		for _, op := range []transfer.Op{transfer.Read, transfer.Write} {
			t.Run(fmt.Sprintf("%v %s", op, tc.name), func(t *testing.T) {
				pages := 0
				for _, n := range tc.blocks {
					pages += n
				}
				want := random(uint64(pages), pages*tc.pageBytes)
				got := make([]byte, len(want)+17)
				a, b := transfer.Bytes(want, tc.pageBytes), transfer.Bytes(got, tc.pageBytes)
				from, to := src, dst
				if op == transfer.Write {
					from, to = dst, src
					b.RemoteWrite = true
				}
				ia, ib := register(t, from, a), register(t, to, b)
				theirs, mine := ia, ib
				if op == transfer.Write {
					theirs, mine = ib, ia
				}
				waitMemory(t, l, theirs)
				// The destination's descriptors are in reverse order of place.
				var there, here []transfer.Desc
				at, end := 0, pages
				for _, n := range tc.blocks {
					end -= n
					there = append(there, transfer.Desc{Offset: uint64(at * tc.pageBytes), Pages: uint32(n)})
					here = append(here, transfer.Desc{Offset: uint64(end * tc.pageBytes), Pages: uint32(n)})
					at += n
				}
				for i := range there {
					there[i].Memory, here[i].Memory = ia, ib
				}
				local, remote := here, there
				if op == transfer.Write {
					local, remote = there, here
				}
				for i := range local {
					local[i].Memory, remote[i].Memory = mine, theirs
				}
				res, err := run(t, l, op, local, remote, transfer.TransferOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if res.State != transfer.Done || res.PagesDone != pages || res.BytesDone != int64(len(want)) {
					t.Errorf("result %+v", res)
				}
				// Deregister also orders the peer's writes before what follows.
				for n, id := range map[*node]transfer.MemoryID{from: ia, to: ib} {
					if err := n.Deregister(id); err != nil {
						t.Error(err)
					}
				}
				for i := range there {
					n := int(there[i].Pages) * tc.pageBytes
					if !bytes.Equal(want[there[i].Offset:][:n], got[here[i].Offset:][:n]) {
						t.Errorf("descriptor %d differs", i)
					}
				}
				if !bytes.Equal(got[len(want):], make([]byte, 17)) {
					t.Error("bytes beyond the descriptors changed")
				}
			})
		}
	}
}

// TestCall holds calls in both directions, and their errors.
func TestCall(t *testing.T) {
	f := loopback(t)
	echo := func(_ context.Context, from transfer.Peer, p []byte) ([]byte, error) {
		switch string(p) {
		case "own":
			return nil, &transfer.RemoteError{Code: transfer.CodeUser + 3, Message: "mine", Details: []byte{1, 2}}
		case "stale":
			return nil, fmt.Errorf("slot 3: %w", transfer.ErrStaleGeneration)
		case "plain":
			return nil, errors.New("plain trouble")
		}
		return append([]byte(from.ID+":"), p...), nil
	}
	a := f.open(1, func(c *transfer.Config) { c.Handler = echo })
	b := f.open(2, func(c *transfer.Config) { c.Handler = echo })
	forth := connect(t, b, a)
	back := a.Links()[0]
	if forth.Peer() != a.Peer() || back.Peer() != b.Peer() {
		t.Errorf("peers %v and %v", forth.Peer(), back.Peer())
	}
	for _, tc := range []struct {
		link *transfer.Link
		from *node
	}{{forth, b}, {back, a}} {
		big := random(1, 1<<20-len(tc.from.name)-1)
		got, err := tc.link.Call(t.Context(), big)
		if err != nil || !bytes.Equal(got, append([]byte(tc.from.name+":"), big...)) {
			t.Errorf("call: %d bytes, %v", len(got), err)
		}
		_, err = tc.link.Call(t.Context(), []byte("own"))
		if re, ok := errors.AsType[*transfer.RemoteError](err); !ok || re.Code != transfer.CodeUser+3 || re.Message != "mine" || !bytes.Equal(re.Details, []byte{1, 2}) {
			t.Errorf("own error arrived as %#v", err)
		}
		if _, err = tc.link.Call(t.Context(), []byte("stale")); !errors.Is(err, transfer.ErrStaleGeneration) {
			t.Errorf("stale arrived as %v", err)
		}
		_, err = tc.link.Call(t.Context(), []byte("plain"))
		if re, ok := errors.AsType[*transfer.RemoteError](err); !ok || re.Code != transfer.CodeHandler || re.Message != "plain trouble" {
			t.Errorf("plain error arrived as %v", err)
		}
	}
	if again := connect(t, b, a); again != forth {
		t.Error("a second Connect made another link")
	}
}
