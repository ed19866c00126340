package arenafile_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvferry/kvferry/bench/arenafile"
	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

func Example() {
	// What a daemon's answer to RegisterEngine says, and the file that it has made.
	r := &pb.RegisterEngineResponse{ArenaPath: filepath.Join(os.TempDir(), fmt.Sprint("arenafile-", os.Getpid())), Slots: 2, StrideBytes: 8192, BlockBytes: 8192, PageBytes: 4096}
	if err := os.WriteFile(r.GetArenaPath(), make([]byte, 2*8192), 0o600); err != nil {
		panic(err)
	}
	defer func() { _ = os.Remove(r.GetArenaPath()) }()

	a, err := arenafile.Map(r, 8192, 4096)
	if err != nil {
		panic(err)
	}
	defer func() { _ = a.Close() }()
	mem, err := a.Slot(&pb.SlotRef{Slot: 1})
	fmt.Println(a.Slots(), "slots;", len(mem), "bytes to write:", err)
	// Output: 2 slots; 8192 bytes to write: <nil>
}
