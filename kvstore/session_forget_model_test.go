package kvstore_test

import (
	"slices"
	"strings"
	"testing"
)

// TestOneOwnerOfForgotten walks orders of hand-overs, words of owners and restarts in which owners forget the session and begin it anew, over three nodes. After a
// heal exactly one owns it.
func TestOneOwnerOfForgotten(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"b pulls from a, b hears, c pulls from b, c hears, b confirms, c begins anew",
		"c pulls from a, c hears, b pulls from c, b hears, c confirms, b begins anew",
		"b pulls from a, b hears, a pulls from b, a hears, b pulls from a, b hears, b begins anew, c pulls from b, c hears, c restarts, c tells a",
		"b pulls from a, b hears, a pulls from b, a hears, b pulls from a, b hears, b begins anew, c pulls from b, c hears, c restarts, c tells a, a pulls from c, a hears, a restarts, a tells b",
	} {
		f := newFleetModel(t, 3)
		for step := range strings.SplitSeq(path, ", ") {
			if name, anew := strings.CutSuffix(step, " begins anew"); anew {
				n := f.nodes[name[0]-'a']
				if err := n.store.Forget("", "s"); err != nil {
					t.Fatal(err)
				}
				mustPublish(t, n.store, session(1, 16))
				continue
			}
			names, do := f.steps()
			if i := slices.Index(names, step); i < 0 || !do[i]() {
				t.Fatalf("%s: %s does nothing", path, step)
			}
		}
		f.heal()
		if o := f.owners(); len(o) != 1 {
			for _, n := range f.nodes {
				s, _ := n.record()
				t.Logf("%s: owner %s, epoch %d, repin %d", n.id, s.Owner, s.Epoch, s.RepinSeq)
			}
			t.Errorf("%s: owners %v", path, o)
		}
	}
}
