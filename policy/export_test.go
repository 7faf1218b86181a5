package policy

// ReasonOf returns what a branch means to p.
func (p *Policy) ReasonOf(b Branch) string { return p.reason(b) }

// ReasonAmong returns what a branch means to p where these are the candidates.
func (p *Policy) ReasonAmong(b Branch, c []Candidate) string { return p.told(b, c) }
