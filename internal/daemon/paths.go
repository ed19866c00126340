package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

const (
	// pathsVersion is the format of the file of paths.
	pathsVersion = 4
	// maxPathsBytes and maxPaths bound what is read of it.
	maxPathsBytes = 16 << 20
	maxPaths      = 4096
	// pathsEvery is how often what changed is written.
	pathsEvery = time.Minute
)

// paths remembers what was measured of the path to each configured peer, over links that end and restarts. Losing it costs
// measuring again, so a file that can't be read is dropped.
type paths struct {
	file string // empty: memory only
	mu   struct {
		sync.Mutex
		known   map[transfer.PeerID]pastPath
		changed bool
		written time.Time
	}
}

// pastPath is what was known at a moment.
type pastPath struct {
	at  time.Time
	est transfer.Estimates
}

// openPaths reads the file. Its error is to be logged; paths can be used.
func openPaths(file string) (*paths, error) {
	p := &paths{file: file}
	p.mu.known = map[transfer.PeerID]pastPath{}
	p.mu.written = time.Now()
	b, ok, err := readState(file, maxPathsBytes)
	if err != nil {
		return p, fmt.Errorf("read past paths: %w", err)
	}
	if !ok {
		return p, nil
	}
	known, err := decodePaths(b)
	if err != nil {
		return p, fmt.Errorf("read past paths: %s: %w", file, err)
	}
	p.mu.known = known
	return p, nil
}

// recall is a transfer.Config.Recall.
func (p *paths) recall(id transfer.PeerID) transfer.Estimates {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, ok := p.mu.known[id]
	if !ok {
		return transfer.Estimates{}
	}
	since := max(time.Since(k.at), 0) // a clock that was set back makes nothing younger
	for _, e := range fields(&k.est) {
		if e.Known() {
			e.Age += since
			e.Basis = transfer.Persisted
		}
	}
	return k.est
}

// learn takes in what a live link measured.
func (p *paths) learn(id transfer.PeerID, now transfer.Estimates) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := p.mu.known[id]
	t := time.Now()
	since, news := max(t.Sub(k.at), 0), false
	// Round trips are measured all the time; they alone are no news.
	for _, e := range []transfer.Estimate{now.Goodput, now.Capacity, now.Loss, now.Ramp} {
		news = news || e.Basis == transfer.Measured
	}
	if !news {
		return
	}
	before := k.est
	was, is := fields(&k.est), fields(&now)
	for i, e := range was {
		switch {
		case is[i].Basis == transfer.Measured:
			*e = *is[i]
		case e.Known():
			e.Age += since
		}
	}
	k.at = t
	k.est.Stripes = orDefault(now.Stripes, k.est.Stripes)
	p.mu.known[id] = k
	p.mu.changed = p.mu.changed || before.Goodput.Samples != k.est.Goodput.Samples || before.Capacity.Samples != k.est.Capacity.Samples || before.Stripes != k.est.Stripes
}

// pathNumbers is how many numbers a path has: those of all pages, and two of each kind that codecs know.
const pathNumbers = 8 + 2*(transfer.Elements-1)

// fields are the estimates of e in the order of the file.
func fields(e *transfer.Estimates) (out [pathNumbers]*transfer.Estimate) {
	n := copy(out[:], []*transfer.Estimate{&e.Goodput, &e.Capacity, &e.RTTMin, &e.RTTSmoothed, &e.Loss, &e.Ramp, &e.Ratio, &e.CodecRate})
	for i := range e.Coding[1:] {
		c := &e.Coding[1+i]
		n += copy(out[n:], []*transfer.Estimate{&c.Ratio, &c.CodecRate})
	}
	return out
}

// flush writes what changed, not more often than every pathsEvery unless now.
func (p *paths) flush(now bool) error {
	p.mu.Lock()
	due := p.file != "" && p.mu.changed && (now || time.Since(p.mu.written) >= pathsEvery)
	if !due {
		p.mu.Unlock()
		return nil
	}
	known := maps.Clone(p.mu.known)
	p.mu.changed, p.mu.written = false, time.Now()
	p.mu.Unlock()
	b, err := encodePaths(known)
	if err == nil {
		err = writeWhole(p.file, b)
	}
	if err != nil {
		return fmt.Errorf("write past paths: %w", err)
	}
	return nil
}

// pathsFile, pathEntry and pathNumber are the file's form: one JSON object.
type pathsFile struct {
	Version int         `json:"version"`
	Paths   []pathEntry `json:"paths"` // by peer
}

type pathEntry struct {
	Peer    string       `json:"peer"`
	Unix    int64        `json:"unix_seconds"`
	Stripes int          `json:"stripes"`
	Numbers []pathNumber `json:"numbers"` // goodput, capacity, least and smoothed round trip, loss, ramp, then ratio and codec rate of all pages, of BF16, FP16, FP8 and of others
}

type pathNumber struct {
	Value   float64 `json:"value"`
	Spread  float64 `json:"spread"`
	Samples int64   `json:"samples"` // 0: unknown
	Age     float64 `json:"age_seconds"`
}

func encodePaths(known map[transfer.PeerID]pastPath) ([]byte, error) {
	out := pathsFile{Version: pathsVersion, Paths: []pathEntry{}}
	for _, id := range slices.Sorted(maps.Keys(known)) {
		k := known[id]
		e := pathEntry{Peer: string(id), Unix: k.at.Unix(), Stripes: k.est.Stripes}
		for i, n := range fields(&k.est) {
			v := pathNumber{Value: n.Value, Spread: n.Spread, Samples: max(int64(n.Samples), 1), Age: n.Age.Seconds()}
			if !n.Known() || !v.within(pathBounds[i]) {
				v = pathNumber{}
			}
			e.Numbers = append(e.Numbers, v)
		}
		out.Paths = append(out.Paths, e)
	}
	return json.Marshal(out)
}

// decodePaths reads what encodePaths wrote, and refuses everything else.
func decodePaths(b []byte) (map[transfer.PeerID]pastPath, error) {
	if len(b) > maxPathsBytes {
		return nil, fmt.Errorf("more than %d bytes", maxPathsBytes)
	}
	var in pathsFile
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF { //nolint:errorlint // as the decoder documents it
		return nil, errors.New("something follows the object")
	}
	if in.Version != pathsVersion {
		return nil, fmt.Errorf("version %d, want %d", in.Version, pathsVersion)
	}
	if len(in.Paths) > maxPaths {
		return nil, fmt.Errorf("%d paths, at most %d", len(in.Paths), maxPaths)
	}
	known := make(map[transfer.PeerID]pastPath, len(in.Paths))
	for _, e := range in.Paths {
		id := transfer.PeerID(e.Peer)
		if _, twice := known[id]; twice || !idPattern.MatchString(e.Peer) {
			return nil, fmt.Errorf("peer %.200q is not a node's id, or comes twice", e.Peer)
		}
		k, err := e.path()
		if err != nil {
			return nil, fmt.Errorf("peer %q: %w", e.Peer, err)
		}
		known[id] = k
	}
	return known, nil
}

// maxPathAge bounds the age of what is remembered: a century, in seconds.
const maxPathAge = 100 * 365 * 86400

// pathBounds are the least and the most of each number: what no path has would make the planner refuse all of the peer's plans, and
// then nothing would be measured that could replace it. Rates are in bytes a second, times in seconds.
var pathBounds = func() (out [pathNumbers][2]float64) {
	n := copy(out[:], [][2]float64{{1, 1e13}, {1, 1e13}, {0, 60}, {0, 60}, {0, 1}, {0, 3600}})
	for n < pathNumbers {
		n += copy(out[n:], [][2]float64{{1, 1e6}, {1, 1e13}})
	}
	return out
}()

func (n pathNumber) within(bounds [2]float64) bool {
	return n.Samples >= 1 && n.Value >= bounds[0] && n.Value <= bounds[1] && n.Spread >= 0 && n.Spread <= bounds[1] && n.Age >= 0 && n.Age <= maxPathAge
}

func (e pathEntry) path() (k pastPath, err error) {
	to := fields(&k.est)
	if len(e.Numbers) != len(to) || e.Stripes < 0 || e.Stripes > transfer.MaxStripes || e.Unix < 0 || e.Unix > math.MaxInt32*8 {
		return k, fmt.Errorf("%d numbers, %d stripes, time %d", len(e.Numbers), e.Stripes, e.Unix)
	}
	k.at, k.est.Stripes = time.Unix(e.Unix, 0), e.Stripes
	for i, n := range e.Numbers {
		if n == (pathNumber{}) {
			continue
		}
		if !n.within(pathBounds[i]) {
			return k, fmt.Errorf("number %d is %+v", i, n)
		}
		*to[i] = transfer.Estimate{
			Value: n.Value, Spread: n.Spread, Samples: int(n.Samples), Age: time.Duration(n.Age * float64(time.Second)), Basis: transfer.Persisted,
		}
	}
	return k, nil
}
