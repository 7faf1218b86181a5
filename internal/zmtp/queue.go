package zmtp

// queue is a ring of encoded messages. The ring grows as needed. The bounds are checked by the caller, with full.
type queue struct {
	ring  [][]byte
	head  int
	count int
	bytes int
}

func (q *queue) len() int { return q.count }

// full reports whether one more message of the given size in bytes would exceed the bounds. An empty queue is never
// full.
func (q *queue) full(size, maxMessages, maxBytes int) bool {
	return q.count > 0 && (q.count >= maxMessages || q.bytes+size > maxBytes)
}

func (q *queue) push(m []byte) {
	if q.count == len(q.ring) {
		ring := make([][]byte, max(16, 2*len(q.ring)))
		n := copy(ring, q.ring[q.head:])
		copy(ring[n:], q.ring[:q.head])
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.count)%len(q.ring)] = m
	q.count++
	q.bytes += len(m)
}

func (q *queue) pop() []byte {
	m := q.ring[q.head]
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.count--
	q.bytes -= len(m)
	return m
}
