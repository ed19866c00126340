package main

import (
	"testing"

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
