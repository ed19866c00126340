package queue

import "math"

// Discipline is the order in which one server of a fixed speed works on what has arrived. Jobs stand in a ring; the one at
// the front gives its next piece of at most Quantum to a free one of Slots and goes to the back; all pieces in slots share
// the server equally. It covers the classical orders and what a link's sender does: see the functions that make one.
type Discipline struct {
	// Name is what reports call it.
	Name string `json:"name"`
	// Slots is how many pieces are worked on at a time. Zero or less: all that are there.
	Slots int `json:"slots"`
	// Quantum is the most that a piece takes, seconds of the whole server. Zero or less: a job is one piece.
	Quantum float64 `json:"quantum_seconds"`
	// Least has the next piece come from the job with the least left, and Ahead is how much work is on its way to one server before
	// another piece is asked for, seconds: see LeastLeft. Slots is 1 then.
	Least bool    `json:"least_left"`
	Ahead float64 `json:"ahead_seconds"`
}

// The names of the orders.
const (
	orderFIFO    = "fifo"
	orderPS      = "ps"
	orderSharing = "sender"
	orderLeast   = "least-left"
)

// FIFO serves jobs one after the other as they come.
func FIFO() Discipline { return Discipline{Name: orderFIFO, Slots: 1} }

// ProcessorSharing serves all jobs at once, each at an equal share.
func ProcessorSharing() Discipline { return Discipline{Name: orderPS} }

// Chunked is package transfer's sender with a high Config.Concurrency: transfers in turn, a chunk each, and so many chunks being written at a time.
func Chunked(slots int, quantum float64) Discipline {
	return Discipline{Name: orderSharing, Slots: slots, Quantum: quantum}
}

// outcome is what happened to each job, seconds, by its index.
type outcome struct {
	wait    []float64 // time from arrival to completion, less the time it needs alone
	backlog []float64 // work that the server had before it when it arrived, its own left out
}

// serve runs the jobs through the server.
func (d Discipline) serve(jobs []job) outcome {
	if d.Least {
		return d.serveLeast(jobs)
	}
	s := newServer(d, jobs)
	for i := range jobs {
		s.advance(jobs[i].at)
		s.arrive(i)
	}
	s.advance(math.Inf(1))
	return s.out
}

// piece is work in a slot. The server's virtual time runs at its speed over the number of pieces, so that all pieces age
// alike and end is fixed when a piece starts.
type piece struct {
	end float64
	job int
}

// server is the state of a simulation.
type server struct {
	jobs     []job
	slots    int
	quantum  float64
	now      float64 // seconds
	virtual  float64 // service that each piece in a slot has had
	working  []piece // min-heap by end
	ring     ring    // jobs with work that is in no slot
	left     []float64
	open     []int32 // pieces in slots
	backlog  float64 // unfinished work
	finished int
	out      outcome
}

func newServer(d Discipline, jobs []job) *server {
	s := &server{
		jobs: jobs, slots: d.Slots, quantum: d.Quantum, left: make([]float64, len(jobs)), open: make([]int32, len(jobs)),
		out: outcome{wait: make([]float64, len(jobs)), backlog: make([]float64, len(jobs))},
	}
	if s.slots <= 0 {
		s.slots = math.MaxInt
	}
	if s.quantum <= 0 {
		s.quantum = math.Inf(1)
	}
	return s
}

// advance works until t, or until nothing is left to do.
func (s *server) advance(t float64) {
	for len(s.working) > 0 {
		n := float64(len(s.working))
		next := s.working[0]
		end := s.now + max(0, next.end-s.virtual)*n
		if end > t {
			s.backlog = max(0, s.backlog-(t-s.now))
			s.virtual += (t - s.now) / n
			s.now = t
			return
		}
		s.backlog = max(0, s.backlog-(end-s.now))
		s.now, s.virtual = end, next.end
		s.popPiece()
		s.complete(next.job)
		s.dispatch()
	}
	s.now, s.virtual, s.backlog = t, 0, 0 // idle: nothing refers to the virtual time, so it may start over
}

// arrive adds job i at the present time.
func (s *server) arrive(i int) {
	s.out.backlog[i] = s.backlog
	s.backlog += s.jobs[i].service
	s.left[i] = s.jobs[i].service
	s.ring.push(i)
	s.dispatch()
}

// complete takes account of a piece that is done.
func (s *server) complete(i int) {
	s.open[i]--
	if s.open[i] == 0 && s.left[i] == 0 {
		s.out.wait[i] = s.now - s.jobs[i].at - s.jobs[i].service
		s.finished++
	}
}

// dispatch fills the slots from the ring.
func (s *server) dispatch() {
	for len(s.working) < s.slots && s.ring.len() > 0 {
		i := s.ring.pop()
		part := min(s.quantum, s.left[i])
		s.left[i] -= part
		s.open[i]++
		s.pushPiece(piece{end: s.virtual + part, job: i})
		if s.left[i] > 0 {
			s.ring.push(i)
		}
	}
}

func (s *server) pushPiece(p piece) {
	h := append(s.working, p)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].end <= p.end {
			break
		}
		h[i], i = h[up], up
	}
	h[i] = p
	s.working = h
}

// popPiece drops the piece that ends first.
func (s *server) popPiece() {
	n := len(s.working) - 1
	h, p, i := s.working[:n], s.working[n], 0
	s.working = h
	if n == 0 {
		return
	}
	for {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && h[down+1].end < h[down].end {
			down++
		}
		if p.end <= h[down].end {
			break
		}
		h[i], i = h[down], down
	}
	h[i] = p
}

// ring is a queue of job indices.
type ring struct {
	items []int
	head  int
}

func (r *ring) len() int { return len(r.items) - r.head }

func (r *ring) push(i int) { r.items = append(r.items, i) }

func (r *ring) pop() int {
	i := r.items[r.head]
	if r.head++; r.head == len(r.items) {
		r.items, r.head = r.items[:0], 0
	} else if r.head >= 1024 && r.head*2 >= len(r.items) {
		n := copy(r.items, r.items[r.head:])
		r.items, r.head = r.items[:n], 0
	}
	return i
}
