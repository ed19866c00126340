package daemon

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	pb "github.com/kvferry/kvferry/proto/kvferry/v1"
)

// A session whose keys do not fit in one answer is refused by name, and the refusal holds nothing at the source.
func TestSessionTooLargeForOneAnswer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, fast, nil)
		keys := make([][]byte, 16_000)
		for i := range keys {
			keys[i] = append(bytes.Repeat([]byte("k"), 59), fmt.Sprintf("%05d", i)...)
		}
		r.ea.write("", keys[:4])
		r.ea.publish("", "s", keys, int64(len(keys))*16)
		rep := r.b.mustEnd(request("s"), failed, ReasonModeUnavailable, unmoved)
		if !strings.Contains(rep.GetMessage(), "too many blocks") {
			t.Errorf("message %s", rep.GetMessage())
		}
		r.wantOwner("s", "a")
		r.ea.check("", keys[:4])
		r.settle()

		req := request("")
		req.Session, req.SourceHint, req.Keys = &pb.SessionRef{}, "a", keys
		rep = r.b.mustEnd(req, failed, ReasonInvalid, nobody)
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
