package policy

import (
	"slices"
	"strings"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Filter leaves candidates out. It moves the candidates that pass to the front of c, in the order that they had, and
// returns their number. It sets Reason on the other candidates. Filter is called concurrently. It must not keep c, and
// must not allocate.
type Filter interface {
	Filter(q *Query, c []Candidate) int
}

// The reasons for which filters leave candidates out. The Router sets ReasonNotLooked.
const (
	ReasonUnavailable = "unavailable"
	ReasonUseless     = "its answers for this model and endpoint were useless, others' were not"
	ReasonLimited     = "answered 429: gets no requests for now"
	reasonSuspect     = "seems to be frozen"
	reasonReturning   = "starts slowly: it returned a moment ago and gets a part of its share"
	reasonExcluded    = "tried already"
	ReasonNotTarget   = "not the worker asked for"
	ReasonNotRank     = "not the rank asked for"
	ReasonSaturated   = "saturated"
	ReasonNotLooked   = "not looked at: others match more or have less load"
	ReasonPrefills    = "computes the prompt: the answer comes from another worker"
	ReasonConnector   = "its KV connector is not that of the worker that computes the prompt"
	ReasonNoPair      = "no worker that decodes has its KV connector"
	ReasonRests       = "several transfers from the worker that computes the prompt failed in a row"
	reasonImbalance   = "too much work for what it matches"
)

// filtersOf returns the filters of a policy: the common filter (usable), then the filters of s. If s has a bound
// (ImbalanceTokens) but no balanced filter, a balanced filter comes last. No filter checks the model, because the
// router offers only candidates that serve it.
func filtersOf(s *Spec) []Filter {
	all := append([]Filter{usable{}}, s.Filters...)
	bounded := slices.ContainsFunc(s.Filters, func(f Filter) bool { _, is := f.(balanced); return is })
	if s.ImbalanceTokens > 0 && !bounded {
		all = append(all, Balanced(s.ImbalanceTokens))
	}
	return all
}

// usable is the common filter, which every policy applies first: it leaves out candidates that cannot serve the
// request.
type usable struct{}

func (usable) Filter(q *Query, c []Candidate) int {
	kept := 0
	returning, suspect, useless, saturated := false, false, false, false
	for i := range c {
		switch why := unusable(q, &c[i]); why {
		case "":
			kept = pass(c, kept, i)
		case reasonReturning:
			returning = true
		case reasonSuspect:
			suspect = true
		case ReasonUseless:
			useless = true
		case ReasonSaturated:
			saturated = true
		}
	}
	switch {
	case kept > 0:
	case returning:
		kept = readmit(c, reasonReturning)
	case suspect && !saturated: // a saturated worker will have room soon: the request waits for that worker instead
		kept = readmit(c, reasonSuspect)
	case useless && !saturated: // no better holder is left
		kept = readmit(c, ReasonUseless)
	}
	return kept
}

// readmit lets the candidates pass whose Reason equals why. It is called if no candidate passed.
func readmit(c []Candidate, why string) (kept int) {
	for i := range c {
		if c[i].Reason == why {
			c[i].Reason = ""
			kept = pass(c, kept, i)
		}
	}
	return kept
}

// pass moves candidate i behind the candidates that passed before it: kept is their number. It returns the new number.
func pass(c []Candidate, kept, i int) int {
	if kept != i {
		c[kept], c[i] = c[i], c[kept]
	}
	return kept + 1
}

// Keep does the work of a [Filter] with a condition: the candidates for which good is true pass. If good is true for no
// candidate, Keep leaves out none, and returns 0.
func Keep(c []Candidate, reason string, good func(*Candidate) bool) int {
	kept := 0
	for i := range c {
		if good(&c[i]) {
			kept = pass(c, kept, i)
		} else {
			c[i].Reason = reason
		}
	}
	if kept == 0 {
		for i := range c {
			c[i].Reason = ""
		}
	}
	return kept
}

// unusable sets and returns the reason why the request may not go to c; "" if it may.
func unusable(q *Query, c *Candidate) string {
	c.Reason = barred(q, c)
	return c.Reason
}

func barred(q *Query, c *Candidate) string {
	switch {
	case q.Target != "" && !names(q.Target, c.Worker.URL):
		return ReasonNotTarget
	case q.Rank >= 0 && c.Rank != q.Rank:
		return ReasonNotRank
	case c.Unpaired != "":
		return c.Unpaired
	case len(q.Exclude) > 0 && slices.Contains(q.Exclude, c.Worker.ID):
		return reasonExcluded
	case !c.Available:
		return unavailable[c.Bar]
	case c.Bar == fleet.BarSuspect:
		return reasonSuspect
	case c.Bar == fleet.BarUseless:
		return ReasonUseless
	case q.MaxRequests > 0 && c.Load.Requests >= int64(q.MaxRequests):
		return ReasonSaturated
	case c.Withheld > 0 && q.Target == "" && startsSlowly(q, c):
		return reasonReturning
	}
	return ""
}

var unavailable = [...]string{fleet.BarNone: ReasonUnavailable, fleet.BarUnavailable: ReasonUnavailable,
	fleet.BarLimited: ReasonLimited}

// startsSlowly reports whether q is one of the requests that c does not get during slow start (fleet.Snapshot.Share).
// All requests of a session have the same result at a given share; as the share grows, more sessions are admitted. A
// session that was admitted only because c had few requests may be sent to another holder later. The draw is
// independent of the draws of the pickers.
func startsSlowly(q *Query, c *Candidate) bool {
	draw := q.Random
	if q.Session.Key != "" {
		draw = HashText(q.Session.Key)
	}
	return float64(block.Mix64(c.Hash^block.Mix64(draw^0x5107)))/(1<<64) < c.Withheld
}

// names reports whether target, as a client wrote it, is the worker at url. target may lack the scheme, and may have a
// trailing slash.
func names(target, url string) bool {
	target = strings.TrimSuffix(target, "/")
	if target == url {
		return true
	}
	_, place, _ := strings.Cut(url, "://")
	return target == place
}

// Balanced returns a filter by load. For each candidate it adds the candidate's work and the request's own uncached
// tokens there. It leaves out the candidates whose sum exceeds the least sum by more than the argument tokens. If
// tokens is 0, it leaves out none.
func Balanced(tokens int) Filter { return balanced(tokens) }

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
	return Keep(c, reasonImbalance, func(x *Candidate) bool { return x.Work()+x.Uncached(q) <= limit })
}
