//go:build netns

package compare

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
	"github.com/kvferry/kvferry/bench/wanns"
)

// TestWANNamespaces: every way that this machine has crosses an emulated link, cold and warm, and the result is whole. CUBIC over a link
// that loses a hundredth of its packets is cut short.
func TestWANNamespaces(t *testing.T) {
	var links []wan.Model
	for _, s := range []string{"rtt=20ms,rate=50Mbps,loss=0", "rtt=70ms,rate=50Mbps,loss=1e-2,seed=1"} {
		m, err := wan.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, m)
	}
	res, err := RunWAN(t.Context(), WANConfig{Command: self(t), Links: links, Bytes: 8 << 20, Repeats: 1, Limit: 6 * time.Second})
	for _, missing := range []error{wanns.ErrNotPermitted, wanns.ErrNoTUN, wanns.ErrUnsupported} {
		if errors.Is(err, missing) {
			t.Skip(err)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	want := WANNames()
	if _, err := findRsync(); err != nil {
		want = slices.DeleteFunc(want, func(s string) bool { return s == nameRsync })
		if len(res.warned) != 1 || !strings.Contains(res.warned[0], "rsync-ssh is left out") {
			t.Errorf("warnings %v", res.warned)
		}
	}
	if len(res.Cells) != 2 {
		t.Fatalf("%d cells", len(res.Cells))
	}
	for i, c := range res.Cells {
		var names []string
		for _, o := range c.Results {
			names = append(names, o.Name)
			most := 1.0
			if o.Name == nameCoded {
				most = 1.5 // of the bytes before coding
			}
			if o.Cold == nil || o.Cold.Median <= 0 || o.Cold.Median > most {
				t.Errorf("%s over %s: cold %+v", o.Name, c.WAN, o.Cold)
			}
			if i == 0 && o.Name != nameRsync && (o.Warm == nil || o.Warm.Median <= 0) {
				t.Errorf("%s over %s: warm %+v", o.Name, c.WAN, o.Warm)
			}
			if i == 1 && o.Name == nameCUBIC && o.CutShort == 0 {
				t.Errorf("CUBIC was not cut short: %+v", o.Cold)
			}
		}
		if !slices.Equal(names, want) {
			t.Errorf("ways %v, want %v", names, want)
		}
	}
	f, err := res.File([]string{"kvferry"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := f.WriteFlat(&out); err != nil {
		t.Fatal(err)
	}
	if f, err = results.Parse(out.Bytes()); err != nil {
		t.Fatal(err)
	}
	var body WANBody
	if err := f.DecodeBody(&body); err != nil || len(body.Cells) != 2 {
		t.Errorf("%d cells, %v", len(body.Cells), err)
	}
	if list, err := exec.CommandContext(t.Context(), "ip", "netns").Output(); err == nil && strings.Contains(string(list), fmt.Sprintf("kvf%d", os.Getpid())) {
		t.Errorf("namespaces are left: %s", list)
	}
}
