package fleet

import "math"

// Underway is a request under way on a holder, as far as its service levels need it.
type Underway struct {
	Levels     []ServiceLevel // at least one; the slice belongs to the request and must not be changed
	Arrived    int64          // when the request arrived, Unix nanoseconds
	First      int64          // when the first token came, or will come; predicted if Waiting or if the answer comes in one piece
	Waiting    bool           // the first token has not come
	Output     int            // tokens of the answer so far; of several answers the mean; estimated if the answer comes in one piece
	Class      uint64         // see Work.Class
	MostTokens int            // the greatest length of the answer in tokens; 0 is not known
}

// AppendUnderway appends the requests under way on h that have service levels, as they are at now (Unix nanoseconds).
// If h has more than most requests, it appends only every n-th one, and returns n in every; otherwise every is 1. It
// takes a lock of h for about 15 ns for each appended request, and less for each other request.
//
// Prompts are computed in the order of their dispatch, so a waiting request gets its first token when its prompt and
// all prompts before it are computed. An answer in one piece shows no first token. Its prompt counts as computed at the
// predicted time, and its tokens as generated at the holder's learned pace since then.
func (s *Snapshot) AppendUnderway(dst []Underway, h Holder, now int64, most int) (list []Underway, every int) {
	st := s.state(h)
	if st == nil || st.work.requests.Load() == 0 {
		return dst, 1
	}
	l := &st.work
	every = max((int(l.requests.Load())+most-1)/most, 1)
	t := l.timing()
	step := t.Step(l.requests.Load(), l.context.Load()+l.output.Load())
	l.mu.Lock()
	defer l.mu.Unlock()
	ready := now
	if l.queue.first != nil {
		ready -= min(max(now-l.since.Load(), 0), l.queue.first.predict)
	}
	seen := 0
	taken := func(r *Reservation) bool {
		if len(r.work.Levels) == 0 {
			return false
		}
		seen++
		return (seen-1)%every == 0
	}
	for r := l.queue.first; r != nil; r = r.next {
		ready += r.predict
		if taken(r) {
			dst = append(dst, r.underway(ready, true))
		}
	}
	for r := l.running.first; r != nil; r = r.next {
		if !taken(r) {
			continue
		}
		if r.unseen || r.work.Peer {
			first := r.until
			if !r.unseen {
				first = r.first
			}
			u := r.underway(first, first > now)
			u.Output = max(int(min(float64(now-first)/1e6/step, math.MaxInt32)), 0)
			if u.MostTokens > 0 {
				u.Output = min(u.Output, u.MostTokens)
			}
			dst = append(dst, u)
			continue
		}
		dst = append(dst, r.underway(r.first, false))
	}
	return dst, every
}

// underway returns r with the time of its first token.
func (r *Reservation) underway(first int64, waiting bool) Underway {
	return Underway{
		Levels: r.work.Levels[:min(len(r.work.Levels), MaxServiceLevels)], Arrived: r.work.arrived(r.dispatched), First: first, Waiting: waiting,
		Output: int(r.output) / max(r.work.Choices, 1), MostTokens: r.work.MostTokens, Class: r.work.Class,
	}
}

// arrived returns when the request arrived.
func (w *Work) arrived(dispatched int64) int64 {
	if w.Arrived > 0 {
		return min(w.Arrived, dispatched)
	}
	return dispatched
}
