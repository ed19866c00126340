package main

import (
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// planFlagNames, by which flags without a meaning are refused, lists every flag.
func TestPlanFlagNames(t *testing.T) {
	t.Parallel()
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^ +--([a-z-]+)`).FindAllStringSubmatch((&app{}).newPlan().Flags().FlagUsages(), -1) {
		got = append(got, m[1])
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(planFlagNames)), slices.Sorted(slices.Values(got))); diff != "" {
		t.Error(diff)
	}
}

func TestParseRate(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]float64{
		"5Gbps": 5e9, "100Mbps": 100e6, "1.5 gbps": 1.5e9, "64kbps": 64e3, "1Tbps": 1e12, "800bps": 800, " 1e3Mbps ": 1e9,
		"5": 0, "": 0, "Gbps": 0, "0Gbps": 0, "-1Gbps": 0, "NaNGbps": 0, "InfGbps": 0, "1e308Tbps": 0, "5GBps5": 0, "5Gb": 0, "5 GB/s": 0,
	} {
		got, err := parseRate(s)
		if got != want || (err == nil) != (want > 0) {
			t.Errorf("parseRate(%q) = %v, %v; want %v", s, got, err, want)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	f.Add("5Gbps")
	f.Add("1e300Tbps")
	f.Add("0x1pbps")
	f.Fuzz(func(t *testing.T, s string) {
		r, err := parseRate(s)
		if err != nil {
			if r != 0 {
				t.Fatalf("%q: %v with error %v", s, r, err)
			}
			return
		}
		if !(r > 0) || math.IsInf(r, 0) {
			t.Fatalf("%q reads as %v", s, r)
		}
		// What is printed reads back to four digits.
		again, err := parseRate(rateText(r))
		if r >= 1 && (err != nil || math.Abs(again-r) > 1e-3*r) {
			t.Fatalf("%q reads as %v, prints as %q, reads as %v, %v", s, r, rateText(r), again, err)
		}
	})
}

func TestTexts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ got, want string }{
		{bytesText(0), "0 B"},
		{bytesText(1023), "1023 B"},
		{bytesText(1024), "1.0 KiB"},
		{bytesText(327680), "320.0 KiB"},
		{bytesText(5 << 20), "5.0 MiB"},
		{bytesText(math.MaxInt64), "8.0 EiB"},
		{secondsText(0), "0 s"},
		{secondsText(26.21e-6), "26.2 us"},
		{secondsText(0.07), "70 ms"},
		{secondsText(2.83114), "2.831 s"},
		{secondsText(86400), "86400 s"},
		{rateText(5e9), "5Gbps"},
		{rateText(999), "999bps"},
		{goodputText(1<<20, 0), ""},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestUnixPath(t *testing.T) {
	t.Parallel()
	abs, err := filepath.Abs("a.sock")
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"unix:///run/x.sock": "/run/x.sock", "unix:/run/x.sock": "/run/x.sock", "/run/x.sock": "/run/x.sock", "unix:a.sock": abs, "unix://": "", "unix:": "",
	} {
		if got, ok := unixPath(addr); got != want || !ok {
			t.Errorf("unixPath(%q) = %q, %v; want %q", addr, got, ok, want)
		}
	}
	if _, ok := unixPath("host:1"); ok {
		t.Error("host:1 is taken for a unix socket")
	}
}

func TestWantsJSON(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want bool
	}{
		{[]string{"plan", "-o", "json"}, true},
		{[]string{"-ojson"}, true},
		{[]string{"-o=json"}, true},
		{[]string{"--output", "json", "x"}, true},
		{[]string{"--output=json"}, true},
		{[]string{"-o", "table", "json"}, false},
		{[]string{"json"}, false},
		{nil, false},
	} {
		if got := wantsJSON(c.args); got != c.want {
			t.Errorf("wantsJSON(%q) = %v", c.args, got)
		}
	}
}
