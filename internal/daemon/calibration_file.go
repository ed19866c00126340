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
	"time"

	"github.com/kvferry/kvferry/planner"
)

const (
	// calibrationVersion is the format of the file of observed prefills.
	calibrationVersion = 1
	// maxCalibrationBytes bounds what is read of it: maxReplicas with keptPrefills each of less than 128 bytes.
	maxCalibrationBytes = maxReplicas * (keptPrefills*128 + 512)
)

// openCalibration reads the file. Its error is to be logged; the result can be used.
func openCalibration(file string) (*calibration, error) {
	c := &calibration{file: file}
	c.mu.replicas, c.mu.written = map[string]*replica{}, time.Now()
	b, ok, err := readState(file, maxCalibrationBytes)
	if err != nil {
		return c, fmt.Errorf("read observed prefills: %w", err)
	}
	if !ok {
		return c, nil
	}
	replicas, err := decodeCalibration(b)
	if err != nil {
		return c, fmt.Errorf("read observed prefills: %s: %w", file, err)
	}
	c.mu.replicas = replicas
	return c, nil
}

// flush writes what changed, not more often than every pathsEvery unless now.
func (c *calibration) flush(now bool) error {
	c.mu.Lock()
	if due := c.file != "" && c.mu.changed && (now || time.Since(c.mu.written) >= pathsEvery); !due {
		c.mu.Unlock()
		return nil
	}
	b, err := encodeCalibration(c.mu.replicas)
	c.mu.changed, c.mu.written = false, time.Now()
	c.mu.Unlock()
	if err == nil {
		err = writeWhole(c.file, b)
	}
	if err != nil {
		return fmt.Errorf("write observed prefills: %w", err)
	}
	return nil
}

// calibrationFile, replicaEntry and prefillEntry are the file's form: one JSON object.
type calibrationFile struct {
	Version  int            `json:"version"`
	Replicas []replicaEntry `json:"replicas"` // by engine
}

type replicaEntry struct {
	Engine   string         `json:"engine"`
	Pin      string         `json:"layout_pin"`
	Prefills []prefillEntry `json:"prefills"` // oldest first, at least one
}

type prefillEntry struct {
	Cached   int64   `json:"cached_tokens"`
	Uncached int64   `json:"uncached_tokens"`
	Seconds  float64 `json:"seconds"`
	Unix     int64   `json:"unix_seconds"`
}

func encodeCalibration(replicas map[string]*replica) ([]byte, error) {
	out := calibrationFile{Version: calibrationVersion, Replicas: []replicaEntry{}}
	for _, id := range slices.Sorted(maps.Keys(replicas)) {
		r := replicas[id]
		e := replicaEntry{Engine: id, Pin: r.pin}
		for _, p := range r.kept {
			e.Prefills = append(e.Prefills, prefillEntry{p.Cached, p.Uncached, p.Seconds, p.at.Unix()})
		}
		out.Replicas = append(out.Replicas, e)
	}
	return json.Marshal(out)
}

// decodeCalibration reads what encodeCalibration wrote, and refuses everything else. What it returns is fitted when it is first asked for.
func decodeCalibration(b []byte) (map[string]*replica, error) {
	if len(b) > maxCalibrationBytes {
		return nil, fmt.Errorf("more than %d bytes", maxCalibrationBytes)
	}
	var in calibrationFile
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF { //nolint:errorlint // as the decoder documents it
		return nil, errors.New("something follows the object")
	}
	switch {
	case in.Version != calibrationVersion:
		return nil, fmt.Errorf("version %d, want %d", in.Version, calibrationVersion)
	case len(in.Replicas) > maxReplicas:
		return nil, fmt.Errorf("%d engines, at most %d", len(in.Replicas), maxReplicas)
	}
	replicas := make(map[string]*replica, len(in.Replicas))
	for _, e := range in.Replicas {
		if _, twice := replicas[e.Engine]; twice || !engineIDPattern.MatchString(e.Engine) {
			return nil, fmt.Errorf("engine %.200q is not an engine's id, or comes twice", e.Engine)
		}
		r, err := e.replica()
		if err != nil {
			return nil, fmt.Errorf("engine %q: %w", e.Engine, err)
		}
		replicas[e.Engine] = r
	}
	return replicas, nil
}

func (e replicaEntry) replica() (*replica, error) {
	if n := len(e.Prefills); n < 1 || n > keptPrefills || !idPattern.MatchString(e.Pin) {
		return nil, fmt.Errorf("%d prefills of layout %.200q: want 1 to %d of a pin", n, e.Pin, keptPrefills)
	}
	r := &replica{pin: e.Pin}
	for i, p := range e.Prefills {
		o := observedPrefill{planner.Prefill{Cached: p.Cached, Uncached: p.Uncached, Seconds: p.Seconds}, time.Unix(p.Unix, 0)}
		if err := o.Validate(); err != nil || p.Unix < 0 || p.Unix > math.MaxInt32*8 {
			return nil, fmt.Errorf("prefill %d is %+v", i, p)
		}
		r.kept = append(r.kept, o)
	}
	return r, nil
}
