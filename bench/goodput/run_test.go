package goodput

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/kvferry/kvferry/bench/wan"
)

func model(t *testing.T, s string) wan.Model {
	t.Helper()
	m, err := wan.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestTry(t *testing.T) {
	res, err := Run(context.Background(), Config{WAN: model(t, "rtt=10ms,rate=200Mbps,loss=0"), Bytes: 16 << 20, CutFor: 300e6, Progress: func(p Progress) { t.Log(p) }})
	if err != nil {
		t.Fatal(err)
	}
	b, _ := json.MarshalIndent(res.Best(), "", " ")
	t.Logf("%s", b)
}
