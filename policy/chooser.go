package policy

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Chooser is a policy in Go, for what filters, scorers and a picker cannot say or have to remember. Its methods are
// called concurrently from any goroutine; none may keep q or the candidates, read a clock, wait, or allocate per
// request. What it remembers must be bounded.
type Chooser interface {
	// Choose picks one of the candidates that passed the filters; c is not empty. It may set their Score and Terms, and
	// must not reorder them. It changes nothing that the chooser remembers: an explanation asks too.
	Choose(q *Query, c []Candidate) Pick
	// Routed tells that q goes to c: the choice was acted upon.
	Routed(q *Query, c *Candidate)
	// Finished tells how a request that was Routed ended. It is called once for each.
	Finished(f *Finished)
	// Forget drops what is remembered of a holder that is gone or lost its cache.
	Forget(h fleet.Holder)
}

// Nominator is a chooser that may mean holders which neither match nor have little load: where a session belongs, say. In a
// large fleet it is offered those too, instead of all.
type Nominator interface {
	Chooser
	// Nominate appends holders to dst, a few. It is called before Choose, as Choose is.
	Nominate(q *Query, dst []fleet.Holder) []fleet.Holder
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

// Pick is what a chooser decided.
type Pick struct {
	Index  int    // of the candidate; -1 when the chooser would rather have none
	Branch Branch // "" is told from the matches, as for policies made of scorers
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

// Session says which conversation a request belongs to, as far as the client told.
type Session struct {
	Key    string // "" is none
	Source string // where it was found: the header or body field, in lower case
}

// Prompt is what a policy may look at besides the matches. All of it belongs to the request and is valid during the call.
type Prompt struct {
	Tokens    []block.Token // nil when not known
	Keys      []block.Key   // chained keys of its full blocks; nil when tokens are not known
	BlockSize int           // tokens of a block of Keys
	Text      []byte        // the prompt's text, flattened; nil when no policy in use asks for it
}
