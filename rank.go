package warmpath

// Rank is the global data-parallel rank that a request asks for. The zero value allows any rank.
type Rank struct {
	next int // the rank plus 1; 0 is any rank
}

// OnRank returns a Rank that asks for rank n. If n is negative, it allows any rank.
func OnRank(n int) Rank { return Rank{max(n+1, 0)} }

// Asked reports whether r asks for a certain rank.
func (r Rank) Asked() bool { return r.next != 0 }

// Allows reports whether r allows a holder of rank n.
func (r Rank) Allows(n int) bool { return r.next == 0 || r.next == n+1 }

// Number returns the rank that r asks for, or -1 if r allows any rank.
func (r Rank) Number() int { return r.next - 1 }
