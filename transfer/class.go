package transfer

import (
	"fmt"
	"time"

	"github.com/kvferry/kvferry/transfer/wire"
)

// A Class says how urgent a transfer is. The sending side serves classes
// strictly: no chunk of a lower class starts on a link while one of a higher
// class is ready there, and bytes of a higher class overtake those of a lower one
// that a connection has not put into packets. A lower class has no share of its
// own: it may wait for as long as higher ones keep the link busy.
type Class uint8

// The classes, the most urgent first.
const (
	Interactive Class = Class(wire.ClassInteractive) // somebody waits for the pages
	Background  Class = Class(wire.ClassBackground)  // nobody waits yet
	Replication Class = Class(wire.ClassReplication) // a copy to have

	classes = 3
)

// String returns "interactive", "background" or "replication".
func (c Class) String() string {
	switch c {
	case Interactive:
		return "interactive"
	case Background:
		return "background"
	case Replication:
		return "replication"
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// urgency is the priority of the class's streams in a connection: lower goes
// first. Control streams have 0.
func (c Class) urgency() int8 { return [classes]int8{2, 4, 6}[c] }

// A Share is how a transfer counts against others at its source.
type Share struct {
	// Tenant groups transfers; "" is a tenant like any other.
	Tenant string
	// Weight is the tenant's part of the link among those of one class that have
	// something to send. 0: 1. It must be finite; one that is negative counts as 1.
	// Transfers of a tenant should agree: the latest to begin decides.
	Weight float64
	// MaxRate bounds the tenant's page bytes a second, as they travel, over all links of the agent;
	// 0 or negative: unbounded. The latest transfer to begin decides.
	MaxRate int64
}

func (s Share) weight() float64 {
	if s.Weight > 0 && s.Weight <= maxWeight {
		return max(s.Weight, minWeight)
	}
	return 1
}

// Weights beyond these bounds would lose chunks in the rounding of virtual time.
const (
	minWeight = 1e-6
	maxWeight = 1e6
)

// Served accounts for pages that a peer's read took from here.
type Served struct {
	// Token is that of the transfer.
	Token []byte
	// Class is what the puller asked for, Tenant what Config.Share said.
	Class  Class
	Tenant string
	// Bytes of pages went out; 0 in the last report.
	Bytes int64
	// First is set in the first report of a transfer that has bytes, and Waited is
	// then how long it was queued here, from its announcement until its first chunk
	// was taken to be sent.
	First  bool
	Waited time.Duration
	// Done is set in the last report.
	Done bool
}
