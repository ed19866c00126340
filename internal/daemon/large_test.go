package daemon

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// Named blocks that do not fit in one call are refused by name.
func TestNamedBlocksTooMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := make([][]byte, 16_000)
		for i := range keys {
			keys[i] = append(bytes.Repeat([]byte("k"), 59), fmt.Sprintf("%05d", i)...)
		}
		req := request("")
		req.Session, req.SourceHint, req.Keys = &pb.SessionRef{}, "a", keys
		rep := r.b.mustEnd(req, failed, ReasonInvalid, nobody)
		if !strings.Contains(rep.GetMessage(), "split the call") {
			t.Errorf("message %s", rep.GetMessage())
		}
		req = request("")
		req.Session, req.SourceHint, req.Keys = &pb.SessionRef{}, "a", chain("many", maxKeysPerCall+1)
		_, _, err := r.b.migrate(req)
		wantError(t, err, ReasonInvalid)
		r.settle()
	})
}
