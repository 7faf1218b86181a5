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

// filterFunc judges one candidate at a time: it returns why c is left out, or "".
type filterFunc func(q *Query, c *Candidate) string

func (f filterFunc) Filter(q *Query, c []Candidate) int {
	kept := 0
	for i := range c {
		if why := f(q, &c[i]); why != "" {
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

// Reasons for which candidates are left out.
const (
	ReasonUnavailable = "unavailable"
	ReasonExcluded    = "tried already"
	ReasonNotTarget   = "not the worker asked for"
	ReasonNotRank     = "not the rank asked for"
	ReasonSaturated   = "saturated"
	ReasonImbalance   = "too much work for what it matches"
)

// filters by name. The router only offers candidates that serve the model, so there is no filter for that.
var filters = map[string]func(*Spec) Filter{
	"target":    func(*Spec) Filter { return filterFunc(target) },
	"rank":      func(*Spec) Filter { return filterFunc(rank) },
	"excluded":  func(*Spec) Filter { return filterFunc(excluded) },
	"healthy":   func(*Spec) Filter { return filterFunc(healthy) },
	"saturated": func(*Spec) Filter { return filterFunc(saturated) },
	"balanced":  func(s *Spec) Filter { return balanced(s.ImbalanceTokens) },
	"locality":  func(s *Spec) Filter { return nearest(s.Locality) },
	"multiplex": func(*Spec) Filter { return multiplex{} },
}

func healthy(_ *Query, c *Candidate) string {
	if !c.Available {
		return ReasonUnavailable
	}
	return ""
}

func excluded(q *Query, c *Candidate) string {
	if slices.Contains(q.Exclude, c.Worker.ID) {
		return ReasonExcluded
	}
	return ""
}

func target(q *Query, c *Candidate) string {
	if q.Target != "" && !names(q.Target, c.Worker.URL) {
		return ReasonNotTarget
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

func rank(q *Query, c *Candidate) string {
	if q.Rank >= 0 && c.Rank != q.Rank {
		return ReasonNotRank
	}
	return ""
}

func saturated(q *Query, c *Candidate) string {
	if q.MaxRequests > 0 && c.Load.Requests >= int64(q.MaxRequests) {
		return ReasonSaturated
	}
	return ""
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
