package arenafile_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvferry/kvferry/bench/arenafile"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

const (
	block  = 6000 // not a multiple of a page of the system
	stride = 8192
	page   = 3000
)

func registration(t *testing.T, slots int) *pb.RegisterEngineResponse {
	t.Helper()
	path := filepath.Join(t.TempDir(), "arena")
	if err := os.WriteFile(path, make([]byte, slots*stride), 0o600); err != nil {
		t.Fatal(err)
	}
	return &pb.RegisterEngineResponse{ArenaPath: path, Slots: uint32(slots), StrideBytes: stride, BlockBytes: block, PageBytes: page}
}

// What is written into a slot stands in the file at that slot's place, and no slot reaches into another.
func TestSlot(t *testing.T) {
	r := registration(t, 3)
	a, err := arenafile.Map(r, block, page)
	if err != nil {
		t.Fatal(err)
	}
	if a.Slots() != 3 || a.BlockBytes() != block || a.Path() != r.GetArenaPath() {
		t.Errorf("%d slots of %d bytes at %s", a.Slots(), a.BlockBytes(), a.Path())
	}
	want := make([]byte, 3*stride)
	for i := range 3 {
		mem, err := a.Slot(&pb.SlotRef{Slot: uint32(i)})
		if err != nil || len(mem) != block || cap(mem) != block {
			t.Fatalf("slot %d has %d bytes of %d: %v", i, len(mem), cap(mem), err)
		}
		for j := range mem {
			mem[j] = byte(i + 1)
			want[i*stride+j] = byte(i + 1)
		}
	}
	if got, err := os.ReadFile(r.GetArenaPath()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file holds something else: %v", err)
	}
	for _, ref := range []*pb.SlotRef{nil, {Slot: 3}, {Slot: 1 << 31}} {
		if mem, err := a.Slot(ref); mem != nil || !errors.Is(err, arenafile.ErrBadSlot) {
			t.Errorf("slot %v: %d bytes, %v", ref, len(mem), err)
		}
	}
	if err := errors.Join(a.Close(), a.Close()); err != nil {
		t.Error(err)
	}
	if _, err := a.Slot(&pb.SlotRef{}); !errors.Is(err, arenafile.ErrBadSlot) {
		t.Errorf("a slot after Close: %v", err)
	}
}

// What would be a SIGBUS or another's memory later is an error first.
func TestMapRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*pb.RegisterEngineResponse)
		want string
	}{
		{"other block", func(r *pb.RegisterEngineResponse) { r.BlockBytes = block + 1 }, "reads the layout otherwise"},
		{"other page", func(r *pb.RegisterEngineResponse) { r.PageBytes = 1 }, "reads the layout otherwise"},
		{"no slots", func(r *pb.RegisterEngineResponse) { r.Slots = 0 }, "0 slots"},
		{"slots that overlap", func(r *pb.RegisterEngineResponse) { r.StrideBytes = block - 1 }, "slots of 5999 bytes"},
		{"negative stride", func(r *pb.RegisterEngineResponse) { r.StrideBytes = -1 }, "slots of -1 bytes"},
		{"size overflows", func(r *pb.RegisterEngineResponse) { r.Slots, r.StrideBytes = 1<<32-1, 1<<62 }, "slots of"},
		{"file too short", func(r *pb.RegisterEngineResponse) { r.Slots = 4 }, "need 32768"},
		{"no file", func(r *pb.RegisterEngineResponse) { r.ArenaPath += "x" }, "open arena"},
	} {
		r := registration(t, 3)
		tc.edit(r)
		a, err := arenafile.Map(r, block, page)
		if a != nil || err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, %v, want %q", tc.name, a, err, tc.want)
		}
		if tc.name == "no file" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("no file: %v", err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}
