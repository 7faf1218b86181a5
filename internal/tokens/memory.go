package tokens

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/internal/api"
)

// memoryShare: all questions under way together may take memoryShare times Config.MaxPromptBytes. That is eight of the
// longest questions, because each holds its body twice: two engines with two calls each, and four questions that wait.
const memoryShare = 16

// memory bounds the memory that questions take. A question holds copies of its request's body as long as a call with it
// is under way, and the call may outlive the request. It is safe for concurrent use.
type memory struct {
	most int64 // bytes
	used atomic.Int64
}

// take books size bytes if they are at most half of the free bytes: so a few long questions leave room for short ones.
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

func (r *memory) give(size int64) { r.used.Add(-size) }

// questionBytes returns the memory of a question about r: it holds the body twice.
func questionBytes(r *api.Request) int64 { return int64(2 * len(r.Body())) }

// hold adds a user of q's bodies: its flight, or a call.
func (q *question) hold() { q.users.Add(1) }

// drop ends a hold. When no hold is left, q's memory is released.
func (s *Source) drop(q *question) {
	if q.users.Add(-1) == 0 {
		s.memory.give(q.size)
	}
}
