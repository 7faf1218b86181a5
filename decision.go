package warmpath

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// Record is all that is known about a decision. It explains the decision without anything else.
type Record struct {
	Model string // as requested
	Base  string // the base model, which the index is kept for
	LoRA  string // the adapter; "" is none

	Worker *fleet.Worker // nil when no worker could be chosen
	Holder fleet.Holder
	Rank   int  // global data-parallel rank of the holder
	Pinned bool // the worker numbers several ranks: X-Data-Parallel-Rank must say which
	Trust  fleet.Trust

	PromptTokens    int                 // length of the prompt; an estimate unless TokensKnown
	TokensKnown     bool                // the request had Tokens
	FromText        bool                // matched by the prompt's text: nothing is confirmed
	MatchTokens     int                 // prompt tokens that confirmed blocks of the holder cover and its engine can use
	PredictedTokens int                 // cached when the request is scheduled: with speculative entries, less AtRiskTokens
	AtRiskTokens    int                 // matched tokens that waiting prompts are expected to evict first
	Tier            [block.NumTiers]int // MatchTokens by tier
	BlockSize       int                 // tokens of a block of the index; 0 when it was not asked

	Policy string
	Terms  []string      // names of the candidates' Terms; must not be changed
	Branch policy.Branch // which rule decided, in one word
	Reason string        // what that means

	Chosen     int                // index in Candidates; -1 when Worker is nil
	Candidates []policy.Candidate // the holders that were looked at; the Passed first ones passed every filter
	Passed     int
	Ranked     bool  // the highest score was taken; see policy.Choice
	Now        int64 // when it was decided, Unix nanoseconds
}

// Why says in words why candidate i was chosen or not. For a lower score it names the term that made most of the
// difference.
func (r *Record) Why(i int) string {
	choice := policy.Choice{Index: r.Chosen, Passed: r.Passed, Branch: r.Branch, Reason: r.Reason, Ranked: r.Ranked}
	why := choice.Why(r.Candidates, i)
	if r.Chosen < 0 || i >= r.Passed || i == r.Chosen || len(r.Terms) < 2 {
		return why
	}
	chosen, other := &r.Candidates[r.Chosen], &r.Candidates[i]
	if other.Score >= chosen.Score {
		return why
	}
	cost := 1.0 // costs are terms of a negative score: more is worse
	if chosen.Score > 0 || other.Score > 0 {
		cost = -1
	}
	most, worse := -1, 0.0
	for t := range r.Terms {
		if d := cost * (other.Terms[t] - chosen.Terms[t]); d > worse {
			most, worse = t, d
		}
	}
	if most < 0 {
		return why
	}
	return fmt.Sprintf("%s, most by %s: %.4g against %.4g", why, r.Terms[most], other.Terms[most], chosen.Terms[most])
}

// Clone returns an independent copy with at most the given number of candidates, all of them if it is negative. The
// chosen candidate is always kept.
func (r *Record) Clone(candidates int) Record {
	c := *r
	if candidates < 0 || candidates >= len(r.Candidates) {
		c.Candidates = append([]policy.Candidate(nil), r.Candidates...)
		return c
	}
	candidates = max(candidates, 1)
	c.Candidates = append([]policy.Candidate(nil), r.Candidates[:candidates]...)
	c.Passed = min(c.Passed, candidates)
	if c.Chosen >= candidates {
		c.Chosen = candidates - 1
		c.Candidates[c.Chosen] = r.Candidates[r.Chosen]
	}
	return c
}

// String describes the decision in one line.
func (r *Record) String() string {
	var b strings.Builder
	if r.Worker == nil {
		fmt.Fprintf(&b, "%s: no worker of %d can be used", r.Policy, len(r.Candidates))
		for i := range r.Candidates {
			fmt.Fprintf(&b, "; %s rank %d: %s", r.Candidates[i].Worker.URL, r.Candidates[i].Rank, r.Candidates[i].Reason)
		}
		return b.String()
	}
	fmt.Fprintf(&b, "%s: %s rank %d of %d candidates, %s (%s)", r.Policy, r.Worker.URL, r.Rank, len(r.Candidates), r.Branch, r.Reason)
	if !r.TokensKnown {
		fmt.Fprintf(&b, "; about %d prompt tokens", r.PromptTokens)
		if r.FromText {
			fmt.Fprintf(&b, ", %d predicted by their text; trust %s", r.PredictedTokens, r.Trust)
		}
		return b.String()
	}
	fmt.Fprintf(&b, "; %d of %d prompt tokens matched", r.MatchTokens, r.PromptTokens)
	for t, n := range r.Tier {
		if n > 0 {
			fmt.Fprintf(&b, ", %d on %s", n, block.Tier(t))
		}
	}
	if r.PredictedTokens > r.MatchTokens {
		fmt.Fprintf(&b, ", %d predicted", r.PredictedTokens)
	}
	if r.AtRiskTokens > 0 {
		fmt.Fprintf(&b, ", %d at risk", r.AtRiskTokens)
	}
	fmt.Fprintf(&b, "; trust %s", r.Trust)
	return b.String()
}

// Decision is where one request goes, and the load it puts there. It belongs to the caller of Route. The caller must
// call [Decision.Done] when the request has ended, however it ended. After that it may call [Decision.Recycle], which
// saves an allocation for the next decision; what is to be kept longer is cloned before.
//
// FirstToken, Tokens and Done may be called from any goroutine, any number of times. Each takes the time at which its
// event happened.
type Decision struct {
	Record

	router      *Router
	policy      *policy.Policy
	shadow      *policy.Policy // learns from it too; nil is none
	reservation fleet.Reservation
	open        atomic.Bool     // Done was not called
	firstToken  atomic.Int64    // when it came, Unix nanoseconds; 0 is not yet
	learned     []learnedPrompt // what is to be unlearned if the prompt is not sent
	prepared    *Prepared       // owns the memory of keys, ahead, matches and sent
	keys        []block.Key     // of the prompt
	ahead       []aheadKeys     // of the prompt, for engines that hash with a look-ahead
	matches     []kvindex.Match // read only while the decision is made, as sent
	sent        []extent

	// Scratch, kept for the next decision. The query is a field because policies get it through interfaces: a local
	// variable would be allocated each time.
	query    policy.Query
	finished policy.Finished
	marks    []fleet.Mark
	nominees []fleet.Holder
	extents  []extent // of matches and sent
	spots    []spot   // by position in the pool
	round    uint32   // the value that marks this decision's spots
	take     bool     // the decision will be acted upon
	scope    fleet.Scope
}

// UncachedTokens returns how many tokens of the prompt the candidate with the longest predicted match has to compute.
func (d *Decision) UncachedTokens() int {
	least := d.PromptTokens
	for i := range d.Candidates {
		least = min(least, max(d.PromptTokens-d.Candidates[i].Predicted, 0))
	}
	return least
}

// FirstToken notes that the first token of the answer came at now, in Unix nanoseconds: the prompt is computed. Only
// the first call counts.
func (d *Decision) FirstToken(now int64) {
	if d.firstToken.CompareAndSwap(0, now) {
		d.reservation.FirstToken(now)
	}
}

// Tokens notes that the answer has n tokens at now, in Unix nanoseconds. Call it after FirstToken, as the answer
// grows, for every piece or every few. It shows how much is resident, how long a step takes, and that the request is
// alive.
func (d *Decision) Tokens(n int, now int64) { d.reservation.Tokens(n, now) }

// Output returns the answer's length in tokens: what Tokens reported, limited to the longest answer that the request
// allows.
func (d *Decision) Output() int { return d.reservation.Output() }

// TimeToFirstToken returns the time from the decision to the first token. ok is false when no token has come.
func (d *Decision) TimeToFirstToken() (t time.Duration, ok bool) {
	at := d.firstToken.Load()
	return time.Duration(at - d.Now), at != 0
}

// Unsent notes that nothing of the request was sent, because the worker could not be reached or the client left first.
// The prompt is then no longer expected in the holder's cache, unless another request led there too. Call it before
// Done.
func (d *Decision) Unsent() { d.unlearn() }

// Done releases the load and reports to the fleet how the request ended, at now in Unix nanoseconds. Only the first
// call counts.
func (d *Decision) Done(o fleet.Outcome, now int64) {
	if !d.open.Swap(false) {
		return
	}
	d.reservation.Release(now)
	d.router.fleet.Observe(d.Holder, o, now)
	d.finished = policy.Finished{
		Holder:         d.Holder,
		Model:          d.Base,
		Outcome:        o,
		RoutedAt:       d.Now,
		FirstTokenAt:   d.firstToken.Load(),
		Now:            now,
		UncachedTokens: max(d.PromptTokens-d.PredictedTokens, 0),
		OutputTokens:   d.reservation.Output(),
	}
	d.policy.Finished(&d.finished)
	if d.shadow != nil {
		d.shadow.Finished(&d.finished)
	}
}

// Recycle gives the decision's memory back to its router. Where Done was not called it calls it, with an unknown
// outcome. No goroutine may use the decision or its candidates afterwards.
func (d *Decision) Recycle() {
	d.Done(fleet.OutcomeUnknown, d.Now)
	r := d.router
	d.firstToken.Store(0)
	d.forgetLearned()
	d.clearCandidates()
	d.Record = Record{Candidates: d.Candidates}
	d.query = policy.Query{}
	d.shadow = nil
	d.keys, d.ahead, d.matches, d.sent = nil, nil, nil, nil
	d.prepared.release()
	d.prepared = nil
	r.decisions.Put(d)
}
