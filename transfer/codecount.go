package transfer

import (
	"sync/atomic"
	"time"

	"github.com/kvferry/kvferry/transfer/codec"
)

// Coding counts pages that went one way over a link, repeats included.
type Coding struct {
	PageBytes  uint64 // of all pages
	WireBytes  uint64 // what those took, coded or not, with the headers of coded pages and without those of chunks
	CodedBytes uint64 // page bytes of those that were coded
	// Busy is what coding, or decoding, took of those, all goroutines together, waits for a processor included; of those that left here,
	// also what turned out not to be worth it.
	Busy  time.Duration
	Codec codec.ID // of the last chunk that left, of the last page that came
}

// Add adds the counts of another link; Codec stays unless there were no pages.
func (c *Coding) Add(o Coding) {
	if c.PageBytes == 0 {
		c.Codec = o.Codec
	}
	c.PageBytes += o.PageBytes
	c.WireBytes += o.WireBytes
	c.CodedBytes += o.CodedBytes
	c.Busy += o.Busy
}

// codingCounts are the counters of Coding.
type codingCounts struct {
	page, wire, coded atomic.Uint64
	busy              atomic.Int64 // nanoseconds
	codec             atomic.Uint32
}

// add counts pages of page bytes that took wire bytes.
func (c *codingCounts) add(id codec.ID, page, wire int) {
	c.page.Add(uint64(page))
	c.wire.Add(uint64(wire))
	if id != codec.Raw {
		c.coded.Add(uint64(page))
	}
	c.codec.Store(uint32(id))
}

func (c *codingCounts) snapshot() Coding {
	return Coding{
		PageBytes: c.page.Load(), WireBytes: c.wire.Load(), CodedBytes: c.coded.Load(), Busy: time.Duration(c.busy.Load()), Codec: codec.ID(c.codec.Load()),
	}
}
