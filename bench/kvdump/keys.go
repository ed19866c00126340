package kvdump

import (
	"bufio"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// maxLine bounds a line of a list of keys: 64 bytes take 128 characters.
const maxLine = 1024

// ParseKeys reads block keys of 8 to 64 bytes, one a line: hex, or base64 as JSON has bytes. Lines that are empty or begin with '#' are left out.
// What is hex is taken for it. Errors: *InputError, which names the line; those of r.
func ParseKeys(r io.Reader) (keys [][]byte, err error) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	n := 0
	for s.Scan() {
		n++
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if len(keys) == maxKeys {
			return nil, &InputError{"keys", "more", fmt.Sprintf("at most %d", maxKeys)}
		}
		key, err := hex.DecodeString(line)
		if err != nil {
			key, err = base64.StdEncoding.Strict().DecodeString(line)
		}
		if err != nil || len(key) < 8 || len(key) > 64 {
			return nil, &InputError{fmt.Sprintf("keys, line %d", n), fmt.Sprintf("%q", line), "8 to 64 bytes, in hex or base64"}
		}
		keys = append(keys, key)
	}
	if s.Err() == bufio.ErrTooLong {
		return nil, &InputError{fmt.Sprintf("keys, line %d", n+1), "too long", "8 to 64 bytes, in hex or base64"}
	}
	return keys, s.Err()
}
