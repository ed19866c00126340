package main

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvferry/kvferry/bench/refengine"
)

// --shape is one JSON object of known fields and nothing else.
func TestParseShape(t *testing.T) {
	for shape, ok := range map[string]bool{
		`{}`: true, ` {"layers":4} `: true, `{}x`: false, `{} {}`: false, `{"layers":4}}`: false, `{"layer":4}`: false, `[]`: false, `{`: false,
	} {
		if err := parseShape(shape, &refengine.ModelConfig{}); (err == nil) != ok {
			t.Errorf("shape %q: %v, want it taken: %v", shape, err, ok)
		}
	}
}

// Whatever is given as --shape: it is refused with exit code 2, or it is a model that comes back as it is.
func FuzzParseShape(f *testing.F) {
	f.Add(`{"layers":4,"hidden":64,"kv_heads":2,"head_dim":32}`)
	f.Add(`{"layers":4} {}`)
	f.Add(`{"Layers":1e400}`)
	f.Fuzz(func(t *testing.T, shape string) {
		var m refengine.ModelConfig
		if err := parseShape(shape, &m); err != nil {
			if f := faultOf(err); f.Code != exitUsage || f.Fix == "" {
				t.Fatalf("refused with %+v", f)
			}
			return
		}
		b, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var again refengine.ModelConfig
		if err := parseShape(string(b), &again); err != nil {
			t.Fatalf("%s is refused: %v", b, err)
		}
		if diff := cmp.Diff(m, again); diff != "" {
			t.Errorf("(-is +comes back as)\n%s", diff)
		}
	})
}
