package policy

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Chooser is a policy in Go. It is for rules that filters, scorers and a picker cannot express, and for policies that
// remember something. Its methods are called concurrently. They must not keep q or the candidates, read a clock, wait,
// or allocate for each request. A chooser's memory must be bounded.
type Chooser interface {
	// Choose picks one of the candidates that passed the filters; c is not empty. Choose may set Score, Terms and Note of
	// these candidates, but must not reorder them. Choose must not change the chooser's memory, because explanations call
	// Choose, too.
	Choose(q *Query, c []Candidate) Pick
	// Routed reports that q is sent to c.
	Routed(q *Query, c *Candidate)
	// Finished reports how a request ended. Finished is called once for each call of Routed.
	Finished(f *Finished)
	// Forget drops everything that depends on the cache of a holder that left or lost its cache.
	Forget(h fleet.Holder)
}

// Nominator is a chooser that may choose a holder with no match and much load, such as the holder of a session. In a
// large fleet, with [ReachFew], a Nominator is offered the holders that it names, in addition to holders with matches
// and holders with little load.
type Nominator interface {
	Chooser
	// Nominate appends a few holders to dst. Nominate is called before Choose, under the same rules.
	Nominate(q *Query, dst []fleet.Holder) []fleet.Holder
}

// Retirer is a chooser that keeps facts about a holder after Forget, because the holder may come back.
type Retirer interface {
	Chooser
	// Retire drops everything about holders that will not come back: their ids may be given to other holders.
	Retire(holders []fleet.Holder)
}

// Failer is a chooser whose rule may fail, such as a script.
type Failer interface {
	Chooser
	// OnFailure sets the function that is told of each failure: the call that failed, such as choose, and why. OnFailure
	// is called once, before any other method. The function is called concurrently.
	OnFailure(failed func(call string, err error))
}

// Stateless has all methods of a [Chooser] but Choose. Embed it in a chooser that remembers nothing.
type Stateless struct{}

// Routed does nothing.
func (Stateless) Routed(*Query, *Candidate) {}

// Finished does nothing.
func (Stateless) Finished(*Finished) {}

// Forget does nothing.
func (Stateless) Forget(fleet.Holder) {}

// Ranked returns a chooser that remembers nothing and takes the [Best] candidate. score sets Score and Terms of all
// candidates.
func Ranked(score func(q *Query, c []Candidate)) Chooser { return &ranked{score: score} }

type ranked struct {
	Stateless
	score func(q *Query, c []Candidate)
}

func (r *ranked) Choose(q *Query, c []Candidate) Pick {
	r.score(q, c)
	return Pick{Index: Best(q, c), Ranked: true, Tie: TieWork}
}

// Pick is a chooser's decision.
type Pick struct {
	Index  int    // the index of the candidate; -1 if the chooser refuses all
	Reason string // the meaning of the choice in the chooser's own words; "": the policy's words for the branch
	Branch Branch // the rule that decided; "": the matches decide the branch, as for policies made of scorers
	Ranked bool   // the highest Score was taken
	Tie    Tie    // if Ranked: the rule among candidates with the highest Score
}

// Finished is how a request ended.
type Finished struct {
	Holder         fleet.Holder
	Model          string // the base model
	Class          uint64 // see Query.Class
	Outcome        fleet.Outcome
	RoutedAt       int64 // Unix nanoseconds
	FirstTokenAt   int64 // Unix nanoseconds; 0 is never
	Now            int64 // the end of the request, Unix nanoseconds
	UncachedTokens int   // prompt tokens that the holder had to compute, as predicted
	OutputTokens   int   // the length of the answer, as counted; of several answers the mean; 0 is not known
}

// Session is the conversation of a request, if the client named one.
type Session struct {
	Key    string // "" is none
	Source string // the header or body field that has the key, in lower case
}

// Prompt is the request's prompt. It belongs to the request and is valid only during the call.
type Prompt struct {
	Tokens    []block.Token // the prompt's tokens; nil if they are not known
	Keys      []block.Key   // the keys of the prompt's full blocks; nil if they are not known
	BlockSize int           // tokens of a block of Keys
	Text      []byte        // the prompt's text in one piece; nil if no policy in use needs it
	TextBytes int           // the length of the text in bytes, also if Text is not at hand; 0 is not known
}
