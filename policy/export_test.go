package policy

// ReasonOf returns the words of p for a branch.
func (p *Policy) ReasonOf(b Branch) string { return p.reason(b) }

// ReasonAmong returns the words of p for a branch when c are the candidates.
func (p *Policy) ReasonAmong(b Branch, c []Candidate) string { return p.reasonAmong(b, c) }
