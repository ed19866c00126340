package refengine

import (
	"errors"
	"fmt"
)

// A Request is one turn: a whole prompt, from the first token of the sequence.
type Request struct {
	Tenant  string `json:"tenant,omitempty"`  // salt space of the blocks
	Session string `json:"session,omitempty"` // needed to publish
	Tokens  []int  `json:"tokens"`            // 0 to Vocab-1, at least one
	MaxNew  int    `json:"max_new"`           // tokens to generate; zero prefills only
	// Commit hands each block to the daemon as it fills.
	Commit bool `json:"commit,omitempty"`
	// Publish records the session at the end of the turn. It needs Commit and a
	// Session.
	Publish bool `json:"publish,omitempty"`
	// UseCache starts from the longest prefix of whole blocks in the engine's
	// own cache, continued by what the daemon holds. Without it everything is
	// computed from the tokens alone and nothing is kept; Commit must be off.
	UseCache bool `json:"use_cache,omitempty"`
	// Migration names a running hybrid migration of the prompt's session into
	// this engine: the turn prefills the blocks that the migration grants it and
	// loads the others as they land. It needs Commit.
	Migration string `json:"migration,omitempty"`
}

// A Result is a finished turn.
type Result struct {
	Tokens []int  `json:"tokens"` // generated, in order
	Steps  []Step `json:"steps"`  // one a generated token
	// CachedTokens were taken from a cache: LocalTokens from the engine's own,
	// LoadedTokens from the daemon's arena.
	CachedTokens int `json:"cached_tokens"`
	LocalTokens  int `json:"local_tokens"`
	LoadedTokens int `json:"loaded_tokens"`
	// LoadedBlocks are the places of the blocks behind LoadedTokens, from the start of the sequence, in order.
	LoadedBlocks []int `json:"loaded_blocks,omitempty"`
	// PrefilledTokens had keys and values or logits computed before the first
	// new token. It is at least 1 if anything was generated.
	PrefilledTokens int     `json:"prefilled_tokens"`
	LoadSeconds     float64 `json:"load_seconds"`    // looking up and reading blocks
	PrefillSeconds  float64 `json:"prefill_seconds"` // to the logits of the first new token
	DecodeSeconds   float64 `json:"decode_seconds"`  // the rest
	// Keys name the whole blocks of the sequence, prompt and continuation. The
	// first CommittedBlocks of them are in the daemon without a gap, as far as
	// this turn has seen.
	Keys            [][]byte `json:"keys"`
	CommittedBlocks int      `json:"committed_blocks"`
	SessionVersion  uint64   `json:"session_version,omitempty"` // as published
	SessionEpoch    uint64   `json:"session_epoch,omitempty"`
	Watermarked     bool     `json:"watermarked"` // this engine perturbs what it commits
	Paced           bool     `json:"paced"`       // nothing was computed: see Pace
	// DamagedPages counts loaded pages that are not what a paced engine expects;
	// an engine that computes can't tell and always has 0.
	DamagedPages int `json:"damaged_pages,omitempty"`
	// Warnings tell of trouble with the daemon that cost caching, not the turn.
	Warnings []string `json:"warnings,omitempty"`
}

// A Step is one generated token.
type Step struct {
	Token int `json:"token"`
	// LogitsHash is the hex SHA-256 of the logits it was chosen from, as
	// little-endian float32.
	LogitsHash string `json:"logits_hash"`
}

// ErrPublish is wrapped by the error of a turn that was generated but whose
// session could not be published; the gRPC status is wrapped too.
var ErrPublish = errors.New("publish session")

// validate reports every fault, joined; of bad tokens the first.
func (r Request) validate(m ModelConfig) error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("refengine: request "+format, args...))
	}
	if len(r.Tokens) == 0 {
		add("tokens are empty: want at least one")
	}
	for i, t := range r.Tokens {
		if t < 0 || t >= m.Vocab {
			add("token %d at position %d: want 0 to %d", t, i, m.Vocab-1)
			break
		}
	}
	if r.MaxNew < 0 || len(r.Tokens)+r.MaxNew > m.MaxTokens {
		add("max_new %d after %d tokens: want 0 or more, and %d tokens in all; raise the model's max_tokens", r.MaxNew, len(r.Tokens), m.MaxTokens)
	}
	if r.Commit && !r.UseCache {
		add("has commit without use_cache: a pure recomputation commits nothing; set use_cache or unset commit")
	}
	if r.Migration != "" && !r.Commit {
		add("has migration %q without commit: what it prefills is the other end's to know; set commit", r.Migration)
	}
	if r.Publish && (!r.Commit || r.Session == "") {
		add("has publish with commit %v and session %q: want commit and a session", r.Commit, r.Session)
	}
	return errors.Join(errs...)
}
