package prefill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"
	"unicode/utf8"
)

const (
	// maxAnswer bounds an answer: one token, its text and the usage.
	maxAnswer = 1 << 20
	// maxMessage bounds the engine's words in an error.
	maxMessage = 512
	// answerByteToken is what a token of /tokenize takes at most, in bytes: digits, a comma, white space, its text.
	answerByteToken = 64
)

// usage is what a completion says of its prompt.
type usage struct {
	prompt    int
	cached    int
	hasPrompt bool
	hasCached bool
}

// complete has the engine prefill a prefix of so many blocks.
func (f *front) complete(ctx context.Context, blocks int) (usage, error) {
	tokens := f.tokens[:blocks*f.cfg.BlockTokens]
	body := map[string]any{}
	for k, v := range f.cfg.Extra {
		body[k] = v
	}
	if f.cfg.Model != "" {
		body["model"] = f.cfg.Model
	}
	body["prompt"], body["max_tokens"], body["temperature"], body["stream"], body["n"] = tokens, 1, 0, false, 1
	body["kv_transfer_params"] = map[string]string{"kvferry_migration_id": f.cfg.MigrationID}
	const path = "/v1/completions"
	answer, err := f.post(ctx, path, body, maxAnswer)
	if err == nil {
		var u usage
		if u, err = decodeUsage(answer); err == nil {
			if u.hasPrompt && u.prompt != len(tokens) {
				err = fmt.Errorf("it counts %d tokens of a prompt of %d: it is not an engine that takes token ids as they are", u.prompt, len(tokens))
			}
			if u.cached > len(tokens) {
				err = fmt.Errorf("it had %d tokens in its cache of a prompt of %d", u.cached, len(tokens))
			}
			if err == nil {
				return u, nil
			}
		}
	}
	return usage{}, f.engineError(path, blocks, err)
}

// tokenize has the engine make tokens of the text.
func (f *front) tokenize(ctx context.Context) ([]int, error) {
	body := map[string]any{"prompt": f.cfg.Text}
	if f.cfg.Model != "" {
		body["model"] = f.cfg.Model
	}
	const path = "/tokenize"
	answer, err := f.post(ctx, path, body, maxAnswer+answerByteToken*(len(f.cfg.Text)+64))
	var tokens []int
	if err == nil {
		tokens, err = decodeTokens(answer)
	}
	if err == nil && len(tokens)/f.cfg.BlockTokens > maxBlocks {
		err = fmt.Errorf("the text is %d tokens: want at most %d blocks", len(tokens), maxBlocks)
	}
	if err != nil {
		return nil, f.engineError(path, 0, err)
	}
	return tokens, nil
}

// engineError completes an error of a request.
func (f *front) engineError(path string, blocks int, err error) error {
	if e, ok := errors.AsType[*EngineError](err); ok {
		e.Path, e.Blocks = path, blocks
		return e
	}
	return &EngineError{Path: path, Blocks: blocks, Err: err}
}

// errTimeout is the cause of a request that took too long.
type errTimeout struct{ after time.Duration }

func (e errTimeout) Error() string { return fmt.Sprintf("no answer in %v", e.after) }

// Is makes it a context.DeadlineExceeded.
func (e errTimeout) Is(target error) bool { return target == context.DeadlineExceeded }

// post sends a body and returns an answer of status 200, at most limit bytes of it.
func (f *front) post(ctx context.Context, path string, body any, limit int) ([]byte, error) {
	if t := f.cfg.RequestTimeout; t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t, errTimeout{t})
		defer cancel()
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode the request (is all of Extra JSON?): %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.cfg.URL+path, bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	for k, v := range f.cfg.Header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := f.cfg.Client.Do(req)
	if err != nil {
		return nil, causeOf(ctx, err)
	}
	defer func() { _ = res.Body.Close() }() // read, or given up
	answer, err := io.ReadAll(io.LimitReader(res.Body, int64(limit)+1))
	switch {
	case err != nil:
		return nil, &EngineError{Status: res.StatusCode, Err: causeOf(ctx, err)}
	case res.StatusCode != http.StatusOK:
		return nil, &EngineError{Status: res.StatusCode, Message: errorMessage(answer)}
	case len(answer) > limit:
		return nil, &EngineError{Status: res.StatusCode, Err: fmt.Errorf("an answer of more than %d bytes", limit)}
	}
	return answer, nil
}

// causeOf is why a request failed, when its context did.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// decodeUsage reads a completion. What it does not say is not an error.
func decodeUsage(answer []byte) (usage, error) {
	var c struct {
		Usage struct {
			PromptTokens *int `json:"prompt_tokens"`
			Details      struct {
				CachedTokens *int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
		Choices []json.RawMessage `json:"choices"`
	}
	if err := json.Unmarshal(answer, &c); err != nil {
		return usage{}, fmt.Errorf("read the completion: %w", err)
	}
	if len(c.Choices) == 0 {
		return usage{}, errors.New("read the completion: it has no choices")
	}
	var u usage
	if n := c.Usage.PromptTokens; n != nil {
		if u.prompt, u.hasPrompt = *n, true; *n < 0 {
			return usage{}, fmt.Errorf("read the completion: usage.prompt_tokens %d: want 0 or more", *n)
		}
	}
	if n := c.Usage.Details.CachedTokens; n != nil {
		u.cached, u.hasCached = *n, true
		if *n < 0 || u.hasPrompt && *n > u.prompt {
			return usage{}, fmt.Errorf("read the completion: usage.prompt_tokens_details.cached_tokens %d: want 0 to prompt_tokens", *n)
		}
	}
	return u, nil
}

// decodeTokens reads an answer of /tokenize.
func decodeTokens(answer []byte) ([]int, error) {
	var c struct {
		Tokens []int `json:"tokens"`
	}
	if err := json.Unmarshal(answer, &c); err != nil {
		return nil, fmt.Errorf("read the tokens: %w", err)
	}
	if len(c.Tokens) == 0 {
		return nil, errors.New("read the tokens: there are none")
	}
	for i, t := range c.Tokens {
		if t < 0 || t > math.MaxInt32 {
			return nil, fmt.Errorf("read the tokens: %d at position %d: want 0 to 2147483647", t, i)
		}
	}
	return c.Tokens, nil
}

// errorMessage is the engine's words: {"error": {"message": ...}}, {"message": ...}, {"detail": ...}, or the text.
func errorMessage(answer []byte) string {
	var e struct {
		Error   json.RawMessage `json:"error"`
		Message json.RawMessage `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	s := string(answer)
	if json.Unmarshal(answer, &e) == nil {
		var inner struct {
			Message json.RawMessage `json:"message"`
		}
		_ = json.Unmarshal(e.Error, &inner) // may be a string
		for _, raw := range []json.RawMessage{inner.Message, e.Error, e.Message, e.Detail} {
			var text string
			if json.Unmarshal(raw, &text) == nil && text != "" {
				s = text
				break
			}
		}
	}
	if len(s) > maxMessage {
		s = s[:maxMessage]
		for n := 1; n < utf8.UTFMax; n++ { // whether it ends within a rune
			if end := s[len(s)-n:]; utf8.RuneStart(end[0]) {
				if !utf8.FullRuneInString(end) {
					s = s[:len(s)-n]
				}
				break
			}
		}
	}
	return s
}
