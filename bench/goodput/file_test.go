package goodput

import (
	"bytes"
	"math"
	"testing"

	"github.com/kvferry/kvferry/bench/results"
)

// checkFile holds that a result makes a valid file whose body decodes strictly, in both forms.
func checkFile(t *testing.T, res *Result) *results.File {
	t.Helper()
	f, err := res.File([]string{"kvferry", "bench", "goodput"})
	if err != nil {
		t.Fatal(err)
	}
	var flat bytes.Buffer
	if err := f.WriteFlat(&flat); err != nil {
		t.Fatal(err)
	}
	back, err := results.Parse(flat.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var body Body
	if err := back.DecodeBody(&body); err != nil {
		t.Fatal(err)
	}
	if best := res.Best(); body.GoodputBps != best.GoodputBps || len(body.Configurations) != len(res.Configurations) || body.Form != res.Form {
		t.Errorf("body %+v", body)
	}
	if m, ok := back.Metric("goodput"); len(res.Configurations) == 1 && (!ok || math.Abs(m.Median-res.Best().GoodputBps) > 1e-12*m.Median || m.Low > m.Median || m.High < m.Median) {
		t.Errorf("metric %+v, goodput %v", m, res.Best().GoodputBps)
	}
	for _, table := range res.Tables() {
		if err := table.Write(&flat); err != nil {
			t.Error(err)
		}
	}
	return back
}
