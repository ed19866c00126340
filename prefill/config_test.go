package prefill

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	if err := testConfig(&fakeDaemon{}, nil, 3).Validate(); err != nil {
		t.Fatal(err)
	}
	for field, c := range map[string]struct {
		edit func(*Config)
		want string
	}{
		"Migrations":  {func(c *Config) { c.Migrations = nil }, "want a client"},
		"MigrationID": {func(c *Config) { c.MigrationID = "" }, "Migrate's stream"},
		"URL":         {func(c *Config) { c.URL = "localhost:8000" }, `"localhost:8000": want the engine's base`},
		"URL ":        {func(c *Config) { c.URL = "http://x/v1/" }, "without /v1"},
		"URL  ":       {func(c *Config) { c.URL = "http://x?a=b" }, "base address"},
		"Tokens":      {func(c *Config) { c.Text = "x" }, "14 tokens beside 1 bytes of Text: want"},
		"Tokens ":     {func(c *Config) { c.Tokens = nil }, "one of the two"},
		"Tokens  ":    {func(c *Config) { c.Tokens = []int{1, -1} }, `"-1 at position 1"`},
		"Tokens   ":   {func(c *Config) { c.BlockTokens, c.Tokens = 1, make([]int, maxBlocks+1) }, "at most 1048576"},
		"BlockTokens": {func(c *Config) { c.BlockTokens = 0 }, "1 to 65536"},
		"Extra":       {func(c *Config) { c.Extra = map[string]any{"max_tokens": 5} }, `"max_tokens": want none of`},
		"MaxOverhead": {func(c *Config) { c.MaxOverhead = math.NaN() }, "a share"},
		"Poll":        {func(c *Config) { c.Poll = -time.Second }, `"-1s"`},
	} {
		cfg := testConfig(&fakeDaemon{}, nil, 3)
		c.edit(&cfg)
		err := cfg.Validate()
		e, ok := errors.AsType[*ConfigError](err)
		if !ok || e.Field != strings.TrimSpace(field) || !strings.Contains(strings.ReplaceAll(err.Error(), `Text"`, "Text"), c.want) {
			t.Errorf("%s: %v, want %q", field, err, c.want)
		}
		if rep, again := Run(t.Context(), cfg); rep != (Report{End: EndConfig}) || again == nil || again.Error() != err.Error() {
			t.Errorf("%s: run: %+v, %v", field, rep, again)
		}
	}
	if err := (Config{Poll: -1}).Validate(); err == nil || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("not every fault is told: %v", err)
	}
	if c := (Config{}).withDefaults(); c.Client != http.DefaultClient || c.StepTokens != 8192 || c.RequestTimeout != time.Minute {
		t.Errorf("%+v", c)
	}
}
