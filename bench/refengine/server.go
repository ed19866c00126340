package refengine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

// maxRequestBytes bounds the body of a request: a million tokens of JSON.
const maxRequestBytes = 8 << 20

// Handler serves an engine over HTTP with JSON bodies:
//
//	POST /generate   a Request; answers a Result
//	GET  /status     answers a Status
//	POST /forget     drops the engine's own cache; answers {}
//	POST /verify     a VerifyRequest, of a paced engine; answers a Verified
//
// and what [Completions] serves.
//
// Errors are {"error": "..."} with 400 for a bad request, 502 for a session
// that could not be published (with the Result under "result"), 503 for a
// closed engine, 499 for a caller that went away.
func Handler(e *Engine) http.Handler {
	mux := http.NewServeMux()
	for _, path := range []string{"/v1/", "/tokenize", "/health"} {
		mux.Handle(path, Completions(e))
	}
	mux.HandleFunc("POST /generate", func(w http.ResponseWriter, r *http.Request) { serveGenerate(e, w, r) })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, e.Status()) })
	mux.HandleFunc("POST /forget", func(w http.ResponseWriter, r *http.Request) {
		if err := e.Forget(r.Context()); err != nil {
			replyError(w, err, nil)
			return
		}
		reply(w, http.StatusOK, struct{}{})
	})
	mux.HandleFunc("POST /verify", func(w http.ResponseWriter, r *http.Request) { serveVerify(e, w, r) })
	return mux
}

func serveVerify(e *Engine, w http.ResponseWriter, r *http.Request) {
	var req VerifyRequest
	if err := decode(w, r, &req); err != nil {
		reply(w, http.StatusBadRequest, errorBody{Error: err.Error()})
		return
	}
	out, err := e.Verify(r.Context(), req)
	if err != nil {
		replyError(w, err, nil)
		return
	}
	reply(w, http.StatusOK, out)
}

// decode reads one JSON object, strictly.
func decode(w http.ResponseWriter, r *http.Request, into any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil && d.More() {
		err = errors.New("data after the request")
	}
	return err
}

func serveGenerate(e *Engine, w http.ResponseWriter, r *http.Request) {
	var req Request
	err := decode(w, r, &req)
	if err == nil {
		err = req.validate(e.cfg.Model)
	}
	if err != nil {
		reply(w, http.StatusBadRequest, errorBody{Error: err.Error()})
		return
	}
	res, err := e.Generate(r.Context(), req)
	if err != nil {
		replyError(w, err, res)
		return
	}
	reply(w, http.StatusOK, res)
}

type errorBody struct {
	Error  string  `json:"error"`
	Result *Result `json:"result,omitempty"`
}

// statusClientClosed is nginx's code for a caller that went away.
const statusClientClosed = 499

func replyError(w http.ResponseWriter, err error, res *Result) {
	reply(w, errorCode(err), errorBody{Error: err.Error(), Result: res})
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the caller may have gone
}

// Serve serves an engine on addr, "unix:///path" or "host:port", until ctx
// ends, then lets requests under way finish for a second. ready, if not nil,
// is called with the listener's address once it listens. It returns nil after
// ctx ended, or the listener's error.
func Serve(ctx context.Context, addr string, e *Engine, ready func(net.Addr)) error {
	network, address := "tcp", addr
	if path, ok := strings.CutPrefix(addr, "unix://"); ok {
		network, address = "unix", path
	}
	ln, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil {
		return fmt.Errorf("refengine: serve on %q: want unix:///path or host:port: %w", addr, err)
	}
	if ready != nil {
		ready(ln.Addr())
	}
	srv := &http.Server{Handler: Handler(e), ReadHeaderTimeout: 10 * time.Second}
	drained := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(drained)
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if srv.Shutdown(grace) != nil {
			_ = srv.Close()
		}
	})
	err = srv.Serve(ln)
	if !stop() {
		<-drained
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("refengine: serve on %q: %w", addr, err)
}
