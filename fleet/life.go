package fleet

// Signs are the facts in a worker's answer that identify its process. A zero field was not reported.
type Signs struct {
	Started float64 // when the process began, in Unix seconds
	Tokens  float64 // prompt tokens that the process has computed since it began
	Version string  // the engine's version
	Blocks  int     // capacity of one rank's cache, in engine blocks
	Seed    int64   // a number that the process drew when it began
}

// life is the last known signs of the process behind a URL.
type life struct {
	incarnation uint64
	refused     bool // a connection was refused since the last answer
	last        Signs
}

// Refused records that the worker's address refused a connection: its process has ended.
func (f *Fleet) Refused(id WorkerID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.worker(id) != nil {
		f.known[id].life.refused = true
	}
}

// Answered records an answer of the worker. If the answer comes from another process than the previous answer, the
// worker's Incarnation grows by one, the worker starts slowly, and Answered returns true. In that case the caller must
// forget everything that was learned from requests about the worker's cache. Facts from the worker's events stay: an
// event stream shows a restart by itself.
//
// The process is another one in four cases: a connection was refused since the last answer, the start time is later,
// the count of computed tokens is smaller while a start time is unknown, or a sign differs that does not change while a
// process runs.
func (f *Fleet) Answered(id WorkerID, s Signs) (restarted bool) {
	f.mu.Lock()
	defer f.release()
	old := f.worker(id)
	if old == nil {
		return false
	}
	l := &f.known[id].life
	restarted = l.refused || l.last.before(&s)
	l.refused = false
	if restarted {
		l.last = Signs{}
	}
	l.last.note(&s)
	if !restarted {
		return false
	}
	l.incarnation++
	for _, h := range old.Holders {
		f.holders[h].state.returned()
	}
	w := *old
	w.Incarnation, w.Asleep = l.incarnation, false
	f.replace(&w)
	return true
}

// Signs returns the last known signs of the worker's process, and the worker's Incarnation at the same moment. ok is
// false if the worker is not present. Incarnation counts what this fleet saw, and the signs are the same for every
// fleet that asks the process. Signs takes a lock for a moment.
func (f *Fleet) Signs(id WorkerID) (s Signs, incarnation uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.worker(id) == nil {
		return Signs{}, 0, false
	}
	l := &f.known[id].life
	return l.last, l.incarnation, true
}

// before reports whether next belongs to a later process than s.
func (s *Signs) before(next *Signs) bool {
	switch {
	case s.Started > 0 && next.Started > 0:
		// A process always reports the same start, except for rounding. An earlier start is no restart: it comes from another
		// process behind the same address.
		if next.Started > s.Started+0.1 {
			return true
		}
	case next.Tokens > 0 && next.Tokens < s.Tokens:
		return true
	}
	return s.Version != "" && next.Version != "" && next.Version != s.Version ||
		s.Blocks > 0 && next.Blocks > 0 && next.Blocks != s.Blocks ||
		s.Seed != 0 && next.Seed != 0 && next.Seed != s.Seed
}

// note stores the signs that next reports.
func (s *Signs) note(next *Signs) {
	s.Started = max(s.Started, next.Started)
	if next.Tokens > 0 {
		s.Tokens = next.Tokens
	}
	if next.Version != "" {
		s.Version = next.Version
	}
	if next.Blocks > 0 {
		s.Blocks = next.Blocks
	}
	if next.Seed != 0 {
		s.Seed = next.Seed
	}
}
