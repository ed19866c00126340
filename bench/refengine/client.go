package refengine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// A Client calls an engine that [Serve] serves. Safe for concurrent use. Its methods return the engine's error text, or an error of
// the connection.
type Client struct {
	http *http.Client
	base string
}

// maxAnswerBytes bounds an engine's answer.
const maxAnswerBytes = 64 << 20

// NewClient calls the engine on addr, "unix:///path" or "host:port". Close is owed.
func NewClient(addr string) *Client {
	transport, base := &http.Transport{}, "http://"+addr
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		base = "http://engine"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	return &Client{http: &http.Client{Transport: transport}, base: base}
}

// Close ends idle connections.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// Generate runs one turn.
func (c *Client) Generate(ctx context.Context, req Request) (*Result, error) {
	return call[Result](ctx, c, http.MethodPost, "/generate", req)
}

// Status describes the engine.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	return call[Status](ctx, c, http.MethodGet, "/status", nil)
}

// Forget drops the engine's own cache, so that the next turn reads the arena.
func (c *Client) Forget(ctx context.Context) error {
	_, err := call[struct{}](ctx, c, http.MethodPost, "/forget", struct{}{})
	return err
}

// Verify has a paced engine hold blocks of the daemon to what they must be.
func (c *Client) Verify(ctx context.Context, req VerifyRequest) (*Verified, error) {
	return call[Verified](ctx, c, http.MethodPost, "/verify", req)
}

// call makes one call; in is sent as JSON unless it is nil.
func call[T any](ctx context.Context, c *Client, method, path string, in any) (*T, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		var fail errorBody
		if json.Unmarshal(data, &fail) == nil && fail.Error != "" {
			return nil, errors.New(fail.Error)
		}
		return nil, fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	out := new(T)
	return out, json.Unmarshal(data, out)
}
