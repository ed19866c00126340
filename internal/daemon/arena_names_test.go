package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No two engines of a host share an arena's file, however ids may be joined.
func TestArenaNamesAreApart(t *testing.T) {
	t.Parallel()
	var ids []string
	for _, first := range []string{"a", "-", "."} {
		for _, second := range []string{"", "a", "-", "_a", "-a", "a-", "a-a", "+", "@"} {
			if id := first + second; engineIDPattern.MatchString(id) && idPattern.MatchString(id) {
				ids = append(ids, id)
			}
		}
	}
	if len(ids) != 3*7 {
		t.Fatalf("ids %q: the separator may be in an id", ids)
	}
	of := map[string]string{}
	for _, node := range ids {
		for _, engine := range ids {
			name, pair := ArenaPrefix(node)+engine, node+" "+engine
			if other, taken := of[name]; taken {
				t.Errorf("%s is of (%s) and of (%s)", name, other, pair)
			}
			of[name] = pair
			for _, other := range ids {
				if other != node && strings.HasPrefix(name, ArenaPrefix(other)) {
					t.Errorf("%s of (%s) is taken for one of node %s", name, pair, other)
				}
			}
		}
	}
	longest := ArenaPrefix(strings.Repeat("n", 128)) + strings.Repeat("e", 64)
	if _, err := os.Lstat(filepath.Join(t.TempDir(), longest+"+index")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the longest name: %v", err)
	}
}

// Two nodes of a host whose ids, joined with their engines', read the same have each their own blocks, at once and over a restart. What an earlier release left
// under its name is found by the engine that the index names, and by no other.
func TestArenaNamesOfNeighbours(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDisks(t, "a", "a-b")
		d.of["a-b"] = [2]string{d.of["a-b"][0], d.of["a"][1]} // one folder
		f := newFleetEdited(t, fast, d.edit, "a", "a-b")
		engine := map[string]string{"a": "b-c", "a-b": "c"}
		keys := map[string][][]byte{}
		for node, id := range engine {
			keys[node] = chain(node, 4)
			f.nodes[node].register(id, testLayout(), 1<<20).write("", keys[node])
		}
		check := func() {
			t.Helper()
			for node, id := range engine {
				f.restart(node).register(id, testLayout(), 1<<20).check("", keys[node])
			}
		}
		check()
		for node, id := range engine { // one after the other has the name that both had
			f.nodes[node].stop()
			for _, suffix := range []string{"", "+index"} {
				if err := os.Rename(filepath.Join(d.of["a"][1], ArenaPrefix(node)+id+suffix), filepath.Join(d.of["a"][1], "kvferry-a-b-c"+suffix)); err != nil {
					t.Fatal(err)
				}
			}
			for other := range engine {
				if other != node {
					f.restart(other).register(engine[other], testLayout(), 1<<20).check("", keys[other])
				}
			}
			for i, name := range f.names {
				if name == node {
					f.addNode(i).register(id, testLayout(), 1<<20).check("", keys[node])
				}
			}
		}
		check()
		if left, err := filepath.Glob(filepath.Join(d.of["a"][1], "kvferry-a-b-c*")); err != nil || len(left) != 0 {
			t.Errorf("left are %v, %v", left, err)
		}
		f.settle()
	})
}
