package warmpath

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// Record is all that is known about a decision. It is enough to explain the decision.
type Record struct {
	Model string // the model name in the request
	Base  string // the base model; the index is kept for base models
	LoRA  string // the adapter; "" is none

	Worker *fleet.Worker // nil if no worker could be chosen
	Holder fleet.Holder  // the chosen rank of the worker: each data-parallel rank is a holder of a KV cache
	Rank   int           // the global number of the holder's data-parallel rank
	Pinned bool          // the worker has several ranks: the request must carry the rank in X-Data-Parallel-Rank
	// Trust is the trust of the match: the holder's trust, but at most approximate if the match is an estimate, made
	// from the prompt's text or from what was sent before.
	Trust fleet.Trust

	PromptTokens    int                 // length of the prompt; an estimate unless TokensKnown
	TokensKnown     bool                // the request had Tokens
	FromText        bool                // the match was made by the prompt's text: no event confirms it
	MatchTokens     int                 // prompt tokens in confirmed blocks that the engine can use
	PredictedTokens int                 // prompt tokens expected to be cached when the engine schedules the request; AtRiskTokens are left out
	AtRiskTokens    int                 // matched tokens that are expected to be evicted before scheduling
	Tier            [block.NumTiers]int // MatchTokens, split by the tier of the blocks
	BlockSize       int                 // tokens of a block of the index; 0 if the prompt was not matched

	Leg      fleet.Leg       // the part of the request that Worker serves
	Division policy.Division // whether the request is divided, and why
	// Prefill is the record of the prefill leg, if the request is divided: its Worker computes the prompt, and sends the
	// KV blocks to Worker. nil: the request is not divided.
	Prefill *Record
	// Fetched is the number of prompt tokens whose blocks the worker reads before it computes the rest: from the rank
	// SourceRank of Source, another worker. It is 0 in a decode leg, which gets the blocks from the worker of the
	// prefill leg.
	Fetched    int
	Source     *fleet.Worker
	SourceRank int

	Policy string
	Terms  []string      // names of the values in Candidate.Terms; the caller must not change the slice
	Branch policy.Branch // the rule that decided, in one word
	Reason string        // the meaning of Branch

	Chosen     int                // index in Candidates; -1 if Worker is nil
	Candidates []policy.Candidate // the holders that were looked at; the first Passed ones passed every filter
	Passed     int                // how many candidates passed every filter
	Ranked     bool               // the candidate with the highest score was chosen; see policy.Choice
	Tie        policy.Tie         // if Ranked: the rule among candidates with the highest score
	Now        int64              // when the decision was made, Unix nanoseconds
}

// Why says in words why candidate i was chosen or not. If candidate i passed every filter, but has a lower score than
// the chosen candidate, Why also names the term with the greatest part of the difference, if the score has several
// terms.
func (r *Record) Why(i int) string {
	choice := policy.Choice{Index: r.Chosen, Passed: r.Passed, Branch: r.Branch, Reason: r.Reason, Ranked: r.Ranked, Tie: r.Tie}
	why := choice.Why(&policy.Query{PromptTokens: r.PromptTokens}, r.Candidates, i)
	if r.Chosen < 0 || i >= r.Passed || i == r.Chosen || len(r.Terms) < 2 {
		return why
	}
	chosen, other := &r.Candidates[r.Chosen], &r.Candidates[i]
	if other.Score >= chosen.Score {
		return why
	}
	cost := 1.0 // a negative score is a sum of costs, where a greater term is worse
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

// Clone returns an independent copy of the record. The argument is the greatest number of candidates in the copy: the
// copy has the first candidates of the record. A negative number keeps all candidates; 0 counts as 1. If the chosen
// candidate would be left out, it replaces the last candidate of the copy.
func (r *Record) Clone(candidates int) Record {
	c := *r
	if r.Prefill != nil {
		leg := r.Prefill.Clone(candidates)
		c.Prefill = &leg
	}
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
		r.describeLegs(&b)
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
	r.describeLegs(&b)
	return b.String()
}

// describeLegs says whether the request is divided or why not, and which tokens come from another worker.
func (r *Record) describeLegs(b *strings.Builder) {
	if r.Source != nil {
		fmt.Fprintf(b, "; fetches %d tokens from %s", r.Fetched, r.Source.URL)
	}
	n := &r.Division
	switch {
	case r.Prefill != nil:
		fmt.Fprintf(b, "; %s rank %d computes the prompt, and sends %d tokens", r.Prefill.Worker.URL, r.Prefill.Rank, n.Tokens)
	case n.Bypass != "":
		fmt.Fprintf(b, "; not divided: %s", n.Bypass.Reason())
	}
	if n.Prefill != 0 || n.Decode != 0 {
		fmt.Fprintf(b, " (prefill %.4g ms, decode %.4g ms with %.4g ms of transfer; one worker %.4g ms)", n.Prefill, n.Decode, n.Transfer, n.Whole)
	}
}

// Decision says to which holder one request goes, and holds the request's load on this holder. It belongs to the caller
// of Route. The caller must call [Decision.Done] when the request has ended, with success or not. After Done, the
// caller may call [Decision.Recycle], which saves an allocation for the next decision. To use facts of the decision
// after Recycle, copy them with [Record.Clone] before Recycle.
//
// FirstToken, Tokens and Done may be called from any goroutine, any number of times. The argument called now is the
// time of the reported event.
type Decision struct {
	Record

	router      *Router
	leg         *Decision    // the decision about the prefill leg; nil if the request is not divided
	prefilled   atomic.Int64 // when the prefill leg ended well, Unix nanoseconds; 0 is not yet
	transfer    atomic.Int64 // the measured nanoseconds of the transfer; 0 is not known
	policy      *policy.Policy
	shadow      *policy.Policy // a second policy that learns from this decision; nil is none
	reservation fleet.Reservation
	open        atomic.Bool     // the request was routed, and Done was not called yet
	firstToken  atomic.Int64    // when the first token came, Unix nanoseconds; 0 is not yet
	learned     []learnedPrompt // entries that Unsent removes
	id          uint64          // see ID
	unsent      bool            // Unsent was called
	textBytes   int             // the length of the prompt's text
	work        fleet.Work      // the load of the reservation
	prepared    *Prepared       // owns the memory of keys, ahead, matches and sent
	keys        []block.Key     // the keys of the prompt's blocks
	ahead       []aheadKeys     // the keys for engines that hash with a look-ahead
	matches     []kvindex.Match // confirmed matches; only used while the decision is made
	sent        []extent        // unconfirmed matches; only used while the decision is made

	// Scratch, kept for the next decision. The query is a field because policies get it through interfaces: a local
	// variable would be allocated each time.
	query    policy.Query
	finished policy.Finished
	marks    []fleet.Mark
	nominees []fleet.Holder
	extents  []extent // the entries of matches and of sent, merged
	slots    []slot   // slots[i] is for the holder at position i of the pool
	round    uint32   // marks the entries of slots that belong to this decision
	choices  int      // how many answers the engine generates
	whole    bool     // the answer comes in one piece, see Request.Whole
	take     bool     // the request will be sent to the chosen holder; false for Explain
	scope    fleet.Scope
}

// Keys returns the router's own keys of the prompt's full blocks, of BlockSize tokens each. The slice belongs to the
// decision: it is valid until Recycle, and must not be changed. It is empty if the prompt was not matched.
func (d *Decision) Keys() []block.Key { return d.keys }

// Class returns the class of the request: requests with the same class have prompts with the same first 256 tokens. 0
// is no class, because the prompt is shorter or was not matched.
func (d *Decision) Class() uint64 { return d.query.Class }

// UncachedTokens returns the number of prompt tokens that are not cached at the candidate with the longest predicted
// match.
func (d *Decision) UncachedTokens() int {
	least := d.PromptTokens
	for i := range d.Candidates {
		least = min(least, max(d.PromptTokens-d.Candidates[i].Predicted, 0))
	}
	return least
}

// FirstToken notes that the first token of the answer has come. now is the time in Unix nanoseconds. From then on the
// prompt no longer counts as work of the holder. Only the first call counts.
func (d *Decision) FirstToken(now int64) {
	if d.firstToken.CompareAndSwap(0, now) {
		d.reservation.FirstToken(now)
		d.transferred(now)
		if d.id != 0 {
			d.router.options.Observer.PrefillCompleted(d.id)
		}
	}
}

// Tokens notes that the answer has n tokens so far. now is the time in Unix nanoseconds. Call it after FirstToken, for
// every piece of the answer or every few pieces. The router learns three facts from these calls: how much memory the
// answer takes, how long a step takes, and that the request is alive.
func (d *Decision) Tokens(n int, now int64) { d.reservation.Tokens(n, now) }

// Output returns the answer's length in tokens: what Tokens reported, limited to the longest answer that the request
// allows.
func (d *Decision) Output() int { return d.reservation.Output() }

// Unsent notes that the worker computed nothing of the request: the worker could not be reached, the client left before
// the request was sent, or the worker refused the request (for example with a 400). The router then no longer expects
// the prompt in the holder's cache, unless another request with the same prompt was sent there. Call Unsent before
// Done.
func (d *Decision) Unsent() {
	d.unlearn()
	d.unsent = true
}

// Done releases the load, and reports the outcome of the request to the fleet and to the policy. now is the time of the
// end in Unix nanoseconds. Only the first call counts.
func (d *Decision) Done(o fleet.Outcome, now int64) {
	if !d.open.Swap(false) {
		return
	}
	d.reservation.Release(now)
	d.router.fleet.Observe(d.Holder, o, now)
	d.finished = policy.Finished{
		Holder:         d.Holder,
		Model:          d.Base,
		Class:          d.query.Class,
		Outcome:        o,
		RoutedAt:       d.Now,
		FirstTokenAt:   d.firstToken.Load(),
		Now:            now,
		UncachedTokens: max(d.PromptTokens-d.PredictedTokens, 0),
		OutputTokens:   (d.reservation.Output() + d.choices - 1) / d.choices,
	}
	if d.Leg == fleet.LegPrefill {
		d.finished.OutputTokens = 0 // its one token says nothing about the length of answers
	}
	if d.id != 0 { // before the policies: one that panics must not leave the load at the peers
		d.router.options.Observer.Freed(d.id, Ending{Unsent: d.unsent, Outcome: o, OutputTokens: d.finished.OutputTokens})
	}
	d.policy.Finished(&d.finished)
	if d.Leg != fleet.LegPrefill && d.Division.Considered {
		d.router.weigher.Finished(&d.finished)
	}
	if d.leg != nil {
		d.leg.Done(fleet.OutcomeUnknown, now)
	}
	if d.shadow != nil {
		d.shadow.Finished(&d.finished)
	}
}

// Recycle gives the decision's memory back to its router. If Done was not called, Recycle calls it with an unknown
// outcome. No goroutine may use the decision or its candidates afterwards.
func (d *Decision) Recycle() {
	d.Done(fleet.OutcomeUnknown, d.Now)
	r := d.router
	if d.leg != nil {
		d.leg.Recycle()
		d.leg = nil
	}
	d.firstToken.Store(0)
	d.prefilled.Store(0)
	d.transfer.Store(0)
	d.forgetLearned()
	d.clearCandidates()
	d.Record = Record{Candidates: d.Candidates}
	d.query, d.work = policy.Query{}, fleet.Work{}
	d.shadow, d.id, d.unsent = nil, 0, false
	d.keys, d.ahead, d.matches, d.sent = nil, nil, nil, nil
	d.prepared.release()
	d.prepared = nil
	r.decisions.Put(d)
}
