package wanns

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kvferry/kvferry/bench/wan"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	good := Config{A: "a", B: "b.2-x_y"}
	for _, c := range []struct {
		name string
		edit func(*Config)
		want string // in the error; empty: none
	}{
		{"as it is", func(*Config) {}, ""},
		{"network", func(c *Config) { c.Net = netip.MustParsePrefix("10.1.2.0/30") }, ""},
		{"no limit of packets", func(c *Config) { c.Model.MTU = -1 }, ""},
		{"no name", func(c *Config) { c.A = "" }, `namespace A "": want 1 to 64`},
		{"path", func(c *Config) { c.B = "../b" }, `namespace B "../b"`},
		{"dots", func(c *Config) { c.B = ".." }, `namespace B ".."`},
		{"slash", func(c *Config) { c.A = "a/b" }, `namespace A "a/b"`},
		{"long", func(c *Config) { c.A = strings.Repeat("a", 65) }, "namespace A"},
		{"same", func(c *Config) { c.B = "a" }, "another name than A"},
		{"IPv6", func(c *Config) { c.Net = netip.MustParsePrefix("fd00::/64") }, "network fd00::/64: want an IPv4 network"},
		{"small", func(c *Config) { c.Net = netip.MustParsePrefix("10.0.0.0/31") }, "/8 to /30"},
		{"host bits", func(c *Config) { c.Net = netip.MustParsePrefix("10.0.0.7/24") }, "without host bits: 10.0.0.0/24"},
		{"tiny packets", func(c *Config) { c.Model.MTU = 60 }, "mtu 60: want 68 to 65535"},
		{"huge packets", func(c *Config) { c.Model.MTU = 65536 }, "mtu 65536"},
		{"model", func(c *Config) { c.Model.Loss = 2 }, "loss 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			c.edit(&cfg)
			err := cfg.Validate()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if err == nil {
				return
			}
			if p, err := Open(cfg); err == nil {
				_ = p.Close()
				t.Error("opened")
			}
		})
	}
	a, b := good.addrs()
	if a.String() != "10.77.0.1" || b.String() != "10.77.0.2" {
		t.Errorf("addresses %v and %v", a, b)
	}
	for mtu, want := range map[int]int{0: 1500, -1: 65535, 1400: 1400} {
		if got := (Config{Model: wan.Model{MTU: mtu, RTT: time.Second}}).mtu(); got != want {
			t.Errorf("mtu of %d is %d, want %d", mtu, got, want)
		}
	}
	if A.String() != "a" || B.String() != "b" || Side(7).String() != "side(7)" {
		t.Error("names of sides")
	}
}
