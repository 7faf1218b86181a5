package warmpath

import (
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// Legs says which requests are divided: the prompt is computed at one worker (the prefill leg), and another worker,
// which receives the KV blocks of the prompt, generates the answer (the decode leg).
type Legs struct {
	// Mode is auto (the default), always or never.
	Mode policy.Mode
	// UncachedTokenThreshold is the number of prompt tokens that the worker of a whole request would have to compute,
	// from which on the mode auto divides a request. Default 0: DefaultUncachedTokenThreshold. Negative: no threshold.
	UncachedTokenThreshold int
	// PrefillPolicy and DecodePolicy are the names of the policies that choose the workers of the legs. "" is the
	// policy of the request.
	PrefillPolicy, DecodePolicy string
}

// DefaultUncachedTokenThreshold is the default of [Legs.UncachedTokenThreshold]. Below it a second request and a
// transfer take longer than the prompt on all usual devices. vllm-router's pd_uncached_token_threshold has the same
// default.
const DefaultUncachedTokenThreshold = 256

// leg is one leg of a request that is to be decided.
type leg struct {
	pool      *fleet.Pool // the workers that serve the leg
	policy    *policy.Policy
	first     *Decision        // of a decode leg: the decision about the prefill leg
	exchanges bool             // some workers of the model exchange KV blocks
	to        *fleet.Pool      // of a prefill leg: the workers of the decode leg
	tried     []fleet.WorkerID // workers that must not be chosen, besides Request.Exclude
	rests     bool             // of a decode leg: pairs that are left alone may be chosen, too
}

// exclude returns the workers that must not be chosen for the leg.
func (l *leg) exclude(req *Request) []fleet.WorkerID {
	if len(l.tried) == 0 {
		return req.Exclude
	}
	return slices.Concat(req.Exclude, l.tried)
}

// prefilled returns the predicted milliseconds until the prefill leg before l has ended.
func (l *leg) prefilled() float64 {
	if l.first == nil {
		return 0
	}
	return l.first.prefillTime()
}

// prefillTime returns the predicted milliseconds until a prefill leg has ended. d is the decision about this leg.
func (d *Decision) prefillTime() float64 {
	c := &d.Candidates[d.Chosen]
	t := c.Load.Times()
	return float64(c.Load.Backlog)/1e6 + t.Prompt(max(d.PromptTokens-c.Kept()-c.Fetched, 1), d.PromptTokens)
}

// PrefillTime returns how long the prefill leg is predicted to take from the decision on, with its queue: 0 if the
// request is not divided.
func (d *Decision) PrefillTime() time.Duration {
	if d.leg == nil {
		return 0
	}
	return time.Duration(d.leg.prefillTime() * float64(time.Millisecond))
}

// divide decides between one worker and two. The decision is about the worker that answers the client; d.leg is the
// decision about the prefill leg, if the request is divided.
func (p *Prepared) divide(snap *fleet.Snapshot, pool *fleet.Pool, decides *policy.Policy, take bool) (*Decision, error) {
	table := p.router.table.Load()
	if len(pool.Whole.Holders) == 0 {
		return p.divideAlways(snap, pool, table, decides, take)
	}
	whole, err := p.decideLeg(leg{pool: pool.Whole, policy: decides, exchanges: true}, snap, pool, take)
	if err != nil {
		return whole, err
	}
	whole.Division.Considered = true
	if why := table.legs.bypass(p.request, whole); why != "" {
		whole.Division.Bypass = why
		whole.takeTurn(pool.Whole)
		return whole, nil
	}
	prefill, decode, why := p.decideLegs(snap, pool, table, decides, take, false)
	if why == "" {
		why = p.weigh(table.legs.Mode, whole, prefill, decode)
	}
	if why != "" {
		whole.Division.Bypass = why
		whole.takeTurn(pool.Whole)
		prefill.drop()
		decode.drop()
		return whole, nil
	}
	whole.drop()
	decode.join(prefill, pool)
	return decode, nil
}

// join makes the decision about a prefill leg a part of d, the decision about the decode leg.
func (d *Decision) join(prefill *Decision, pool *fleet.Pool) {
	prefill.takeTurn(pool.Prefill)
	d.takeTurn(pool.Decode)
	d.leg, d.Record.Prefill = prefill, &prefill.Record
}

// divideAlways divides a request for a model without workers that serve whole requests: see Transfer.LegsOnly. Nothing
// is compared.
func (p *Prepared) divideAlways(snap *fleet.Snapshot, pool *fleet.Pool, table *policyTable, decides *policy.Policy, take bool) (*Decision, error) {
	req := p.request
	if len(pool.Decode.Holders) == 0 || len(pool.Prefill.Holders) == 0 {
		missing := "all its workers have the role prefill, and none generates answers"
		if len(pool.Decode.Holders) > 0 {
			missing = "its workers serve only parts of requests, and none of them computes prompts"
		}
		return nil, fmt.Errorf("route to model %.128q: %s: %w", req.Model, missing, ErrNoWorker)
	}
	switch why := table.legs.forbids(req); why {
	case "", policy.BypassOneWorker: // two other workers may do better
	default:
		return nil, fmt.Errorf("route to model %.128q: %w; the request is not divided: %s", req.Model, ErrUndividable, why.Reason())
	}
	prefill, decode, why := p.decideLegs(snap, pool, table, decides, take, false)
	if why == policy.BypassNoDecode {
		// No worker serves the request alone, so a pair whose transfers failed is better than none.
		prefill.drop()
		decode.drop()
		prefill, decode, why = p.decideLegs(snap, pool, table, decides, take, true)
	}
	if why != "" {
		failed := prefill
		if decode != nil {
			prefill.drop()
			failed = decode
		}
		return failed, fmt.Errorf("route to model %.128q: %s: %w", req.Model, why.Reason(), noChoice(failed.Candidates))
	}
	c := &decode.Candidates[decode.Chosen]
	decode.Division = policy.Division{Considered: true, Transfer: c.Transfer, Tokens: c.Fetched}
	decode.join(prefill, pool)
	return decode, nil
}

// takeTurn counts the decision as a turn of its pool.
func (d *Decision) takeTurn(pool *fleet.Pool) {
	if d.take {
		pool.Turn(true)
	}
}

// drop recycles a decision that was not taken. d may be nil.
func (d *Decision) drop() {
	if d != nil {
		d.Recycle()
	}
}

// bypass returns the reason why a request is not divided, or "" if that depends on the workers of the legs. whole is
// the decision for one worker.
func (l *Legs) bypass(req *Request, whole *Decision) policy.Bypass {
	threshold := l.UncachedTokenThreshold
	if threshold == 0 {
		threshold = DefaultUncachedTokenThreshold
	}
	if why := l.forbids(req); why != "" {
		return why
	}
	if l.Mode == policy.ModeAuto && whole.PromptTokens-whole.PredictedTokens < threshold {
		return policy.BypassShort
	}
	return ""
}

// forbids returns the reason why a request must not be divided, or "". It looks at no worker.
func (l *Legs) forbids(req *Request) policy.Bypass {
	switch {
	case l.Mode == policy.ModeNever:
		return policy.BypassNever
	case req.Undivided != "":
		return req.Undivided
	case req.Choices > 1:
		return policy.BypassAnswers
	case req.Target != "" || req.Rank.Asked():
		return policy.BypassPinned
	}
	return ""
}

// decideLegs chooses the workers of both legs. If one of them cannot be used, why says which. rests allows pairs that
// are left alone, because their transfers failed.
func (p *Prepared) decideLegs(snap *fleet.Snapshot, pool *fleet.Pool, table *policyTable, decides *policy.Policy, take, rests bool) (prefill, decode *Decision, why policy.Bypass) {
	policyOf := func(own *policy.Policy) *policy.Policy {
		if own != nil {
			return own
		}
		return decides
	}
	first := leg{pool: pool.Prefill, policy: policyOf(table.prefill), exchanges: true, to: pool.Decode}
	for {
		var err error
		if prefill, err = p.decideLeg(first, snap, pool, take); err != nil {
			if len(first.tried) > 0 {
				return prefill, nil, policy.BypassNoDecode
			}
			return prefill, nil, policy.BypassNoPrefill
		}
		decode, err = p.decideLeg(leg{pool: pool.Decode, policy: policyOf(table.decode), first: prefill, exchanges: true, rests: rests}, snap, pool, take)
		if err == nil {
			return prefill, decode, ""
		}
		if len(first.tried) == mostPrefillWorkers-1 {
			return prefill, decode, policy.BypassNoDecode
		}
		first.tried = append(first.tried, prefill.Worker.ID)
		prefill.drop()
		decode.drop()
	}
}

// mostPrefillWorkers is how many prefill workers are looked at in one decision. A further one is looked at only if no
// decode worker can take the blocks of the one before: several transfers between the two failed, or the decode workers
// with the same connector are full.
const mostPrefillWorkers = 3

// weigh predicts the costs of one worker and of two, and returns a reason if one worker is to be taken.
func (p *Prepared) weigh(mode policy.Mode, whole, prefill, decode *Decision) policy.Bypass {
	w := p.router.weigher
	cost := func(d *Decision) float64 { return w.Cost(&d.query, &d.Candidates[d.Chosen]) }
	c := &decode.Candidates[decode.Chosen]
	n := policy.Division{Considered: true, Whole: cost(whole), Prefill: cost(prefill), Decode: cost(decode), Transfer: c.Transfer, Tokens: c.Fetched}
	whole.Division, decode.Division = n, n
	if mode == policy.ModeAuto && n.Whole <= n.Prefill+n.Decode {
		return policy.BypassCost
	}
	return ""
}

// noteTransfers sets which tokens the candidates would get from other workers.
func (d *Decision) noteTransfers(snap *fleet.Snapshot, l *leg, req *Request) {
	switch {
	case !l.exchanges:
		return
	case l.first != nil:
		d.noteHandover(snap, l)
		return
	}
	source := d.longestReadable()
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if l.to != nil && !l.to.Pairs(c.Worker) {
			c.Unpaired = policy.ReasonNoPair
		}
		d.noteFetch(snap, c, source, req)
	}
}

// longestReadable returns the candidate with the longest match among the candidates whose blocks others can fetch; nil
// if no candidate has a match.
func (d *Decision) longestReadable() (source *policy.Candidate) {
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Match == 0 || !c.Available || !c.Worker.Facts.Transfer.Fetches {
			continue
		}
		if source == nil || c.Match > source.Match || c.Match == source.Match && c.Load.Requests < source.Load.Requests {
			source = c
		}
	}
	return source
}

// noteHandover sets what each candidate of a decode leg gets from the worker of the prefill leg.
func (d *Decision) noteHandover(snap *fleet.Snapshot, l *leg) {
	from := l.first.Worker
	for i := range d.Candidates {
		c := &d.Candidates[i]
		link := snap.Link(from, c.Worker)
		switch {
		case c.Worker.ID == from.ID:
			c.Unpaired = policy.ReasonPrefills
		case !from.Facts.Transfer.Pairs(&c.Worker.Facts.Transfer):
			c.Unpaired = policy.ReasonConnector
		case !l.rests && !link.Rested(d.Now):
			c.Unpaired = policy.ReasonRests
		default:
			c.Fetched = max(d.PromptTokens-c.Kept(), 0)
			c.Source, c.SourceRank, c.Transfer = from, l.first.Rank, link.Time(c.Fetched)
		}
	}
}

// noteFetch sets which tokens the candidate c would best fetch from another worker: from a worker of req.Readable, or
// from source, if both workers have a connector that can. source may be nil.
func (d *Decision) noteFetch(snap *fleet.Snapshot, c, source *policy.Candidate, req *Request) {
	mine := &c.Worker.Facts.Transfer
	for _, r := range req.Readable {
		if d.Leg != fleet.LegPrefill {
			break
		}
		if from := snap.ByID(r.Worker); from != nil && from.Ready && mine.Pairs(&from.Facts.Transfer) {
			link := snap.Link(from, c.Worker)
			c.Fetch(&d.query, from, from.Facts.FirstRank, r.Tokens, &link)
		}
	}
	if source != nil && mine.Fetches && mine.Pairs(&source.Worker.Facts.Transfer) {
		link := snap.Link(source.Worker, c.Worker)
		c.Fetch(&d.query, source.Worker, source.Rank, source.Match, &link)
	}
}

// legWork changes the work of a whole request into the work of d's leg.
func (d *Decision) legWork(w *fleet.Work) {
	switch d.Leg {
	case fleet.LegPrefill:
		// Nothing of the answer is generated here, so nothing can delay its further tokens.
		w.MostTokens, w.Choices, w.Whole, w.Levels = 1, 1, true, nil
	case fleet.LegDecode:
		// The engine computes the last token of the prompt. The wait for the first token says nothing about the speed
		// of the engine, because the transfer is a part of the wait.
		w.UncachedTokens, w.Guess = min(1, w.PromptTokens), true
	default:
		if d.Fetched > 0 {
			w.UncachedTokens, w.Guess = max(w.UncachedTokens-d.Fetched, 1), true
		}
	}
}

// reserveLegs reserves the load of all legs, or none: see reserve.
func (r *Router) reserveLegs(d *Decision, req *Request) bool {
	if d.leg != nil && !r.reserve(d.leg, req) {
		return false
	}
	if r.reserve(d, req) {
		return true
	}
	if d.leg != nil {
		d.leg.reservation.Release(req.Now)
	}
	return false
}

// routedLegs notifies the policies of all legs that the request is sent. If a policy panics, the load of all legs is
// released.
func (d *Decision) routedLegs() {
	if d.leg != nil {
		notified := false
		defer func() {
			if !notified {
				d.leg.open.Store(false)
				d.leg.reservation.Release(d.Now)
				d.reservation.Release(d.Now)
			}
		}()
		d.leg.routed()
		d.routed()
		notified = true
	} else {
		d.routed()
	}
	if d.Division.Considered {
		d.router.weigher.Routed(&d.query, &d.Candidates[d.Chosen])
	}
	if o := d.router.options.Observer; o != nil {
		if d.leg != nil {
			d.leg.tellPlaced(o)
		}
		d.tellPlaced(o)
	}
	// The prompt belongs to the request and not to the decision.
	d.query.Prompt = policy.Prompt{}
	if d.leg != nil {
		d.leg.query.Prompt = policy.Prompt{}
	}
}

// PrefillDone notes that the prefill leg of a divided request has ended, with the given outcome. now is the time of the
// end in Unix nanoseconds. It releases the leg's load: later calls, and calls for requests that are not divided, do
// nothing. Call [Decision.PrefillUnsent] before it if the worker computed nothing.
func (d *Decision) PrefillDone(o fleet.Outcome, now int64) {
	if d.leg == nil || !d.leg.open.Load() {
		return
	}
	if o == fleet.OutcomeServed {
		d.prefilled.CompareAndSwap(0, now)
		d.leg.FirstToken(now)
		d.leg.Tokens(1, now)
	}
	d.leg.Done(o, now)
}

// PrefillUnsent notes that the worker of the prefill leg computed nothing of the prompt: see [Decision.Unsent].
func (d *Decision) PrefillUnsent() {
	if d.leg != nil {
		d.leg.Unsent()
	}
}

// transferred learns from the first token of a decode leg how long the transfer took: the time since the end of the
// prefill leg, less one step of the decode engine.
func (d *Decision) transferred(now int64) {
	ended := d.prefilled.Load()
	if ended == 0 {
		return
	}
	if d.whole { // its first token was not seen: only that the blocks came is known
		d.router.fleet.Transferred(d.leg.Worker, d.Worker, 0, 0)
		return
	}
	c := &d.Candidates[d.Chosen]
	step := c.Load.Timing.Step(c.Load.Requests, c.Load.ContextTokens+c.Load.OutputTokens)
	took := max(time.Duration(now-ended)-time.Duration(step*float64(time.Millisecond)), 0)
	d.transfer.Store(int64(took) + 1)
	d.router.fleet.Transferred(d.leg.Worker, d.Worker, d.Division.Tokens, took)
}

// Transfer returns the number of tokens whose blocks went from the worker of the prefill leg to the decode worker, and
// the time that this took. measured is false before the first token, if the first token was not seen, and if the
// request is not divided.
func (d *Decision) Transfer() (tokens int, took time.Duration, measured bool) {
	n := d.transfer.Load()
	return d.Division.Tokens, time.Duration(max(n-1, 0)), n > 0
}

// TransferFailed notes that the KV blocks of the prefill leg did not reach the decode worker. now is the present time
// in Unix nanoseconds. If several transfers between the two workers fail in a row, the pair gets none for a while:
// alone is then the length of that time, otherwise 0.
func (d *Decision) TransferFailed(now int64) (alone time.Duration) {
	if d.leg == nil {
		return 0
	}
	return d.router.fleet.TransferFailed(d.leg.Worker, d.Worker, now)
}
