package prefill

import (
	"errors"
	"fmt"
)

// End says why a front ended.
type End string

// Ends. With the first three, Run returns no error.
const (
	// EndComputed: every whole block of the prompt has been prefilled.
	EndComputed End = "computed"
	// EndStopped: the daemon grants no more; what is not granted lands.
	EndStopped End = "stopped"
	// EndMigration: the migration has ended.
	EndMigration End = "migration_ended"
	// EndEngine: the engine answered with an error, with nonsense, or not in time.
	EndEngine End = "engine_failed"
	// EndClaim: the daemon refused a claim, or did not answer in time.
	EndClaim End = "claim_failed"
	// EndCancelled: the caller's context ended.
	EndCancelled End = "cancelled"
	// EndConfig: the configuration is refused, and nothing was sent.
	EndConfig End = "config"
)

// Report is what a front has done.
type Report struct {
	// End is why it ended.
	End End `json:"end"`
	// Requests were answered by the engine; Claims by the daemon, without those that only tell it that the front is at work.
	Requests int `json:"requests"`
	Claims   int `json:"claims"`
	// GrantedBlocks are those before the place up to which the front may compute; ComputedBlocks of them the engine has. Both
	// count from the start of the session.
	GrantedBlocks  int `json:"granted_blocks"`
	ComputedBlocks int `json:"computed_blocks"`
	// Tokens were computed, as far as the engine says what it took from its cache; else those of the blocks that were new.
	// CachedTokens it took from its cache, over all requests; 0 where it does not say.
	Tokens       int `json:"tokens"`
	CachedTokens int `json:"cached_tokens"`
	// RequestSeconds is the time of all requests. OverheadSeconds of it is no compute, by the line through the requests: 0 until
	// there are two lengths. SecondsPerToken is the line's slope.
	RequestSeconds  float64 `json:"request_seconds"`
	OverheadSeconds float64 `json:"overhead_seconds"`
	SecondsPerToken float64 `json:"seconds_per_token"`
}

// ErrPrefixNotCached is wrapped by an [EngineError] when the engine computes again what earlier requests have computed: it has
// no prefix cache, or no room in it.
var ErrPrefixNotCached = errors.New("the engine did not keep the prefix that it had computed")

// EngineError is a request that the engine did not answer as it should.
type EngineError struct {
	// Path is what was asked, such as /v1/completions.
	Path string
	// Blocks is the length of the prefix that was asked for; 0 for other requests.
	Blocks int
	// Status is the HTTP status; 0 when there was no answer.
	Status int
	// Message is what the engine said of it, at most 512 bytes.
	Message string
	// Err is the cause: of the transport, of decoding, [ErrPrefixNotCached], context.DeadlineExceeded for a request that took
	// longer than RequestTimeout; nil where status and message say it all.
	Err error
}

// Error names the request, the status, the engine's words and the cause.
func (e *EngineError) Error() string {
	s := "prefill: engine " + e.Path
	if e.Blocks > 0 {
		s += fmt.Sprintf(" for %d blocks", e.Blocks)
	}
	if e.Status != 0 {
		s += fmt.Sprintf(": status %d", e.Status)
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns the cause.
func (e *EngineError) Unwrap() error { return e.Err }
