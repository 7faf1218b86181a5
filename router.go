package warmpath

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// Router decides where requests go. Its methods may be called from any goroutine, with one exception: the events of one
// holder must be applied from one goroutine at a time, because the order of the events matters.
type Router struct {
	options   Options
	fleet     *fleet.Fleet
	table     atomic.Pointer[policyTable]
	choosing  sync.Mutex // held while table is changed
	decisions sync.Pool  // *Decision
	prepared  sync.Pool  // *Prepared
	scouts    atomic.Pointer[map[scoutKey]*scout]
	weigher   *policy.Weigher
	placed    atomic.Uint64 // the number of requests that Options.Observer was told of
	told      atomic.Int64  // requests of all peers
	toldKeys  atomic.Int64  // keys that the requests of all peers hold
	herd      herd

	// indexes by base model. Readers load the map. A writer holds mu, copies the map and swaps the copy in. The map of
	// scouts is changed in the same way.
	indexes atomic.Pointer[map[string]*modelIndex]
	mu      sync.Mutex
	// remoteSizes has the block sizes that SetBlockSize was told, by base model; guarded by mu.
	remoteSizes map[string]int
	created     uint64 // the number of indexes made so far, which is the generation of the newest index; guarded by mu
}

// New returns a router over the workers of o.Fleet, or an error that says what is wrong with o. It checks the policies
// last, and only if the other options are right. It starts nothing.
func New(o Options) (*Router, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("make router: %w", err)
	}
	policies, err := buildPolicies(&o)
	if err != nil {
		return nil, fmt.Errorf("make router: %w", err)
	}
	r := &Router{options: o, fleet: o.Fleet, weigher: policy.NewWeigher(), remoteSizes: map[string]int{}}
	table := policyTable{all: policies, legs: o.Legs}
	if err := table.choose(o.Policy.Name, o.ModelPolicies, o.Shadow); err != nil {
		return nil, fmt.Errorf("make router: %w", err)
	}
	r.table.Store(&table)
	r.indexes.Store(&map[string]*modelIndex{})
	r.scouts.Store(&map[scoutKey]*scout{})
	return r, nil
}

// Fleet returns the fleet of the router's workers.
func (r *Router) Fleet() *fleet.Fleet { return r.fleet }

// Route chooses a holder for req: one data-parallel rank of a worker, with a KV cache of its own. Route reserves the
// request's load on the holder, and from now on expects the prompt in the holder's cache. If it returns an error, it
// has reserved nothing. The error wraps an error of this package, or the error of ctx. If the caller recycles its
// decisions, Route allocates nothing in steady state.
//
// If a request may be decided more than once, use [Router.Prepare] first.
func (r *Router) Route(ctx context.Context, req *Request) (*Decision, error) {
	p := r.Prepare(req)
	d, err := p.Route(ctx)
	p.Recycle()
	return d, err
}

// Explain decides as Route does, and changes nothing. If no worker can be chosen, Explain returns an error together
// with a decision; each candidate of this decision says why it was not chosen. The decision is nil if there are no
// candidates: ctx has ended, the model or the policy is unknown, or the policy needs a target that the request does not
// name.
func (r *Router) Explain(ctx context.Context, req *Request) (*Decision, error) {
	p := r.Prepare(req)
	d, err := p.Explain(ctx)
	p.Recycle()
	return d, err
}

// routed notifies the policies that d's request is sent. If a policy panics, routed releases the load.
func (d *Decision) routed() {
	c := &d.Candidates[d.Chosen]
	notified := false
	defer func() {
		if !notified {
			d.reservation.Release(d.Now)
		}
	}()
	d.open.Store(true)
	d.policy.Routed(&d.query, c)
	if d.shadow = d.router.shadowOf(d.policy); d.shadow != nil {
		d.shadow.Routed(&d.query, c)
	}
	d.router.expect(d)
	notified = true
}

// reserve puts d's load on its holder. If the holder already has the greatest allowed number of requests, reserve puts
// no load on it and returns false.
func (r *Router) reserve(d *Decision, req *Request) bool {
	c := &d.Candidates[d.Chosen]
	uncached := max(d.PromptTokens-c.Predicted, 0)
	if d.policy.NeedsAtRisk() {
		uncached += d.AtRiskTokens
	}
	most := r.options.MaxRequests
	if c.Load.Requests >= int64(most) {
		most = 0 // no limit: the holder was full already, and was chosen because no other holder is left
	}
	d.work = fleet.Work{
		UncachedTokens: uncached,
		PromptTokens:   d.PromptTokens,
		ContextBlocks:  (d.PromptTokens + c.BlockSize - 1) / c.BlockSize,
		Whole:          req.Whole,
		MostTokens:     req.MaxTokens,
		Choices:        req.Choices,
		Guess:          !d.TokensKnown,
		Trust:          d.Trust,
		Marks:          d.mark(c.BlockSize),
		Levels:         d.query.Levels,
		Arrived:        req.Arrived,
		Class:          d.query.Class,
		Scope:          req.Scope,
		Most:           most,
	}
	d.legWork(&d.work)
	return r.fleet.Reserve(&d.reservation, d.Holder, d.work, req.Now)
}

// classTokens is how many tokens of a prompt decide its class: enough that different applications differ, less than
// most system prompts have.
const classTokens = 256

// class returns the class of the request: the key of the first blocks of its prompt. A prompt without so many tokens
// has no class.
func (d *Decision) class() uint64 {
	if d.BlockSize == 0 {
		return 0
	}
	n := (classTokens + d.BlockSize - 1) / d.BlockSize
	if len(d.keys) < n {
		return 0
	}
	return uint64(d.keys[n-1])
}

// levels returns the service levels of a request.
func (r *Router) levels(req *Request) []fleet.ServiceLevel {
	levels := req.Levels
	if levels == nil {
		levels = r.options.ServiceLevels
	}
	return levels[:min(len(levels), fleet.MaxServiceLevels)]
}

// decide makes a decision. take says that the caller will send the request to the chosen holder.
func (p *Prepared) decide(ctx context.Context, take bool) (*Decision, error) {
	r, req := p.router, p.request
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	snap := r.fleet.Snapshot()
	pool, ok := snap.Pool(req.Model)
	if !ok {
		return nil, fmt.Errorf("route to model %.128q: %w", req.Model, ErrUnknownModel)
	}
	decides, err := r.policyFor(req.Policy, pool.Name, pool.Model)
	if err != nil {
		return nil, err
	}
	if decides.NeedsTarget() && req.Target == "" {
		return nil, fmt.Errorf("route by policy %q: %w", decides.Name(), ErrNoTarget)
	}

	if pool.Prefill != nil {
		return p.divide(snap, pool, decides, take)
	}
	return p.decideLeg(leg{pool: pool, policy: decides}, snap, pool, take)
}

// decideLeg makes the decision about one leg. pool is the pool of all workers of the model.
func (p *Prepared) decideLeg(l leg, snap *fleet.Snapshot, pool *fleet.Pool, take bool) (*Decision, error) {
	r, req, decides := p.router, p.request, l.policy
	d := p.decision()
	d.Model, d.Base, d.LoRA, d.Leg = pool.Name, pool.Model, pool.LoRA, l.pool.Leg
	d.policy, d.Policy, d.Terms, d.Now = decides, decides.Name(), decides.Terms(), req.Now
	d.PromptTokens, d.TokensKnown = req.promptTokens()
	d.FromText = !d.TokensKnown && len(req.Text) > 0 && decides.Matches()
	if d.TokensKnown || d.FromText {
		p.match(d, snap, pool)
	}
	d.textBytes = len(req.Text)
	d.take, d.scope, d.choices, d.whole = take, req.Scope, max(req.Choices, 1), req.Whole
	d.query = policy.Query{
		PromptTokens: d.PromptTokens,
		Known:        d.TokensKnown || d.FromText,
		Target:       req.Target,
		Rank:         req.Rank.Number(),
		Exclude:      l.exclude(req),
		MaxRequests:  r.options.MaxRequests,
		Turn:         l.pool.Turn(take && pool.Prefill == nil),
		Random:       req.Random,
		Model:        pool.Model,
		LoRA:         pool.LoRA,
		Session:      req.Session,
		Tenant:       req.Tenant,
		Now:          req.Now,
		Levels:       r.levels(req),
		Arrived:      req.Arrived,
		Class:        d.class(),
		Requests:     snap,
		Cached:       req.Cached,
		Prompt:       policy.Prompt{Tokens: req.Tokens, Keys: d.keys, BlockSize: d.BlockSize, Text: req.Text, TextBytes: len(req.Text)},
		Leg:          l.pool.Leg,
		Prefilled:    l.prefilled(),
	}
	d.settle(snap, r.choose(d, snap, &l, req))
	if d.Worker == nil {
		return d, fmt.Errorf("route to model %.128q: %w", req.Model, noChoice(d.Candidates))
	}
	return d, nil
}

// choose lists the candidates and lets the policy choose.
func (r *Router) choose(d *Decision, snap *fleet.Snapshot, l *leg, req *Request) policy.Choice {
	pool, turn := l.pool, d.query.Turn
	partial := r.gather(d, snap, pool, req)
	d.noteFacts(snap, l, req)
	d.avoid(req)
	choice := d.policy.Choose(&d.query, d.Candidates)
	if partial && (choice.Index < 0 || !eligible(&d.Candidates[choice.Index])) { // no candidate may take the request: look at all holders
		d.query.Turn = turn
		d.begin(len(pool.Holders))
		d.addAll(snap, pool)
		d.noteFacts(snap, l, req)
		d.avoid(req)
		choice = d.policy.Choose(&d.query, d.Candidates)
	} else if partial && !d.take {
		d.addRest(snap, pool)
	}
	return choice
}

// noteFacts sets the facts of the candidates that depend on the prompt.
func (d *Decision) noteFacts(snap *fleet.Snapshot, l *leg, req *Request) {
	d.noteMatches(l.pool, 0)
	d.noteActive(snap)
	d.noteRisks(snap)
	d.noteTransfers(snap, l, req)
}

// decision returns an empty decision of p.
func (p *Prepared) decision() *Decision {
	d, _ := p.router.decisions.Get().(*Decision)
	if d == nil {
		d = &Decision{}
	}
	d.router, d.prepared = p.router, p
	p.users.Add(1)
	return d
}

// mark returns the marks of the prompt, in engine blocks of size tokens. A mark is a position in the prompt: requests
// under way may share the blocks before the mark.
func (d *Decision) mark(size int) []fleet.Mark {
	d.marks = appendMarks(d.marks[:0], d.keys, d.BlockSize, size)
	return d.marks
}

// appendMarks appends the marks of a prompt with these keys. A block of the keys has `from` tokens, and a block of the
// engine has size tokens.
func appendMarks(marks []fleet.Mark, keys []block.Key, from, size int) []fleet.Mark {
	for at := fleet.NextMark(0); at <= len(keys) && len(marks) < fleet.MaxMarks; at = fleet.NextMark(at) {
		marks = append(marks, fleet.Mark{Key: uint64(keys[at-1]), Blocks: int32(at * from / size)})
	}
	return marks
}

// noteMatches sets the matches of the candidates from index first on.
func (d *Decision) noteMatches(pool *fleet.Pool, first int) {
	for i := range d.matches {
		m := &d.matches[i]
		c := d.candidateOn(pool, m.Holder, first)
		if c == nil {
			continue
		}
		c.Match = d.usable(c, m.Blocks)
		c.Predicted = c.Match
		c.Full = max(d.usable(c, m.Full), c.Match)
		left := c.Match
		for t := range m.Tier {
			n := min(int(m.Tier[t])*d.BlockSize, left)
			c.Tier[t] = n
			left -= n
		}
	}
	for _, e := range d.sent {
		if c := d.candidateOn(pool, e.holder, first); c != nil {
			c.Predicted = max(c.Predicted, d.usable(c, e.blocks))
		}
	}
}

// candidateOn returns the candidate on h. It returns nil if h is no candidate, if the candidate's index is below first,
// or if the index's entries about h are not trusted.
func (d *Decision) candidateOn(pool *fleet.Pool, h fleet.Holder, first int) *policy.Candidate {
	position := pool.Position(h)
	if position < 0 {
		return nil // h serves the base model but not this adapter, or h left the fleet
	}
	s := d.slots[position]
	if s.round != d.round || int(s.at) < first {
		return nil
	}
	if c := &d.Candidates[s.at]; c.Trust != fleet.TrustNone {
		return c
	}
	return nil
}

// usable returns how many of the prompt's tokens the engine of the candidate c can take from its cache, if the cache
// has the prompt's first blocks. blocks is the number of these blocks, in blocks of the index.
func (d *Decision) usable(c *policy.Candidate, blocks uint32) int {
	tokens := min(int(blocks)*d.BlockSize, d.PromptTokens-1)
	return tokens - tokens%c.BlockSize
}

// noteActive sets the field Active of each candidate, for policies that need this field. Active is the part of the
// prompt, in tokens, that requests under way at the candidate already hold in the engine's memory.
func (d *Decision) noteActive(snap *fleet.Snapshot) {
	if !d.policy.NeedsActive() || len(d.keys) == 0 {
		return
	}
	marks := d.mark(d.BlockSize)
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Predicted == 0 || c.Load.Requests == 0 {
			continue
		}
		if n := snap.Resident(c.Holder, marks); n > 0 {
			c.Active = int(marks[n-1].Blocks) * d.BlockSize
		}
	}
}

// noteRisk sets how much of a candidate's match may be evicted before the request is scheduled at its holder.
func (d *Decision) noteRisk(snap *fleet.Snapshot, c *policy.Candidate) {
	if c.Predicted == 0 || c.Load.Requests == 0 || d.policy.Learned() != nil {
		return
	}
	matched, usable := c.Predicted/c.BlockSize, (d.PromptTokens-1)/c.BlockSize
	if d.FromText {
		usable = matched // matches by text are guesses: a short match does not mean that blocks were evicted
	}
	blocks := snap.AtRisk(c.Holder, d.mark(c.BlockSize), matched, usable)
	c.AtRisk = min(blocks*c.BlockSize, c.Predicted)
}

// noteRisks sets how much of each candidate's match is at risk, for policies that need it.
func (d *Decision) noteRisks(snap *fleet.Snapshot) {
	if !d.policy.NeedsAtRisk() {
		return
	}
	for i := range d.Candidates {
		d.noteRisk(snap, &d.Candidates[i])
	}
}

func (d *Decision) settle(snap *fleet.Snapshot, choice policy.Choice) {
	d.Chosen, d.Passed = choice.Index, choice.Passed
	d.Branch, d.Reason, d.Ranked, d.Tie = choice.Branch, choice.Reason, choice.Ranked, choice.Tie
	if choice.Index < 0 {
		d.Holder = fleet.NoHolder
		return
	}
	c := &d.Candidates[choice.Index]
	d.Worker, d.Holder, d.Rank, d.Trust = c.Worker, c.Holder, c.Rank, c.Trust
	if d.FromText || d.policy.Learned() != nil {
		d.Trust = min(d.Trust, fleet.TrustApproximate)
	}
	d.Pinned = c.Worker.Facts.Ranks > 1
	for i := range d.Candidates {
		if !d.policy.NeedsAtRisk() && (!d.take || i == choice.Index) {
			d.noteRisk(snap, &d.Candidates[i]) // the policy does not need this figure, so it is only for the record
		}
	}
	d.MatchTokens, d.PredictedTokens, d.AtRiskTokens, d.Tier = c.Match, c.Kept(), c.AtRisk, c.Tier
	if d.Leg != fleet.LegDecode {
		d.Fetched, d.Source, d.SourceRank = c.Fetched, c.Source, c.SourceRank
	}
}

// noChoice returns the error for candidates that all failed a filter. If the reasons differ, the error names the reason
// that helps the caller most: saturated, then limited, unusable, wrong rank, wrong target.
func noChoice(candidates []policy.Candidate) error {
	saturated, limited, unusable, rank := false, false, false, false
	for i := range candidates {
		switch candidates[i].Reason {
		case policy.ReasonSaturated:
			saturated = true
		case policy.ReasonLimited:
			limited = true
		case policy.ReasonNotTarget:
		case policy.ReasonNotRank:
			rank = true
		default:
			unusable = true
		}
	}
	switch {
	case saturated:
		return ErrSaturated
	case limited:
		return ErrLimited
	case unusable:
		return ErrNoWorker
	case rank:
		return ErrNoRank
	}
	return ErrNoTarget
}
