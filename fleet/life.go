package fleet

// Signs are what an answer of a worker tells about the process that gave it. A zero field was not told.
type Signs struct {
	Started float64 // when the process began, in Unix seconds
	Tokens  float64 // prompt tokens that it ever computed
	Version string  // of the engine
	Blocks  int     // capacity of one rank's cache, in engine blocks
	Seed    int64   // a number that the process drew when it began
}

// life is what is known of the process behind a URL.
type life struct {
	incarnation uint64
	refused     bool // a connection was refused since the last answer
	last        Signs
}

// Refused notes that nobody took a connection at the worker's address: its process has ended.
func (f *Fleet) Refused(id WorkerID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.worker(id) != nil {
		f.lives[id].refused = true
	}
}

// Answered notes an answer of the worker and reports whether another process gave it than the answer before: then the worker's
// Incarnation grows by one, it starts slowly, and what was learned from requests about its cache is void. What the worker's events say is not:
// their stream tells a restart by itself.
//
// A new process follows one that refused connections, begins later, has computed fewer tokens, or differs in what does not change
// while a process runs.
func (f *Fleet) Answered(id WorkerID, s Signs) (restarted bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.worker(id)
	if old == nil {
		return false
	}
	l := &f.lives[id]
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
	w.Incarnation = l.incarnation
	f.replace(&w)
	return true
}

// before reports whether next are the signs of a later process.
func (s *Signs) before(next *Signs) bool {
	switch {
	case s.Started > 0 && next.Started > 0:
		// A process tells one start for ever, but for rounding. An earlier one is of another process behind the same address.
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

// note keeps what next tells.
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
