package refengine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Completions serves an engine as an OpenAI-compatible server does, vLLM's in particular:
//
//	POST /v1/completions  prompt (token ids, or text), max_tokens
//	POST /tokenize        prompt, text; answers tokens
//	GET  /v1/models       the model, by Config.Names.ModelID
//	GET  /health          200 with an empty body
//
// It is a stock engine with prefix caching and a connector: a request starts from the longest prefix that the engine or the
// daemon holds, every block that fills goes to the daemon, and nothing is claimed of a migration that runs meanwhile.
// usage.prompt_tokens_details.cached_tokens says what was not computed. Of kv_transfer_params, kvferry_session_id has the
// session published at the end of the turn, and kvferry_migration_id is accepted; cache_salt is the tenant.
//
// Text has a token for each byte, which takes a vocabulary of 256 or more; answers give their tokens as token_ids, and as
// decimal numbers in text. Only temperature 0 is served, without streams. Fields that it does not know it ignores, as vLLM
// does. Errors are {"error": {"message", "type", "param", "code"}} with the codes of [Handler].
func Completions(e *Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { serveCompletion(e, w, r) })
	mux.HandleFunc("POST /tokenize", func(w http.ResponseWriter, r *http.Request) { serveTokenize(e, w, r) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, modelList{Object: "list", Data: []modelCard{{
			ID: e.cfg.Names.ModelID, Object: "model", OwnedBy: "kvferry", MaxModelLen: e.cfg.Model.MaxTokens,
		}}})
	})
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	return mux
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelCard `json:"data"`
}

type modelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"`
}

// completionRequest is what is read of a body. Absent fields have the defaults of the API.
type completionRequest struct {
	Model       string          `json:"model"`
	Prompt      json.RawMessage `json:"prompt"`
	MaxTokens   *int            `json:"max_tokens"`
	Temperature float64         `json:"temperature"`
	N           *int            `json:"n"`
	Stream      bool            `json:"stream"`
	CacheSalt   string          `json:"cache_salt"`
	Transfer    struct {
		Migration string `json:"kvferry_migration_id"`
		Session   string `json:"kvferry_session_id"`
	} `json:"kv_transfer_params"`
}

type completion struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"`
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []completionChoice `json:"choices"`
	Usage   completionUsage    `json:"usage"`
}

type completionChoice struct {
	Index        int    `json:"index"`
	Text         string `json:"text"`
	TokenIDs     []int  `json:"token_ids"`
	FinishReason string `json:"finish_reason"`
}

type completionUsage struct {
	PromptTokens     int           `json:"prompt_tokens"`
	CompletionTokens int           `json:"completion_tokens"`
	TotalTokens      int           `json:"total_tokens"`
	Details          promptDetails `json:"prompt_tokens_details"`
}

type promptDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// decodeCompletion reads a body as a turn.
func decodeCompletion(body io.Reader, names Names, m ModelConfig) (Request, error) {
	const defaultMaxTokens = 16 // of the API
	var c completionRequest
	if err := decodeOne(body, &c); err != nil {
		return Request{}, err
	}
	req := Request{Tenant: c.CacheSalt, Session: c.Transfer.Session, MaxNew: defaultMaxTokens, Commit: true, UseCache: true, Publish: c.Transfer.Session != ""}
	if c.MaxTokens != nil {
		req.MaxNew = *c.MaxTokens
	}
	var errs []error
	switch {
	case c.Model != "" && c.Model != names.ModelID:
		errs = append(errs, fmt.Errorf("model %q does not exist: want %q", c.Model, names.ModelID))
	case req.MaxNew < 1:
		errs = append(errs, fmt.Errorf("max_tokens %d: want 1 or more", req.MaxNew))
	}
	if c.Temperature != 0 {
		errs = append(errs, fmt.Errorf("temperature %v: want 0, decoding is greedy", c.Temperature))
	}
	if c.Stream || c.N != nil && *c.N != 1 {
		errs = append(errs, errors.New("stream or n: want no stream, and one choice"))
	}
	var err error
	if req.Tokens, err = promptTokens(c.Prompt); err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		errs = append(errs, req.validate(m))
	}
	return req, errors.Join(errs...)
}

// promptTokens reads token ids, a list of one list of them, or text.
func promptTokens(raw json.RawMessage) ([]int, error) {
	var text string
	if json.Unmarshal(raw, &text) == nil && text != "" {
		return bytesTokens(text), nil
	}
	var ids []int
	if json.Unmarshal(raw, &ids) == nil && len(ids) > 0 {
		return ids, nil
	}
	var lists [][]int
	if json.Unmarshal(raw, &lists) == nil && len(lists) == 1 && len(lists[0]) > 0 {
		return lists[0], nil
	}
	return nil, fmt.Errorf("prompt %.40q: want a list of token ids, or a text, one of them and not empty", raw)
}

// bytesTokens is a token for each byte.
func bytesTokens(text string) []int {
	tokens := make([]int, len(text))
	for i := range len(text) {
		tokens[i] = int(text[i])
	}
	return tokens
}

// decodeOne reads one JSON value and nothing after it.
func decodeOne(r io.Reader, v any) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return json.Unmarshal(bytes.TrimSpace(b), v)
}

func serveCompletion(e *Engine, w http.ResponseWriter, r *http.Request) {
	req, err := decodeCompletion(http.MaxBytesReader(w, r.Body, maxRequestBytes), e.cfg.Names, e.cfg.Model)
	if err != nil {
		replyAPIError(w, http.StatusBadRequest, err)
		return
	}
	res, err := e.Generate(r.Context(), req)
	if err != nil {
		replyAPIError(w, errorCode(err), err)
		return
	}
	replyCompletion(e, w, req, res)
}

func replyCompletion(e *Engine, w http.ResponseWriter, req Request, res *Result) {
	text := make([]string, len(res.Tokens))
	for i, t := range res.Tokens {
		text[i] = strconv.Itoa(t)
	}
	n := len(req.Tokens)
	reply(w, http.StatusOK, completion{
		ID: "cmpl-" + strconv.FormatInt(e.Status().Counters.Requests, 10), Object: "text_completion", Created: time.Now().Unix(), Model: e.cfg.Names.ModelID,
		Choices: []completionChoice{{Text: strings.Join(text, " "), TokenIDs: res.Tokens, FinishReason: "length"}},
		Usage: completionUsage{
			PromptTokens: n, CompletionTokens: len(res.Tokens), TotalTokens: n + len(res.Tokens),
			Details: promptDetails{CachedTokens: res.CachedTokens},
		},
	})
}

func serveTokenize(e *Engine, w http.ResponseWriter, r *http.Request) {
	var q struct {
		Prompt string `json:"prompt"`
	}
	if err := decodeOne(http.MaxBytesReader(w, r.Body, maxRequestBytes), &q); err != nil {
		replyAPIError(w, http.StatusBadRequest, err)
		return
	}
	tokens := bytesTokens(q.Prompt)
	reply(w, http.StatusOK, struct {
		Count       int   `json:"count"`
		MaxModelLen int   `json:"max_model_len"`
		Tokens      []int `json:"tokens"`
	}{len(tokens), e.cfg.Model.MaxTokens, tokens})
}

type apiError struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func replyAPIError(w http.ResponseWriter, code int, err error) {
	kind := "InternalServerError"
	if code == http.StatusBadRequest {
		kind = "BadRequestError"
	}
	reply(w, code, struct {
		Error apiError `json:"error"`
	}{apiError{Message: err.Error(), Type: kind, Code: code}})
}

// errorCode is the status of a turn's error.
func errorCode(err error) int {
	switch {
	case errors.Is(err, ErrPublish):
		return http.StatusBadGateway
	case errors.Is(err, ErrClosed):
		return http.StatusServiceUnavailable
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return statusClientClosed
	}
	return http.StatusInternalServerError
}
