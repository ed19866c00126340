package prefill

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	kvferryv1 "github.com/kvferry/kvferry/proto/kvferry/v1"
)

const (
	// maxBlocks is what a claim may count.
	maxBlocks = 1 << 20
	// maxWant is what a claim may ask for.
	maxWant = 65536
)

// reserved are the fields of a request that Run sets.
var reserved = []string{"kv_transfer_params", "max_tokens", "model", "n", "prompt", "stream", "temperature"}

// Config is what [Run] takes. It is not changed, and not read after Run returns.
type Config struct {
	// Migrations is the daemon of the region that the session moves to. Required.
	Migrations kvferryv1.MigrationServiceClient
	// MigrationID is the migration, as Migrate named it. Required.
	MigrationID string
	// URL is the engine's base, http or https, without /v1: "http://127.0.0.1:8000". Required.
	URL string
	// Client makes the requests; nil means http.DefaultClient. Its Timeout should be 0: RequestTimeout bounds a request.
	Client *http.Client
	// Header is added to every request, such as Authorization; may be nil.
	Header http.Header
	// Model is sent as model; empty sends none, and an engine that serves one model takes that.
	Model string
	// Tokens are the session's, from its first one, and those of the next turn if they are known: each 0 to 2^31-1. Blocks
	// beyond what the session has at its source are never granted. Either Tokens or Text.
	Tokens []int
	// Text is the session's prompt, which the engine's /tokenize makes tokens of, with the special tokens that a text
	// completion gets.
	Text string
	// BlockTokens is the engine's tokens a block, as in its layout. Required.
	BlockTokens int
	// Extra are more fields of each request, such as cache_salt or priority, as encoding/json encodes them. None that Run
	// sets itself.
	Extra map[string]any

	// StepTokens is the most new tokens of a request: more is claimed only where overhead asks for it. 0 means 8192, what
	// engines commonly compute in one step; negative: no bound but the grant.
	StepTokens int
	// MaxOverhead is the share of a request's compute time that its overhead may take before steps are made larger. 0 means
	// 0.1; negative: any.
	MaxOverhead float64
	// RequestTimeout bounds a request to the engine. 0 means 60 s; negative: no bound but the context.
	RequestTimeout time.Duration
	// ClaimTimeout bounds a claim. 0 means 10 s; negative: no bound but the context.
	ClaimTimeout time.Duration
	// Poll is the time between claims while nothing is granted. 0 means 5 ms; it may not be negative.
	Poll time.Duration
}

// ConfigError is a field of [Config] that can't be used.
type ConfigError struct {
	// Field names it, Value is what was given, Allowed says what may be given.
	Field, Value, Allowed string
}

// Error names the field, the value and what is allowed.
func (e *ConfigError) Error() string {
	return fmt.Sprintf("prefill: %s %.100q: want %s", e.Field, e.Value, e.Allowed)
}

// Validate returns nil or every fault, as [ConfigError]s, joined.
func (c Config) Validate() error {
	var errs []error
	bad := func(field string, value any, allowed string) {
		errs = append(errs, &ConfigError{field, fmt.Sprint(value), allowed})
	}
	if c.Migrations == nil {
		bad("Migrations", nil, "a client of the daemon's MigrationService")
	}
	if c.MigrationID == "" {
		bad("MigrationID", "", "the id that Migrate's stream names first")
	}
	if u, err := url.Parse(c.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		bad("URL", c.URL, "the engine's base address, such as http://127.0.0.1:8000")
	} else if strings.HasSuffix(strings.TrimRight(u.Path, "/"), "/v1") {
		bad("URL", c.URL, "the base without /v1, which is added")
	}
	if (len(c.Tokens) == 0) == (c.Text == "") {
		bad("Tokens", fmt.Sprintf("%d tokens beside %d bytes of Text", len(c.Tokens), len(c.Text)), "one of the two")
	}
	for i, t := range c.Tokens {
		if t < 0 || t > math.MaxInt32 {
			bad("Tokens", fmt.Sprintf("%d at position %d", t, i), "0 to 2147483647")
			break
		}
	}
	if c.BlockTokens < 1 || c.BlockTokens > 65536 {
		bad("BlockTokens", c.BlockTokens, "the layout's tokens a block, 1 to 65536")
	} else if n := len(c.Tokens) / c.BlockTokens; n > maxBlocks {
		bad("Tokens", fmt.Sprintf("%d blocks", n), fmt.Sprintf("at most %d", maxBlocks))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Extra)) {
		if slices.Contains(reserved, name) {
			bad("Extra", name, "none of "+strings.Join(reserved, ", ")+", which Run sets")
		}
	}
	if math.IsNaN(c.MaxOverhead) || c.MaxOverhead > 1e6 {
		bad("MaxOverhead", c.MaxOverhead, "a share, such as 0.1; 0 for that; negative for any")
	}
	if c.Poll < 0 {
		bad("Poll", c.Poll, "a time above 0, or 0 for 5ms")
	}
	return errors.Join(errs...)
}

func (c Config) withDefaults() Config {
	c.URL = strings.TrimRight(c.URL, "/")
	if c.Client == nil {
		c.Client = http.DefaultClient
	}
	c.StepTokens = cmp.Or(c.StepTokens, 8192)
	c.MaxOverhead = cmp.Or(c.MaxOverhead, 0.1)
	c.RequestTimeout = cmp.Or(c.RequestTimeout, time.Minute)
	c.ClaimTimeout = cmp.Or(c.ClaimTimeout, 10*time.Second)
	c.Poll = cmp.Or(c.Poll, 5*time.Millisecond)
	return c
}
