package policy

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Chooser is a policy in Go, for rules that filters, scorers and a picker cannot express, and for policies that
// remember. Its methods are called concurrently. None may keep q or the candidates, read a clock, wait, or allocate
// for each request. Its memory must be bounded.
type Chooser interface {
	// Choose picks one of the candidates that passed the filters; c is not empty. It may set their Score and Terms,
	// and must not reorder them. It must not change what the chooser remembers: explanations call it, too.
	Choose(q *Query, c []Candidate) Pick
	// Routed reports that q is sent to c.
	Routed(q *Query, c *Candidate)
	// Finished reports how a request ended. It is called once for each Routed.
	Finished(f *Finished)
	// Forget drops everything that depends on the cache of a holder that left or lost its cache.
	Forget(h fleet.Holder)
}

// Nominator is a chooser that may choose a holder without a match and with much load, such as the holder of a session.
// In a large fleet it is offered its nominees and the holders of matches and of little load, not all holders.
type Nominator interface {
	Chooser
	// Nominate appends a few holders to dst. It is called before Choose, under the same rules.
	Nominate(q *Query, dst []fleet.Holder) []fleet.Holder
}

// Retirer is a chooser that keeps facts of a holder after Forget, because the holder may come back.
type Retirer interface {
	Chooser
	// Retire drops everything about holders that will not come back: their ids may be given to other holders.
	Retire(holders []fleet.Holder)
}

// Stateless is embedded by a [Chooser] that remembers nothing: it has only Choose to write.
type Stateless struct{}

// Routed remembers nothing.
func (Stateless) Routed(*Query, *Candidate) {}

// Finished remembers nothing.
func (Stateless) Finished(*Finished) {}

// Forget has nothing to drop.
func (Stateless) Forget(fleet.Holder) {}

// Ranked returns a chooser that remembers nothing and takes the [Best] candidate; score sets Score and Terms of all.
func Ranked(score func(q *Query, c []Candidate)) Chooser { return &ranked{score: score} }

type ranked struct {
	Stateless
	score func(q *Query, c []Candidate)
}

func (r *ranked) Choose(q *Query, c []Candidate) Pick {
	r.score(q, c)
	return Pick{Index: Best(q, c), Ranked: true}
}

// Pick is a chooser's decision.
type Pick struct {
	Index  int    // of the candidate; -1 when the chooser refuses all
	Branch Branch // "": the branch follows from the matches, as for policies made of scorers
	Ranked bool   // the highest Score was taken
}

// Finished is how a request ended.
type Finished struct {
	Holder         fleet.Holder
	Model          string // the base model
	Outcome        fleet.Outcome
	RoutedAt       int64 // Unix nanoseconds
	FirstTokenAt   int64 // Unix nanoseconds; 0 is never
	Now            int64 // Unix nanoseconds
	UncachedTokens int   // prompt tokens that were predicted to be computed
	OutputTokens   int   // of the answer, as counted; 0 is not known
}

// Session is the conversation of a request, if the client named one.
type Session struct {
	Key    string // "" is none
	Source string // where it was found: the header or body field, in lower case
}

// Prompt is the request's prompt. It belongs to the request and is valid during the call.
type Prompt struct {
	Tokens    []block.Token // nil when not known
	Keys      []block.Key   // chained keys of its full blocks; nil when tokens are not known
	BlockSize int           // tokens of a block of Keys
	Text      []byte        // the prompt's text, flattened; nil when no policy in use asks for it
}
