package kvdump

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func TestParseKeys(t *testing.T) {
	a, b := bytes.Repeat([]byte{0xa5}, 32), []byte("8 bytes!")
	for _, tt := range []struct {
		name, text, fault string
		want              [][]byte
	}{
		{name: "nothing"},
		{name: "hex and base64", text: hex.EncodeToString(a) + "\n" + base64.StdEncoding.EncodeToString(a) + "\r\n", want: [][]byte{a, a}},
		{name: "comments and blanks", text: "# two\n\n  " + strings.ToUpper(hex.EncodeToString(b)) + " ", want: [][]byte{b}},
		{name: "neither", text: "\n!", fault: "line 2"},
		{name: "seven bytes", text: "00112233445566", fault: "line 1"},
		{name: "65 bytes", text: strings.Repeat("00", 65), fault: "line 1"},
		{name: "a long line", text: "# \n" + strings.Repeat("0", 5000), fault: "line 2"},
		{name: "too many", text: strings.Repeat("0011223344556677\n", maxKeys+1), fault: "at most 65536"},
	} {
		got, err := ParseKeys(strings.NewReader(tt.text))
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s: %s", tt.name, d)
		}
		if in, ok := errors.AsType[*InputError](err); ok != (tt.fault != "") || ok && !strings.Contains(in.Error(), tt.fault) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.fault)
		}
	}
	gone := errors.New("gone")
	if _, err := ParseKeys(io.MultiReader(strings.NewReader("# \n"), iotest.ErrReader(gone))); !errors.Is(err, gone) {
		t.Errorf("a reader that fails: %v", err)
	}
}

// FuzzParseKeys: what is accepted has keys of the right length and is, written as hex, read as the same keys.
func FuzzParseKeys(f *testing.F) {
	f.Add("# x\n0011223344556677\nAAECAwQFBgcICQ==\n")
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := ParseKeys(strings.NewReader(text))
		if err != nil {
			return
		}
		var b strings.Builder
		for _, k := range keys {
			if len(k) < 8 || len(k) > 64 {
				t.Errorf("a key of %d bytes", len(k))
			}
			fmt.Fprintf(&b, "%x\n", k)
		}
		if again, err := ParseKeys(strings.NewReader(b.String())); err != nil || !cmp.Equal(again, keys) {
			t.Errorf("%q gave other keys the second time: %v", text, err)
		}
	})
}
