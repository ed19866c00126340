package results

import (
	"net/url"
	"strings"
)

// RedactURL returns an address with "xxxxx" in the place of a user and password, so that it can be shown and kept; anything else as it
// is. Of one that cannot be parsed, it hides all from the scheme to the last "@".
func RedactURL(s string) string {
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s
	}
	u, err := url.Parse(s)
	if err == nil && u.User == nil && u.Opaque == "" {
		return s
	}
	if err == nil && u.User != nil {
		u.User = url.User("xxxxx")
		return u.String()
	}
	start := 0
	if i := strings.Index(s[:at], "://"); i >= 0 {
		start = i + len("://")
	}
	return s[:start] + "xxxxx" + s[at:]
}
