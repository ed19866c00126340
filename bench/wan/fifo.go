package wan

// fifo is a ring buffer that grows and is not safe for concurrent use.
type fifo[T any] struct {
	ring       []T // power of two long
	head, size int
}

func (f *fifo[T]) len() int { return f.size }

func (f *fifo[T]) push(v T) {
	if f.size == len(f.ring) {
		grown := make([]T, max(16, 2*len(f.ring)))
		n := copy(grown, f.ring[f.head:])
		copy(grown[n:], f.ring[:f.head])
		f.ring, f.head = grown, 0
	}
	f.ring[(f.head+f.size)&(len(f.ring)-1)] = v
	f.size++
}

// front is valid only while the fifo is not empty.
func (f *fifo[T]) front() *T { return &f.ring[f.head] }

func (f *fifo[T]) pop() T {
	var zero T
	v := f.ring[f.head]
	f.ring[f.head] = zero
	f.head = (f.head + 1) & (len(f.ring) - 1)
	f.size--
	return v
}
