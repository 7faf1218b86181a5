package policy

import (
	"slices"
	"strings"
)

// Filter leaves candidates out. It reorders c in place so that those that pass come first, in the order they had, sets
// Reason on the others, and returns how many pass. It is called concurrently, must not keep c, and must not allocate.
type Filter interface {
	Filter(q *Query, c []Candidate) int
}

// Reasons for which candidates are left out.
const (
	ReasonUnavailable = "unavailable"
	ReasonExcluded    = "tried already"
	ReasonNotTarget   = "not the worker asked for"
	ReasonNotRank     = "not the rank asked for"
	ReasonSaturated   = "saturated"
	ReasonNotLooked   = "not looked at: others match more or have less load"
	ReasonImbalance   = "too much work for what it matches"
)

// filters by name, beside the one that every policy has. The router only offers candidates that serve the model, so there is
// no filter for that.
var filters = map[string]func(*Spec) Filter{
	"balanced":  func(s *Spec) Filter { return balanced(s.ImbalanceTokens) },
	"locality":  func(s *Spec) Filter { return nearest(s.Locality) },
	"multiplex": func(*Spec) Filter { return multiplex{} },
}

// usable is the filter of every policy: no policy may send a request where it cannot be served.
type usable struct{}

func (usable) Filter(q *Query, c []Candidate) int {
	kept := 0
	for i := range c {
		if why := unusable(q, &c[i]); why != "" {
			c[i].Reason = why
			continue
		}
		if kept != i {
			c[kept], c[i] = c[i], c[kept]
		}
		kept++
	}
	return kept
}

// unusable says why a request may not go to c, or "".
func unusable(q *Query, c *Candidate) string {
	switch {
	case q.Target != "" && !names(q.Target, c.Worker.URL):
		return ReasonNotTarget
	case q.Rank >= 0 && c.Rank != q.Rank:
		return ReasonNotRank
	case len(q.Exclude) > 0 && slices.Contains(q.Exclude, c.Worker.ID):
		return ReasonExcluded
	case !c.Available:
		return ReasonUnavailable
	case q.MaxRequests > 0 && c.Load.Requests >= int64(q.MaxRequests):
		return ReasonSaturated
	}
	return ""
}

// names reports whether target, as a client wrote it, means the worker at url: the URL with or without scheme and
// trailing slash.
func names(target, url string) bool {
	target = strings.TrimSuffix(target, "/")
	if target == url {
		return true
	}
	_, place, _ := strings.Cut(url, "://")
	return target == place
}

// balanced keeps the candidates whose work plus the request's own uncached tokens is within so many tokens of the
// least. The one with the least always passes.
type balanced int

func (b balanced) Filter(q *Query, c []Candidate) int {
	if b <= 0 || len(c) == 0 {
		return len(c)
	}
	least := c[0].Work() + c[0].Uncached(q)
	for i := range c[1:] {
		least = min(least, c[i+1].Work()+c[i+1].Uncached(q))
	}
	limit := least + int64(b)
	kept := 0
	for i := range c {
		if c[i].Work()+c[i].Uncached(q) > limit {
			c[i].Reason = ReasonImbalance
			continue
		}
		if kept != i {
			c[kept], c[i] = c[i], c[kept]
		}
		kept++
	}
	return kept
}
