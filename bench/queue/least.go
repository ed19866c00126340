package queue

import (
	"container/heap"
	"math"
)

// LeastLeft is package transfer's sender as daemons run it: of the transfers that wait it sends a chunk of the one with the
// least left, the earlier of two alike, whenever less than ahead is on its way, in seconds of the link. What is on its way (chunks
// being written, QUIC's window, the bottleneck's queue) goes first come, first served. With an ahead and a quantum near 0 it is
// shortest remaining processing time.
func LeastLeft(ahead, quantum float64) Discipline {
	return Discipline{Name: orderLeast, Slots: 1, Quantum: quantum, Least: true, Ahead: ahead}
}

// serveLeast runs the jobs through one server that is fed by least left.
func (d Discipline) serveLeast(jobs []job) outcome {
	out := outcome{wait: make([]float64, len(jobs)), backlog: make([]float64, len(jobs))}
	quantum := d.Quantum
	if quantum <= 0 {
		quantum = math.Inf(1)
	}
	var waiting leastHeap
	var busy float64              // when what is on its way will be done
	var unsent, came float64      // work that is not on its way; when the last job came
	feed := func(until float64) { // sends chunks whose turn comes before until
		for len(waiting) > 0 {
			turn := max(busy-d.Ahead, came) // when there is room for the next, and somebody waits
			if turn >= until {
				return
			}
			next := &waiting[0]
			part := min(quantum, next.left)
			busy = max(busy, turn) + part
			unsent -= part
			if next.left -= part; next.left > 0 {
				heap.Fix(&waiting, 0)
				continue
			}
			j := jobs[next.job]
			out.wait[next.job] = busy - j.at - j.service
			heap.Pop(&waiting)
		}
	}
	for i, j := range jobs {
		feed(j.at)
		out.backlog[i] = max(0, unsent) + max(0, busy-j.at)
		unsent += j.service
		came = j.at
		heap.Push(&waiting, leastJob{job: i, left: j.service})
	}
	feed(math.Inf(1))
	return out
}

// leastJob is a job with work that is not on its way.
type leastJob struct {
	job  int
	left float64 // seconds of work
}

// leastHeap has the job with the least left first.
type leastHeap []leastJob

func (h leastHeap) Len() int { return len(h) }
func (h leastHeap) Less(i, j int) bool {
	return h[i].left < h[j].left || h[i].left == h[j].left && h[i].job < h[j].job
}
func (h leastHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *leastHeap) Push(x any)   { *h = append(*h, x.(leastJob)) }
func (h *leastHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
