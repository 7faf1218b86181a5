package warmpath

// Rank is the global data-parallel rank that a request asks for. The zero value asks for none: any rank will do.
type Rank struct {
	next int // one more than the rank; 0 is none
}

// OnRank asks for rank n. A negative n asks for none.
func OnRank(n int) Rank { return Rank{max(n+1, 0)} }

// Asked reports whether r asks for a rank.
func (r Rank) Asked() bool { return r.next != 0 }

// Allows reports whether a holder of rank n will do.
func (r Rank) Allows(n int) bool { return r.next == 0 || r.next == n+1 }

// Number returns the rank that r asks for, -1 when it asks for none.
func (r Rank) Number() int { return r.next - 1 }
