package goodput

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/transfer"
)

// recorder notes when each chunk of one transfer left the source's queue and when its last page was verified. Its methods are
// safe for concurrent use.
type recorder struct {
	began  time.Time
	pages  int // a block
	chunk  int // pages a chunk
	chunks []chunkTimes
	each   int // chunks a block
}

// chunkTimes are nanoseconds since began.
type chunkTimes struct {
	sent, landed atomic.Int64
	pages        atomic.Int32 // verified
}

func newRecorder(blocks, pages, pageBytes int) *recorder {
	chunk := max(1, chunkBytes/pageBytes)
	each := (pages + chunk - 1) / chunk
	return &recorder{began: time.Now(), pages: pages, chunk: chunk, chunks: make([]chunkTimes, blocks*each), each: each}
}

// at finds the chunk of a page; nil for one that a chunk of this transfer cannot have.
func (r *recorder) at(pair, page int) *chunkTimes {
	if i := pair*r.each + page/r.chunk; pair >= 0 && page >= 0 && page < r.pages && i < len(r.chunks) {
		return &r.chunks[i]
	}
	return nil
}

// sent notes that pages from first on are being read to be sent. Only the first time counts.
func (r *recorder) sent(pair, first int) {
	if c := r.at(pair, first); c != nil {
		c.sent.CompareAndSwap(0, max(1, int64(time.Since(r.began))))
	}
}

// landed is a transfer's OnLanded.
func (r *recorder) landed(pair, first, pages int) {
	for p := first; p < first+pages; p++ {
		c := r.at(pair, p)
		if c == nil {
			continue
		}
		want := int32(min(r.chunk, r.pages-p/r.chunk*r.chunk))
		if c.pages.Add(1) == want {
			c.landed.Store(int64(time.Since(r.began)))
		}
	}
}

// latencies of the chunks that are whole, seconds, ascending.
func (r *recorder) latencies() []float64 {
	var out []float64
	for i := range r.chunks {
		if sent, landed := r.chunks[i].sent.Load(), r.chunks[i].landed.Load(); sent > 0 && landed > 0 {
			out = append(out, time.Duration(landed-sent).Seconds())
		}
	}
	slices.Sort(out)
	return out
}

// stamped is a Source that tells the current recorder what it is asked for.
type stamped struct {
	transfer.Source
	rec *atomic.Pointer[recorder]
}

func (s stamped) ReadPages(token []byte, pair int, d transfer.Desc, first int, dst []byte, sums []uint32) error {
	if r := s.rec.Load(); r != nil {
		r.sent(pair, first)
	}
	return s.Source.ReadPages(token, pair, d, first, dst, sums)
}
