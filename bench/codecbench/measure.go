package codecbench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/klauspost/compress/s2"

	"github.com/kvferry/kvferry/bench/results"
	"github.com/kvferry/kvferry/transfer/codec"
)

// run is one coder on one set.
type run struct {
	*set
	coder
	coded               int // bytes of all pages after coding
	raw                 int // pages that go as they are
	encode, decode, cpu []float64
}

// bench has the memory that all runs share, so that rounds allocate nothing.
type bench struct {
	room  [][]byte // a page's coded form
	coded [][]byte // in room; nil for a page that goes as it is
	page  []byte
	bar   *results.Progress
}

func newBench(sets []*set, bar *results.Progress) *bench {
	pages, longest := 0, 0
	for _, s := range sets {
		pages, longest = max(pages, len(s.pages)), max(longest, len(s.pages[0]))
	}
	b := &bench{page: make([]byte, longest), bar: bar, coded: make([][]byte, pages), room: make([][]byte, pages)}
	each := max(s2.MaxEncodedLen(longest), codec.MaxEncoded(longest))
	all := make([]byte, pages*each)
	for i := range b.room {
		b.room[i] = all[i*each : i*each : (i+1)*each]
	}
	return b
}

// encodePage codes page i of r.
func (b *bench) encodePage(r *run, i int) error {
	out, err := r.coder.encode(b.room[i], r.pages[i])
	switch {
	case errors.Is(err, codec.ErrIncompressible):
		out = nil
	case err != nil:
		return fmt.Errorf("%s: page %d: %w", r.name, i, err)
	case len(out) >= len(r.pages[i]):
		out = nil
	}
	b.coded[i] = out
	return nil
}

// decodePage takes page i of r into place, from what encodePage made of it or as it is, and returns it.
func (b *bench) decodePage(r *run, i int) ([]byte, error) {
	dst := b.page[:len(r.pages[i])]
	if b.coded[i] == nil {
		copy(dst, r.pages[i])
		return dst, nil
	}
	if err := r.coder.decode(dst, b.coded[i]); err != nil {
		return nil, fmt.Errorf("%s: page %d: %w", r.name, i, err)
	}
	return dst, nil
}

// check codes every page once and compares what comes back; it also counts what coding makes of them, and warms up.
func (b *bench) check(ctx context.Context, r *run) error {
	for i, p := range r.pages {
		if ctx.Err() != nil {
			return nil
		}
		if err := b.encodePage(r, i); err != nil {
			return err
		}
		got, err := b.decodePage(r, i)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, p) {
			return fmt.Errorf("%s: page %d came back as another", r.name, i)
		}
		if b.coded[i] == nil {
			r.raw++
			r.coded += len(p)
		} else {
			r.coded += len(b.coded[i])
		}
	}
	b.bar.Add(1)
	return nil
}

// round measures once; what ctx cuts short is not counted.
func (b *bench) round(ctx context.Context, r *run) error {
	cpu, start := results.ProcessCPU(), time.Now()
	for i := range r.pages {
		if ctx.Err() != nil {
			return nil
		}
		if err := b.encodePage(r, i); err != nil {
			return err
		}
	}
	encoded := time.Now()
	for i := range r.pages {
		if ctx.Err() != nil {
			return nil
		}
		if _, err := b.decodePage(r, i); err != nil {
			return err
		}
	}
	end := time.Now()
	spent := results.ProcessCPU() - cpu
	gb := float64(r.from.Pages) * float64(r.from.PageBytes) / 1e9
	r.encode = append(r.encode, gb/atLeast(encoded.Sub(start)))
	r.decode = append(r.decode, gb/atLeast(end.Sub(encoded)))
	r.cpu = append(r.cpu, spent/gb)
	b.bar.Add(1)
	return nil
}

// atLeast is d in seconds, and what a coarse clock may miss.
func atLeast(d time.Duration) float64 { return max(d, time.Nanosecond).Seconds() }
