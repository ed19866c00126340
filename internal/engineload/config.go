package engineload

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Config says what a [Scraper] scrapes, and how often.
type Config struct {
	// URL is the endpoint, http or https; required. Without a path it is /metrics. A user and password in it are sent
	// as basic authentication.
	URL string
	// Interval is the time between the starts of two scrapes. 0 means 2 s; negative: [Scraper.Run] does not scrape.
	Interval time.Duration
	// Timeout bounds one scrape, from dialling to the last byte. 0 means 2 s; negative: no bound but the context.
	Timeout time.Duration
	// MaxAge is how old a load may be before it is refused, counted from the start of its scrape. 0 means three
	// intervals and one timeout, 8 s by default; negative: any age.
	MaxAge time.Duration
	// MaxBytes bounds the answer after decompression. 0 means 8 MiB; negative is refused.
	MaxBytes int64
	// Client makes the requests; nil means one without proxies, with one connection. It is copied, and its copy follows
	// redirects to the same scheme, host and port only.
	Client *http.Client
}

// Validate returns nil or every fault, as [ConfigError]s.
func (c Config) Validate() error {
	var errs []error
	if _, err := endpoint(c.URL); err != nil {
		errs = append(errs, err)
	}
	if c.MaxBytes < 0 {
		errs = append(errs, &ConfigError{"MaxBytes", strconv.FormatInt(c.MaxBytes, 10), "bytes, or 0 for 8 MiB"})
	}
	if c.MaxAge > 0 && c.withDefaults().Interval > c.MaxAge {
		errs = append(errs, &ConfigError{"MaxAge", c.MaxAge.String(), "at least the interval, " + c.withDefaults().Interval.String() + ": else every load is stale before the next; or 0 for the default"})
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.Interval = cmp.Or(c.Interval, 2*time.Second)
	c.Timeout = cmp.Or(c.Timeout, 2*time.Second)
	if c.MaxAge == 0 {
		c.MaxAge = 3*max(c.Interval, 0) + max(c.Timeout, 0)
		if c.Interval < 0 {
			c.MaxAge += 6 * time.Second
		}
	}
	c.MaxBytes = cmp.Or(c.MaxBytes, DefaultMaxBytes)
	return c
}

// endpoint reads an address and fills in the path.
func endpoint(address string) (*url.URL, error) {
	bad := &ConfigError{"URL", address, "an http or https address such as http://127.0.0.1:8000/metrics"}
	u, err := url.Parse(address)
	if err != nil {
		return nil, bad
	}
	if u.User != nil {
		bad.Value = u.Redacted()
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Fragment != "" {
		return nil, bad
	}
	if u.Path == "" {
		u.Path = "/metrics"
	}
	return u, nil
}

// client returns a copy of the caller's client, or our own, that stays on the endpoint's host.
func (c Config) client() (client *http.Client, own bool) {
	if c.Client == nil {
		client, own = &http.Client{Transport: &http.Transport{
			MaxIdleConns: 1, MaxConnsPerHost: 1, IdleConnTimeout: 90 * time.Second, MaxResponseHeaderBytes: 64 << 10,
		}}, true
	} else {
		copied := *c.Client
		client = &copied
	}
	theirs := client.CheckRedirect
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if req.URL.Scheme != via[0].URL.Scheme || req.URL.Host != via[0].URL.Host {
			return errRedirected
		}
		if len(via) >= 5 {
			return errors.New("more than 5 redirects")
		}
		if theirs != nil {
			return theirs(req, via)
		}
		return nil
	}
	return client, own
}

var errRedirected = errors.New("redirected to another host, which is not followed")
