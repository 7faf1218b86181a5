package policy

// ReasonOf lets tests of package policy_test read the reason that p gives for a branch.
func (p *Policy) ReasonOf(b Branch) string { return p.reasonAmong(b, nil) }

// ReasonAmong lets tests of package policy_test read the reason that p gives for a branch if the candidates are c.
func (p *Policy) ReasonAmong(b Branch, c []Candidate) string { return p.reasonAmong(b, c) }
