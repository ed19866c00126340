package compare

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/bench/wan"
)

// The roles of an end.
const (
	roleSource      = "source"
	roleDestination = "destination"
	roleBoth        = "both" // the floor
)

// endConfig is the first line that an end reads.
type endConfig struct {
	Role, Peer string
	Host       string // the IP address to listen on and to dial from
	Addr       string // the source's, for a destination
	Bytes      int64
	PageBytes  int
	Seed       uint64
	KV         bool // the bytes are values of KV cache, not noise
	// PEM: the authority, this end's certificate and key; with roleBoth also the destination's.
	CA, Cert, Key       []byte
	OtherCert, OtherKey []byte
	Profile             string // of files, a measured span each: what comes before their number; or nothing
	Patience            time.Duration

	network *wan.Network // of an in-memory source
}

// The requests, a line of JSON each; every one has one answer.
const (
	opBegin = "begin" // a span: memory ready, processor time noted
	opMove  = "move"  // destination: move everything
	opEnd   = "end"   // of the span: processor time and, at a destination, the memory's digest
)

type endRequest struct {
	Op       string
	Measured bool // the span counts: it is in the profile
	// Limit ends a move that has not ended by then: what has landed counts, and the end is good for nothing more. 0: none.
	Limit time.Duration
}

type endAnswer struct {
	Error string `json:",omitempty"`
	// Of the first line.
	Addr string `json:",omitempty"`
	// Of opMove.
	Seconds float64 `json:",omitempty"`
	Bytes   int64   `json:",omitempty"` // that landed
	// Of opEnd.
	CPUSeconds float64 `json:",omitempty"`
	Digest     uint32  `json:",omitempty"`
}

// ServeEnd is one end of a comparison: it reads requests from r and answers on w until r ends. It is for the program that
// Config.Command starts. Errors: those of reading and of writing; a fault of the end is answered to the other side.
func ServeEnd(r io.Reader, w io.Writer) error {
	in, out := json.NewDecoder(bufio.NewReader(r)), json.NewEncoder(w)
	var cfg endConfig
	if err := in.Decode(&cfg); err != nil {
		return fmt.Errorf("read the end's configuration: %w", err)
	}
	e := &end{cfg: cfg}
	addr, err := e.open()
	if err = answer(out, endAnswer{Addr: addr}, err); err != nil {
		return err
	}
	for {
		var req endRequest
		if err := in.Decode(&req); errors.Is(err, io.EOF) {
			return e.close()
		} else if err != nil {
			return errors.Join(fmt.Errorf("read a request: %w", err), e.close())
		}
		a, err := e.do(req)
		if err := answer(out, a, err); err != nil {
			return errors.Join(err, e.close())
		}
	}
}

func answer(out *json.Encoder, a endAnswer, err error) error {
	if err != nil {
		a = endAnswer{Error: err.Error()}
	}
	return out.Encode(a)
}

// end is the state of one.
type end struct {
	cfg     endConfig
	from    *memory // of a source
	to      *memory // of a destination
	source  io.Closer
	mover   mover
	cpu     float64
	profile *os.File // of the span that runs
	spans   int      // measured
}

func (e *end) open() (addr string, err error) {
	p, err := findPeer(e.cfg.Peer)
	if err != nil {
		return "", err
	}
	addr = e.cfg.Addr
	if e.cfg.Role != roleDestination {
		e.from = newMemory(e.cfg.Bytes, e.cfg.PageBytes)
		if err := e.from.fill(e.cfg.Seed, e.cfg.KV); err != nil {
			return "", err
		}
		if addr, e.source, err = p.serve(&e.cfg, e.from); err != nil {
			return "", err
		}
	}
	if e.cfg.Role == roleSource {
		return addr, nil
	}
	e.cfg.Addr = addr
	e.to = newMemory(e.cfg.Bytes, e.cfg.PageBytes)
	ctx, cancel := context.WithTimeout(context.Background(), e.cfg.Patience)
	defer cancel()
	e.mover, err = p.dial(ctx, &e.cfg, e.to)
	return addr, err
}

func (e *end) do(req endRequest) (a endAnswer, err error) {
	switch req.Op {
	case opBegin:
		if e.to != nil {
			e.to.reset()
		}
		runtime.GC() // garbage of the last span is not of this one
		if req.Measured && e.cfg.Profile != "" {
			e.spans++
			if e.profile, err = os.Create(fmt.Sprintf("%s-%d.pprof", e.cfg.Profile, e.spans)); err != nil {
				return a, err
			}
			if err := pprof.StartCPUProfile(e.profile); err != nil {
				return a, err
			}
		}
		e.cpu = results.ProcessCPU()
	case opMove:
		if e.mover == nil {
			return a, errors.New("asked to move, and not a destination")
		}
		ctx, cancel := context.WithTimeout(context.Background(), orDefault(req.Limit, e.cfg.Patience))
		defer cancel()
		began := time.Now()
		err = e.mover.move(ctx)
		a.Seconds, a.Bytes = time.Since(began).Seconds(), e.mover.landed()
		if req.Limit > 0 && ctx.Err() != nil {
			err = nil
		}
	case opEnd:
		a.CPUSeconds = results.ProcessCPU() - e.cpu
		if err := e.endProfile(); err != nil {
			return a, err
		}
		switch {
		case e.to != nil && e.from != nil:
			a.Digest = e.to.digest()
			if a.Digest != e.from.digest() {
				err = errors.New("BUG: the bytes differ")
			}
		case e.to != nil:
			a.Digest = e.to.digest()
		default:
			a.Digest = e.from.digest()
		}
	default:
		err = fmt.Errorf("no request is called %q", req.Op)
	}
	return a, err
}

func (e *end) close() error {
	err := e.endProfile()
	// What closing says is of no interest: the process ends.
	if e.mover != nil {
		_ = e.mover.Close()
	}
	if e.source != nil {
		_ = e.source.Close()
	}
	return err
}

// endProfile ends that of a span, if there is one.
func (e *end) endProfile() error {
	if e.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	f := e.profile
	e.profile = nil
	return f.Close()
}
