package results

import "testing"

func TestRedactURL(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                              "",
		"rtt=70ms,rate=1Gbps":           "rtt=70ms,rate=1Gbps",
		"a@b.svg":                       "a@b.svg",
		"unix:///tmp/a@b.sock":          "unix:///tmp/a@b.sock",
		"http://host:80/v1/a@b?c=d":     "http://host:80/v1/a@b?c=d",
		"http://me:secret@host:80/v1":   "http://xxxxx@host:80/v1",
		"http://secret@host/v1":         "http://xxxxx@host/v1",
		"http://me:se@cret@host/v1":     "http://xxxxx@host/v1",
		"http://me:se%zzcret@host/v1":   "http://xxxxx@host/v1",
		"http://me:se/cret@host/v1":     "http://xxxxx@host/v1",
		"http://me:se?cret@host/v1":     "http://xxxxx@host/v1",
		"http://me:se://cret@host/v1":   "http://xxxxx@host/v1",
		"me:secret@host":                "xxxxx@host",
		"http://me:secret@ho\x7fst/v1":  "http://xxxxx@ho\x7fst/v1",
		"ftp://me:secret@host/dir/file": "ftp://xxxxx@host/dir/file",
	} {
		if got := RedactURL(s); got != want {
			t.Errorf("%q becomes %q, want %q", s, got, want)
		}
	}
}
