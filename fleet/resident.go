package fleet

import "sort"

// Resident returns how many of a prompt's marks the requests under way on h also have. The blocks up to the last of
// these marks need no additional memory. Resident takes a lock of h for the time of a few lookups.
func (s *Snapshot) Resident(h Holder, marks []Mark) int {
	st := s.state(h)
	if st == nil || len(marks) == 0 {
		return 0
	}
	l := &st.work
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.shared) == 0 {
		return 0
	}
	// A mark depends on all tokens before it. So a request that has a mark of the prompt also has all earlier marks of
	// the prompt, and a binary search finds the first mark that no request has.
	return sort.Search(len(marks), func(i int) bool { return l.shared[marks[i].Key].requests == 0 })
}
