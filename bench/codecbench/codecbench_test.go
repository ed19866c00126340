package codecbench

import "testing"

// TestRun has a short run give every codec's numbers; ratios are exact, speeds only positive.
func TestRun(t *testing.T) {
	r, err := Run(t.Context(), Config{Pages: 4, Rounds: 2})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Codecs) != 6 {
		t.Fatalf("%d codecs", len(r.Codecs))
	}
	for _, m := range r.Codecs {
		t.Logf("%+v", m)
		if m.EncodeGBps <= 0 || m.DecodeGBps <= 0 || m.Ratio > m.BoundRatio*1.001 {
			t.Errorf("%+v", m)
		}
		if want := map[string]float64{"huff": 1.44, "split4": 1.32}[m.Name]; m.Ratio < want {
			t.Errorf("%s: ratio %.3f, want %.2f", m.Name, m.Ratio, want)
		}
	}
	if f, err := r.File(nil); err != nil || len(f.Metrics) != 12 {
		t.Errorf("file: %v", err)
	}
}
