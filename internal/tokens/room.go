package tokens

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/internal/api"
)

// roomShare is how many times Config.MaxPromptBytes all questions under way together may take: eight of the longest
// ones, each of which holds its body twice. Less would not be enough for two engines with two calls each and four that
// wait.
const roomShare = 16

// room bounds the memory that questions take: a question holds copies of its request's body for as long as a call with
// it is under way, which may outlive the request. It is safe for concurrent use.
type room struct {
	most int64 // bytes
	used atomic.Int64
}

// take books size bytes, if they are at most half of what is free: a few long questions leave room for short ones.
func (r *room) take(size int64) bool {
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

func (r *room) give(size int64) { r.used.Add(-size) }

// questionBytes is what a question about r takes: it holds the body twice.
func questionBytes(r *api.Request) int64 { return int64(2 * len(r.Body())) }

// hold keeps q's bodies for one user more: its flight, or a call.
func (q *question) hold() { q.users.Add(1) }

// drop ends a hold. The last one gives q's room back.
func (s *Source) drop(q *question) {
	if q.users.Add(-1) == 0 {
		s.room.give(q.size)
	}
}
