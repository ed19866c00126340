package compare

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/kvferry/kvferry/internal/certs"
)

// EndError says what went wrong at one end.
type EndError struct {
	Peer, Role string
	Message    string // the end's own words, and what it wrote to its standard error
}

// Error names the end.
func (e *EndError) Error() string { return fmt.Sprintf("%s, %s: %s", e.Peer, e.Role, e.Message) }

// process is one end, seen from here.
type process struct {
	peer, role string
	cmd        *exec.Cmd
	in         io.WriteCloser
	requests   *json.Encoder
	answers    *json.Decoder
	stderr     tail
}

// tail keeps the last bytes written to it.
type tail struct {
	mu sync.Mutex
	b  []byte
}

const tailBytes = 2000

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.b))
}

// launcher starts a command; nil is as it is.
type launcher func(*exec.Cmd) error

// startProcess starts an end, which stops when ctx ends or it is closed. It is in a process group of its own, so that a
// terminal's Ctrl-C reaches this process alone, and ends by itself when this one does: its standard input is then closed.
func startProcess(ctx context.Context, command []string, cfg endConfig, launch launcher) (_ *process, addr string, err error) {
	p := &process{peer: cfg.Peer, role: cfg.Role, cmd: exec.CommandContext(ctx, command[0], command[1:]...)}
	ownGroup(p.cmd)
	p.cmd.Stderr = &p.stderr
	p.cmd.WaitDelay = 5 * time.Second
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, "", err
	}
	if launch == nil {
		launch = (*exec.Cmd).Start
	}
	if err := launch(p.cmd); err != nil {
		return nil, "", fmt.Errorf("start the %s of %s: %w", p.role, p.peer, err)
	}
	p.requests, p.answers = json.NewEncoder(p.in), json.NewDecoder(bufio.NewReader(out))
	a, err := p.ask(ctx, cfg)
	if err != nil {
		return nil, "", errors.Join(err, p.close())
	}
	return p, a.Addr, nil
}

// ask sends a request and returns its answer. The end of ctx kills the process.
func (p *process) ask(ctx context.Context, request any) (endAnswer, error) {
	err := p.requests.Encode(request)
	var a endAnswer
	if err == nil {
		err = p.answers.Decode(&a)
	}
	switch {
	case ctx.Err() != nil:
		return a, context.Cause(ctx)
	case err != nil:
		return a, &EndError{p.peer, p.role, strings.TrimSpace(fmt.Sprintf("ended early (%v)\n%s", err, p.stderr.String()))}
	case a.Error != "":
		return a, &EndError{p.peer, p.role, a.Error}
	}
	return a, nil
}

// close ends the process and waits for it.
func (p *process) close() error {
	_ = p.in.Close() // fails when the process is gone
	err := p.cmd.Wait()
	if p.cmd.ProcessState != nil && !p.cmd.ProcessState.Exited() {
		return nil // killed, by the end of the context
	}
	if err != nil {
		return &EndError{p.peer, p.role, fmt.Sprintf("%v: %s", err, p.stderr.String())}
	}
	return nil
}

// pair is the two ends of a way to move bytes; one process, for the floor.
type pair struct {
	source, destination *process // the same for the floor
	bytes               int64
}

// place is where the ends of a pair run.
type place struct {
	host                [2]string // source, destination
	source, destination launcher
}

// newPair starts both ends and connects them.
func newPair(ctx context.Context, c Config, ids *identities, p *peer, at place) (_ *pair, err error) {
	cfg := endConfig{
		Role: roleSource, Peer: p.name, Host: at.host[0], Bytes: c.Bytes, PageBytes: c.PageBytes, Seed: c.Seed, KV: c.kv, CA: ids.ca, Cert: ids.sourceCert, Key: ids.sourceKey,
		OtherCert: ids.destinationCert, OtherKey: ids.destinationKey, Patience: c.patience(),
	}
	profile := func(role string) string {
		if c.ProfileDir == "" {
			return ""
		}
		return filepath.Join(c.ProfileDir, p.name+"-"+role)
	}
	out := &pair{bytes: c.Bytes}
	defer func() {
		if err != nil {
			err = errors.Join(err, out.close())
		}
	}()
	cfg.Profile = profile(roleSource)
	if p.floor {
		cfg.Role, cfg.Profile = roleBoth, profile("both")
	}
	var addr string
	if out.source, addr, err = startProcess(ctx, c.Command, cfg, at.source); err != nil {
		return nil, err
	}
	if p.floor {
		out.destination = out.source
		return out, nil
	}
	cfg.Role, cfg.Addr, cfg.Profile = roleDestination, addr, profile(roleDestination)
	cfg.Cert, cfg.Key, cfg.OtherCert, cfg.OtherKey = ids.destinationCert, ids.destinationKey, nil, nil
	cfg.Host = at.host[1]
	out.destination, _, err = startProcess(ctx, c.Command, cfg, at.destination)
	return out, err
}

func (p *pair) close() error {
	var errs []error
	if p.destination != nil && p.destination != p.source {
		errs = append(errs, p.destination.close())
	}
	if p.source != nil {
		errs = append(errs, p.source.close())
	}
	return errors.Join(errs...)
}

// A Turn is one measured transfer.
type Turn struct {
	Bytes   int64   `json:"bytes"` // of verified pages; fewer than were asked for when the turn was cut short
	Seconds float64 `json:"seconds"`
	Gbps    float64 `json:"gbps"`
	// Processor seconds of each end; the floor's are all in CPUSource.
	CPUSource      float64 `json:"cpu_source_seconds"`
	CPUDestination float64 `json:"cpu_destination_seconds"`
	// OthersShare is the share of the machine's processors that everything else used meanwhile; nil where unknown.
	OthersShare *float64 `json:"others_share"`
	// BusyShare is the share that anything used, the ends included; nil where unknown.
	BusyShare *float64 `json:"busy_share"`

	round int
}

// move runs one transfer. One that is cut short by limit (0: none) leaves the pair good only to be closed, and has no processor time.
func (p *pair) move(ctx context.Context, measured bool, cores int, limit time.Duration) (*Turn, error) {
	both := []*process{p.source, p.destination}
	if p.source == p.destination {
		both = both[:1]
	}
	for _, e := range both {
		if _, err := e.ask(ctx, endRequest{Op: opBegin, Measured: measured}); err != nil {
			return nil, err
		}
	}
	before, known := machineCPU()
	a, err := p.destination.ask(ctx, endRequest{Op: opMove, Limit: limit})
	if err != nil {
		return nil, err
	}
	after, _ := machineCPU()
	r := &Turn{Bytes: a.Bytes, Seconds: a.Seconds, Gbps: float64(a.Bytes) * 8 / 1e9 / max(a.Seconds, 1e-9)}
	if known && cores > 0 {
		busy := (after - before) / max(r.Seconds, 1e-9) / float64(cores)
		r.BusyShare = &busy
	}
	if a.Bytes < p.bytes {
		if limit > 0 {
			return r, nil
		}
		return nil, &EndError{p.destination.peer, roleDestination, fmt.Sprintf("BUG: %d of %d bytes have landed", a.Bytes, p.bytes)}
	}
	digests := make([]uint32, len(both))
	for i, e := range both {
		a, err := e.ask(ctx, endRequest{Op: opEnd})
		if err != nil {
			return nil, err
		}
		digests[i] = a.Digest
		if i == 0 {
			r.CPUSource = a.CPUSeconds
		} else {
			r.CPUDestination = a.CPUSeconds
		}
	}
	if digests[0] != digests[len(digests)-1] {
		return nil, &EndError{p.destination.peer, roleDestination, "BUG: every page has landed, the bytes differ"}
	}
	if r.BusyShare != nil {
		share := max(0, *r.BusyShare-r.cpu()/max(r.Seconds, 1e-9)/float64(cores))
		r.OthersShare = &share
	}
	return r, nil
}

// identities are the PEM of a fresh authority and two nodes.
type identities struct {
	ca, sourceCert, sourceKey, destinationCert, destinationKey []byte
}

func newIdentities() (*identities, error) {
	ca, err := certs.NewCA("kvferry bench", 0)
	if err != nil {
		return nil, err
	}
	ids := &identities{ca: ca.CertPEM()}
	for node, to := range map[string][2]*[]byte{nodeSource: {&ids.sourceCert, &ids.sourceKey}, nodeDestination: {&ids.destinationCert, &ids.destinationKey}} {
		p, err := ca.Issue(region, node)
		if err != nil {
			return nil, err
		}
		*to[0] = p.CertPEM()
		if *to[1], err = p.KeyPEM(); err != nil {
			return nil, err
		}
	}
	return ids, nil
}
