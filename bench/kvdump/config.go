package kvdump

import (
	"errors"
	"fmt"

	"github.com/kvferry/kvferry/bench/kvfile"
	"github.com/kvferry/kvferry/bench/results"
)

const (
	// DefaultMaxBytes is what a Config's zero MaxBytes means.
	DefaultMaxBytes = 64 << 20
	// MaxComputeBytes is the most that Compute takes as MaxBytes: the engine holds the whole sequence, as float32.
	MaxComputeBytes = 4 << 30
)

// Config says what file is made. Zero means the documented default.
type Config struct {
	// Path is the file's. Required.
	Path string
	// Force replaces a plain file that is there.
	Force bool
	// MaxBytes bounds the bytes of all pages: as many whole blocks as fit are recorded. Default DefaultMaxBytes.
	MaxBytes int64
	// Progress is told how far it is. Nil: nobody is.
	Progress *results.Progress
}

func (c Config) withDefaults() Config {
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	return c
}

// check refuses what cannot be before anything is computed or asked for.
func (c Config) check() error {
	if c.Path == "" {
		return &InputError{"file", `""`, "the name of the file to write"}
	}
	if c.MaxBytes < 0 {
		return &InputError{"max bytes", fmt.Sprint(c.MaxBytes), "above 0"}
	}
	return kvfile.CheckPlace(c.Path, c.Force)
}

// blocks is how many of those blocks may be recorded, at least one.
func (c Config) blocks(h kvfile.Header, have int) (int, error) {
	block := int64(h.Layers) * int64(h.PageBytes)
	n := min(c.MaxBytes/block, int64(kvfile.MaxPages/h.Layers), int64(have))
	if n == 0 && have > 0 {
		return 0, &InputError{"max bytes", fmt.Sprint(c.MaxBytes), fmt.Sprintf("at least %d, a block of %d pages", block, h.Layers)}
	}
	return int(n), nil
}

// layersOf is the layer of each page of n whole blocks.
func layersOf(n, layers int) []int {
	out := make([]int, 0, n*layers)
	for range n {
		for l := range layers {
			out = append(out, l)
		}
	}
	return out
}

// InputError is a value that cannot be used, with what is allowed.
type InputError struct{ Field, Value, Allowed string }

// Error names the field, the value and what is allowed.
func (e *InputError) Error() string {
	return fmt.Sprintf("%s is %.200s: must be %s", e.Field, e.Value, e.Allowed)
}

// RefusedError says why a daemon's pages cannot be recorded as things stand, and what to do.
type RefusedError struct{ Message, Fix string }

// Error is the message with its fix.
func (e *RefusedError) Error() string { return e.Message + " (fix: " + e.Fix + ")" }

// Summary says what a file holds.
type Summary struct {
	Path   string `json:"path"`
	Bytes  int64  `json:"bytes"` // of all pages
	Blocks int    `json:"blocks"`
	// Absent are blocks that were asked for, by key, and that the daemon did not have or not yet.
	Absent int `json:"absent"`
	// Left are blocks that there were beyond MaxBytes.
	Left   int           `json:"left"`
	Header kvfile.Header `json:"header"` // without PageLayers
}

// recorder writes whole blocks.
type recorder struct {
	f *kvfile.File
	h kvfile.Header
	c Config
}

// begin creates the file for n blocks. abort is owed.
func (c Config) begin(h kvfile.Header, n int) (*recorder, error) {
	h.PageLayers = layersOf(n, h.Layers)
	h.Pages = len(h.PageLayers)
	f, err := kvfile.Create(c.Path, h, c.Force)
	if err != nil {
		return nil, err
	}
	c.Progress.Stage("record pages", float64(h.Pages))
	return &recorder{f, h, c}, nil
}

func (r *recorder) block(b []byte) error {
	for p := range r.h.Layers {
		if err := r.f.WritePage(b[p*r.h.PageBytes : (p+1)*r.h.PageBytes]); err != nil {
			return err
		}
	}
	r.c.Progress.Add(float64(r.h.Layers))
	return nil
}

// end makes the file whole, or takes it away when err is set.
func (r *recorder) end(err error) (*Summary, error) {
	if err != nil {
		return nil, errors.Join(err, r.f.Abort())
	}
	if err := r.f.Commit(); err != nil {
		return nil, err
	}
	s := &Summary{Path: r.c.Path, Bytes: int64(r.h.Pages) * int64(r.h.PageBytes), Blocks: r.h.Pages / r.h.Layers, Header: r.h}
	s.Header.PageLayers = nil
	return s, nil
}
