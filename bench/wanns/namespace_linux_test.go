package wanns

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

func TestSentDrops(t *testing.T) {
	t.Parallel()
	const head = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n"
	for text, want := range map[string]int64{
		head + "    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0\n  wan0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n": 12,
		head + "wan0:1 2 3 4 5 6 7 8 9 10 11 0 13 14 15 16\n":     0,
		head + " wan01: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n": -1,
		head + " wan0: 1 2 3\n":                                   -1,
		head + " wan0: 1 2 3 4 5 6 7 8 9 10 11 x\n":               -1,
		"": -1,
	} {
		if got := sentDrops([]byte(text)); got != want {
			t.Errorf("%d, want %d in %s", got, want, text)
		}
	}
}

// Without the right to make namespaces, Open says which it is and leaves nothing.
func TestWithoutRoot(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("this is root")
	}
	name := fmt.Sprintf("kvftest-%d-", os.Getpid())
	p, err := Open(Config{A: name + "a", B: name + "b"})
	if err == nil {
		_ = p.Close()
		t.Skip("this user has the capabilities")
	}
	if !errors.Is(err, ErrNotPermitted) && !errors.Is(err, ErrNoTUN) {
		t.Error(err)
	}
}
