package fault

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	text := "commit:3:kill,send:17:short,read:5-9:corrupt,persist:2:error,reply:4:lose,receive:30:stall=2s"
	want := Schedule{
		{Commit, 3, 3, Kill, 0},
		{Send, 17, 17, Short, 0},
		{Read, 5, 9, Corrupt, 0},
		{Persist, 2, 2, Fails, 0},
		{Reply, 4, 4, Lose, 0},
		{Receive, 30, 30, Stall, 2 * time.Second},
	}
	got, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if got.String() != text {
		t.Errorf("text %q", got)
	}
	if got, err := Parse(""); err != nil || got != nil || got.String() != "" {
		t.Errorf("an empty text: %v, %v", got, err)
	}
}

// Every pair of boundary and kind survives its text form.
func TestEveryShot(t *testing.T) {
	for _, b := range Boundaries() {
		for k := range kinds {
			s := Schedule{{Boundary: b, First: 7, Last: 7, Kind: k}}
			if k == Stall {
				s[0].For = 1500 * time.Millisecond
			}
			got, err := Parse(s.String())
			if err != nil || !cmp.Equal(s, got) {
				t.Errorf("%v: %v, %v", s, got, err)
			}
		}
	}
	if boundaries.String() != fmt.Sprintf("boundary %d", boundaries) || kinds.String() != fmt.Sprintf("kind %d", kinds) {
		t.Error("a value beyond the last has a name")
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"commit", "boundary:ordinal:kind"},
		{"commit:1:kill:x", "boundary:ordinal:kind"},
		{"comit:1:kill", "it must be one of read, send,"},
		{"commit:0:kill", "1 or more"},
		{"commit:+1:kill", "1 or more"},
		{"commit:01:kill", "1 or more"},
		{"commit::kill", "1 or more"},
		{"commit:9223372036854775808:kill", "1 or more"},
		{"commit:5-5:kill", "the last must be above the first"},
		{"commit:5-3:kill", "the last must be above the first"},
		{"commit:5-:kill", "1 or more"},
		{"commit:1:boom", "it must be one of error, short,"},
		{"commit:1:stall", "stall takes a duration"},
		{"commit:1:kill=1s", "no other kind does"},
		{"commit:1:stall=0s", "more than 0"},
		{"commit:1:stall=2h0m0s", "at most 1h0m0s"},
		{"commit:1:stall=1000ms", "shortest form"},
		{"commit:1:kill,", "boundary:ordinal:kind"},
	} {
		if got, err := Parse(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, %v, want %q", c.text, got, err, c.want)
		}
	}
	if _, err := Parse(strings.Repeat("commit:1:kill,", maxShots) + "commit:1:kill"); err == nil || !strings.Contains(err.Error(), "more than 4096") {
		t.Errorf("too many shots: %v", err)
	}
}

// What is drawn depends on the source alone, stays within the choices, and reaches all of them.
func TestDraw(t *testing.T) {
	from := []Choice{{Boundary: Read, Kind: Corrupt, Reach: 100, Run: 4}, {Boundary: Reply, Kind: Stall, Reach: 1, Longest: 3 * time.Second}, {Boundary: Commit, Kind: Kill}}
	seen := map[uint64]bool{}
	kindsSeen := map[Kind]int{}
	for seed := range uint64(200) {
		a, b := Draw(rand.New(rand.NewPCG(seed, 1)), 5, from), Draw(rand.New(rand.NewPCG(seed, 1)), 5, from)
		if !cmp.Equal(a, b) {
			t.Fatalf("seed %d: %v and %v", seed, a, b)
		}
		if again, err := Parse(a.String()); err != nil || !cmp.Equal(a, again) {
			t.Fatalf("seed %d: %v: %v, %v", seed, a, again, err)
		}
		for _, s := range a {
			kindsSeen[s.Kind]++
			switch {
			case s.Kind == Corrupt && s.Boundary == Read && s.First >= 1 && s.First <= 100 && s.Last >= s.First && s.Last < s.First+4:
				seen[s.First] = true
			case s.Kind == Stall && s.Boundary == Reply && s.First == 1 && s.Last == 1 && s.For > 0 && s.For <= 3*time.Second:
			case s.Kind == Kill && s.Boundary == Commit && s.First == 1 && s.Last == 1:
			default:
				t.Errorf("seed %d: shot %v", seed, s)
			}
		}
	}
	if len(kindsSeen) != 3 || !seen[1] || len(seen) < 20 {
		t.Errorf("kinds %v, %d ordinals", kindsSeen, len(seen))
	}
	if got := Draw(rand.New(rand.NewPCG(1, 1)), 3, nil); got != nil {
		t.Errorf("drawn from nothing: %v", got)
	}
}

func TestParseBugs(t *testing.T) {
	all := make([]string, 0, len(Bugs()))
	for _, b := range Bugs() {
		all = append(all, string(b))
	}
	if got, err := ParseBugs(strings.Join(all, ",")); err != nil || !slices.Equal(got, Bugs()) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ParseBugs(""); err != nil || got != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"x", "salt-dropped,", ",", "salt-dropped,nope"} {
		if got, err := ParseBugs(bad); err == nil || !strings.Contains(err.Error(), "must be one of") {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}

func TestError(t *testing.T) {
	cause := errors.New("no space")
	err := fmt.Errorf("x: %w", &Error{Boundary: Persist, Ordinal: 4, Kind: Fails, Cause: cause})
	if !Is(err, Fails) || Is(err, Short) || Is(cause, Fails) || Is(nil, Fails) || !errors.Is(err, cause) || err.Error() != "x: injected error at persist 4: no space" {
		t.Errorf("%v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("commit:3:kill,send:17:short,read:5-9:corrupt,receive:30:stall=2s")
	f.Add("x:1-2:stall=1h,,")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse(text)
		if err == nil && s.String() != text {
			t.Errorf("%q was read as %q", text, s)
		}
	})
}
