package crossover

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kvferry/kvferry/bench/results"
)

const (
	// Prompts are token ids of this range, which the vocabularies of all common models have; random from the first on, so that no
	// prefix cache knows them.
	firstToken = 1000
	lastToken  = 31000
	// maxAnswer bounds what is read of an answer.
	maxAnswer     = 1 << 20
	openAITimeout = 10 * time.Minute
)

// openAI measures the time to the first token at an endpoint.
type openAI struct {
	base, model, key string
	shown            string // base without a password
	client           *http.Client
	rng              *rand.Rand
}

func openOpenAI(ctx context.Context, c Config) (*openAI, error) {
	base := strings.TrimSuffix(strings.TrimRight(c.OpenAIURL, "/"), "/completions")
	if !strings.HasSuffix(base, "/v1") {
		base += "/v1"
	}
	o := &openAI{base: base, shown: results.RedactURL(base), model: c.OpenAIModel, key: c.OpenAIKey, client: &http.Client{Timeout: openAITimeout}}
	o.rng = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())) // an endpoint may remember the prompts of an earlier run
	if o.model != "" {
		return o, nil
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := o.call(ctx, http.MethodGet, "/models", nil, &list); err != nil {
		return nil, err
	}
	if len(list.Data) == 0 || list.Data[0].ID == "" {
		return nil, &EndpointError{Path: o.shown + "/models", Message: "it lists no model", Fix: "name the model"}
	}
	o.model = list.Data[0].ID
	return o, nil
}

// EndpointError is an OpenAI-compatible endpoint that does not do what is needed. Path is its address without a user and password.
type EndpointError struct {
	Path, Message, Fix string
	Status             int // of HTTP; 0 when there is none
}

// Error names the endpoint, what it did and the fix.
func (e *EndpointError) Error() string { return fmt.Sprintf("%s (fix: %s)", e.What(), e.Fix) }

// What names the endpoint and what it did.
func (e *EndpointError) What() string {
	status := ""
	if e.Status != 0 {
		status = fmt.Sprintf(" (HTTP %d)", e.Status)
	}
	return fmt.Sprintf("%s%s: %s", e.Path, status, e.Message)
}

func (o *openAI) prefill(ctx context.Context, n int64) (float64, error) {
	prompt := make([]int, n)
	for i := range prompt {
		prompt[i] = firstToken + o.rng.IntN(lastToken-firstToken)
	}
	body, err := json.Marshal(map[string]any{"model": o.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": false})
	if err != nil {
		return 0, err
	}
	var answer struct {
		Usage struct {
			PromptTokens int64 `json:"prompt_tokens"`
		} `json:"usage"`
	}
	began := time.Now()
	if err := o.call(ctx, http.MethodPost, "/completions", body, &answer); err != nil {
		return 0, err
	}
	seconds := time.Since(began).Seconds()
	if got := answer.Usage.PromptTokens; got < n || got > n+2 { // a token or two may be put in front
		return 0, &EndpointError{
			Path: o.shown + "/completions", Message: fmt.Sprintf("it counted %d tokens in a prompt of %d token ids", got, n),
			Fix: "use an endpoint that takes prompts as token ids, as vLLM and SGLang do",
		}
	}
	return seconds, nil
}

// call makes one request with a JSON answer.
func (o *openAI) call(ctx context.Context, method, path string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, o.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if o.key != "" {
		req.Header.Set("Authorization", "Bearer "+o.key)
	}
	resp, err := o.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if in, ok := errors.AsType[*url.Error](err); ok {
			err = in.Err // without the address, which stands before it
		}
		return &EndpointError{Path: o.shown + path, Message: err.Error(), Fix: "check that the server runs and that this host reaches it"}
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		return &EndpointError{Path: o.shown + path, Status: resp.StatusCode, Message: clip(string(b)), Fix: "check the address, the model's name, the key and its longest prompt"}
	}
	if err == nil {
		err = json.Unmarshal(b, answer)
	}
	if err != nil {
		return &EndpointError{Path: o.shown + path, Status: resp.StatusCode, Message: err.Error(), Fix: "check that the address is that of an OpenAI-compatible server"}
	}
	return nil
}

// clip bounds a server's words.
func clip(s string) string {
	const most = 300
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}

func (o *openAI) speed() (float64, bool) { return 0, false }

func (o *openAI) describe() string { return "OpenAI-compatible endpoint, model " + o.model }

func (o *openAI) close() error {
	o.client.CloseIdleConnections()
	return nil
}
