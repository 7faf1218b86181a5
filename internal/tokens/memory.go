package tokens

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/internal/api"
)

// memoryShare bounds the memory of all questions under way together: memoryShare times Config.MaxPromptBytes. A
// question holds its body twice, and after it is booked there must be as much free memory as the question takes. So
// there is room for seven of the longest questions.
const memoryShare = 16

// memory bounds the memory that questions take. A question holds copies of its request's body as long as it has users,
// and may outlive the request. memory is safe for concurrent use.
type memory struct {
	most int64 // upper bound of used, in bytes
	used atomic.Int64
}

// take books size bytes if at least 2*size bytes are free. So a few long questions leave room for short questions.
func (r *memory) take(size int64) bool {
	for {
		used := r.used.Load()
		if size > (r.most-used)/2 {
			return false
		}
		if r.used.CompareAndSwap(used, used+size) {
			return true
		}
	}
}

// give frees size bytes that take booked.
func (r *memory) give(size int64) { r.used.Add(-size) }

// questionBytes returns the memory of a question about r. The question holds r's body twice.
func questionBytes(r *api.Request) int64 { return int64(2 * len(r.Body())) }

// hold adds a user of q's bodies. A user is q's flight (the requests that wait for the answer), a call, or the function
// sample.
func (q *question) hold() { q.users.Add(1) }

// drop ends a user's hold on q's bodies. When no user is left, q's memory is released.
func (s *Source) drop(q *question) {
	if q.users.Add(-1) == 0 {
		s.memory.give(q.size)
	}
}
