package policy

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Marginal takes the holder where the request costs least, in predicted milliseconds. The cost is the time of the
// request itself and the time that the request costs others: the requests that run at the holder now, and later
// requests whose cached blocks it evicts. Service levels that are probably broken cost more. docs/marginal.md explains
// the terms.
type Marginal struct {
	// Externality is the weight of one millisecond by which the request delays another request's answer. One
	// millisecond before the request's own first token has weight 1. At 0 the delay of other requests does not count.
	// At 1 a long prompt goes to a worker where it delays few answers, even if it waits there for a long time. The size
	// of the default follows from service levels: 5 s for the first token and 100 ms for each of 343 further tokens
	// (the mean of the public Mooncake conversation trace) give 5 / 34.3 = 0.15, and 2 s and 50 ms give 0.12. The
	// default is half of that, because Risk counts the delays that break a level.
	Externality float64 `yaml:"externality"`
	// Eviction is the weight of computing the evicted blocks again: the uncached tokens of the request evict other
	// blocks. If an evicted block is needed again with the probability p, the worker computes it again, and evicts
	// another block for it, which is also needed again with the probability p. So the evicted blocks of one request
	// cost p + p² + … times their computation: 1 for a probability of 1/2, 2 for 2/3, and the default of 2.5 for 5/7.
	Eviction float64 `yaml:"eviction"`
	// Risk is the cost of a broken service level, as a share of the time that the level allows for the first token.
	// With 0.5, an answer that breaks the level 5 s/100 ms costs 2,500 ms. At 0 no service level counts. Values from
	// 0.3 to 0.6 keep about the same shares of the levels on the public Mooncake traces; more makes long prompts wait
	// longer.
	Risk float64 `yaml:"risk"`
	// Tail is the additional weight of a millisecond of waiting beyond TailAfter. It prevents a request from starving
	// because its start would delay others.
	Tail float64 `yaml:"tail"`
	// TailAfter is the wait from which Tail counts. The default is half of the 5 s that a service level for chat allows
	// for the first token.
	TailAfter time.Duration `yaml:"tail_after"`
	// TierWeights are the share of a matched token's computation that is saved, by its tier: the memory in which its
	// block lies.
	TierWeights TierWeights `yaml:"tier_weights"`
}

// DefaultMarginal returns the parameters that the project recommends.
func DefaultMarginal() Marginal {
	return Marginal{
		Externality: 0.07, Eviction: 2.5, Risk: 0.5, Tail: 1, TailAfter: 2500 * time.Millisecond, TierWeights: DefaultKVAware().TierWeights,
	}
}

// Validate returns all problems.
func (p Marginal) Validate() error {
	var wrong Problems
	wrong.Within("externality", p.Externality, 0, 100)
	wrong.Within("eviction", p.Eviction, 0, 100)
	wrong.Within("risk", p.Risk, 0, 100)
	wrong.Within("tail", p.Tail, 0, 100)
	wrong.AtLeast("tail_after", p.TailAfter.Seconds(), 0)
	wrong.Section("tier_weights", p.TierWeights.Validate())
	return wrong.Join()
}

// The terms of a marginal cost, in milliseconds.
const (
	costWait    = iota // the time until the prompts before this request's prompt are computed
	costMemory         // the time until running requests have freed enough memory for this request
	costPrefill        // the time to compute the uncached tokens of the prompt
	costTail           // the part of wait and memory beyond TailAfter, times the weight Tail
	costDecode         // the time of the answer; requests that run at the holder make it longer
	costOthers         // the time by which this request delays the requests that run at the holder, times Externality
	costEvict          // the cost of computing the evicted blocks again, times Eviction
	costRisk           // the price of the service levels that are probably broken, of this request and of others, times Risk
)

// Spec returns the policy.
func (p Marginal) Spec(name string) Spec {
	return Spec{
		Name: name, NeedsMatches: true, NeedsAtRisk: true, Terms: []string{"wait", "memory", "prefill", "tail", "decode", "others", "evict", "risk"},
		Chooser: func() Chooser { return &marginal{Marginal: p, weights: p.TierWeights.ByTier()} }, Reasons: ReasonsBy("the lowest predicted cost"),
	}
}

type marginal struct {
	Marginal
	weights [block.NumTiers]float64
	answers means // mean number of tokens of an answer, by model
	lengths lengths
	crowds  means // mean number of requests that a holder already has when it is chosen, by model
}

func (m *marginal) Routed(q *Query, c *Candidate) {
	m.crowds.learn(q.Model, float64(c.Load.Requests), firstCrowd)
}

func (m *marginal) Finished(f *Finished) {
	if f.Outcome == fleet.OutcomeServed && f.OutputTokens > 0 {
		m.answers.learn(f.Model, float64(f.OutputTokens), firstAnswer)
		m.lengths.learn(f.Model, f.Class, f.OutputTokens)
	}
}

// Forget does nothing: this policy keeps no facts about single holders. The fleet keeps them.
func (m *marginal) Forget(fleet.Holder) {}

func (m *marginal) Choose(q *Query, c []Candidate) Pick {
	typical := m.typical(q, c)
	for i := range c {
		m.price(q, &c[i], &typical)
	}
	var b int
	if m.Risk > 0 && q.Requests != nil {
		b = m.addRisk(q, c, &typical)
	} else {
		b = Best(q, c)
	}
	return Pick{Index: b, Branch: followed(q, c, b), Ranked: true, Tie: TieWork}
}

// followed returns BranchSpill if another candidate has a longer match than the picked candidate; otherwise "". It
// returns "" also if the client named a worker or the tokens are not known.
func followed(q *Query, c []Candidate, picked int) Branch {
	if q.Target != "" || !q.Known {
		return ""
	}
	for i := range c {
		if c[i].Kept() > c[picked].Kept() {
			return BranchSpill
		}
	}
	return ""
}

// These are constants of the cost that price predicts.
const (
	// levelled is a number of requests. Routing levels a difference between the loads of two holders only if it is greater
	// than levelled. With a smaller value, long answers gather on a few holders if holders have a dozen requests each.
	// With a larger value, requests of a busy fleet go to holders without their prefix, because of a difference in load
	// that soon disappears.
	levelled = 24
	// leastPressure is the least pressure that the cost of evictions assumes. The pressure is how many blocks a cache
	// evicts for each new block, 0 to 1. In a cache with free blocks, new blocks evict nothing yet, but the cache becomes
	// full sooner.
	leastPressure = 0.5
)

// typical holds the facts of a price that do not depend on the candidate.
type typical struct {
	answer   float64      // the expected tokens of the answer
	together float64      // how much of the answer's time the requests that run now slow the answer, 0 to 1
	timing   fleet.Timing // the mean timing of the candidates
	pressure float64      // the mean of the known pressures of the candidates; 1 if none is known
}

// typical returns the expected length of an answer to q, and the means over the candidates.
//
// The requests that run at a holder now slow an answer there, until the router has levelled the load: it sends new
// requests to other holders. A router that reads loads keeps the loads of the holders within k requests of each other,
// where k does not grow with the load [Mitzenmacher, The Power of Two Choices, 2001]. A holder with n requests would
// get n new requests in the time of one answer. So the router levels k requests in k/n of that time. The difference
// also shrinks during that time. The field together is the square of the share k/n: a fit, see docs/design/0039. k is
// the constant levelled. In theory k is one or two; it is more here, because a long conversation loads a holder as much
// as many short ones. n is the mean in m.crowds.
func (m *marginal) typical(q *Query, c []Candidate) typical {
	t := typical{answer: m.answers.mean(q.Model, firstAnswer)}
	lasts := min(levelled/max(m.crowds.mean(q.Model, firstCrowd), 1), 1)
	t.together = lasts * lasts
	t.timing = meanTiming(c)
	t.pressure = meanPressure(c)
	return t
}

// meanPressure returns the pressure to assume for a holder whose pressure is not known: the mean of the known
// pressures. With a higher value, a holder that was not used yet would look worse than the others.
func meanPressure(c []Candidate) float64 {
	sum, n := 0.0, 0
	for i := range c {
		if l := &c[i].Load; l.RoomKnown {
			sum += l.Pressure()
			n++
		}
	}
	if n == 0 {
		return 1
	}
	return sum / float64(n)
}

// meanTiming returns the mean timing of the candidates, weighted by the number of measurements.
func meanTiming(c []Candidate) (mean fleet.Timing) {
	sum := 0.0
	for i := range c {
		t := c[i].Load.Times()
		weight := float64(t.Samples) + 1e-6
		sum += weight
		mean.Base += weight * t.Base
		mean.Sequence += weight * t.Sequence
		mean.Context += weight * t.Context
		mean.Token += weight * t.Token
		mean.Attention += weight * t.Attention
	}
	mean.Base /= sum
	mean.Sequence /= sum
	mean.Context /= sum
	mean.Token /= sum
	mean.Attention /= sum
	return mean
}

// price sets the terms of c, and sets c's score to the negative sum of the terms.
func (m *marginal) price(q *Query, c *Candidate, usual *typical) {
	answer, together := usual.answer, usual.together
	frees := answer // the tokens after which the requests that run at the holder have freed their memory
	l := &c.Load
	own, t := c.Load.Times(), &usual.timing
	prompt := float64(q.PromptTokens)
	n := max(prompt-m.reach(c), 1)
	computed := n // tokens that the holder computes
	switch q.Leg {
	case fleet.LegDecode:
		computed = 1 // engines compute the last token of a prompt whose blocks they received
	case fleet.LegPrefill:
		answer = 1
	}
	if c.Worker.Facts.Role == fleet.RolePrefill {
		frees = 1 // no answers run there
	}
	requests := float64(l.Requests)
	context := float64(l.ContextTokens + l.OutputTokens)
	step := t.Step(l.Requests, l.ContextTokens+l.OutputTokens)
	compute := t.Token*computed + t.Attention*computed*(prompt-computed/2)

	// The wait for the prompts before this request's prompt, for the decodes in the same passes, and for the rest of the
	// present pass.
	wait := float64(l.Backlog) / 1e6 * (t.Token / own.Token)
	if wait == 0 {
		wait = t.Token * float64(l.PendingTokens)
	}
	wait += (step - t.Base) * float64(l.PendingTokens) / fleet.PassTokens
	wait = max(wait-q.Prefilled, 0) + step/2 // a decode leg begins after the prefill leg
	memory := 0.0
	if share := shortage(c, max(prompt-float64(c.Kept()), 1)); share > 0 { // blocks that are fetched need memory, too
		memory = share * frees * step
	}

	// The requests that run at the holder now make a part of the answer slower, and the answer slows these requests for
	// the same time. The two delays use the holder's own timing, and all other terms use the mean timing. So two idle
	// holders cost the same, and a slow holder gets work in proportion to its pace. Otherwise the slow holder's cache
	// would not be used.
	alone := answer * t.Base
	slowed := together * answer * (own.Context*context + own.Sequence*requests)
	slows := together * answer * (own.Context*prompt + own.Sequence)
	others := m.Externality * requests * (compute + slows)

	terms := &c.Terms
	terms[costWait] = wait
	terms[costMemory] = memory
	terms[costPrefill] = compute + c.Transfer + step*max(1, computed/fleet.PassTokens)
	terms[costTail] = m.Tail * max(wait+memory-float64(m.TailAfter)/1e6, 0)
	terms[costDecode] = alone + slowed
	terms[costOthers] = others
	pressure := usual.pressure
	if l.RoomKnown {
		pressure = l.Pressure()
	}
	pressure = max(pressure, l.Filled, leastPressure)
	// The evicted blocks of a decode worker come back as these blocks came: from another worker.
	terms[costEvict] = m.Eviction * pressure * (compute*(1+m.Externality*requests) + c.Transfer)
	c.Score = -(wait + memory + terms[costPrefill] + terms[costTail] + alone + slowed + others + terms[costEvict])
}

// reach returns the number of prompt tokens that c need not compute. A token on a slower tier counts in part, because
// reading it takes time, too.
func (m *marginal) reach(c *Candidate) float64 {
	tokens := float64(c.Kept() + c.Fetched)
	if c.Tier[block.TierGPU] == c.Match && m.weights[block.TierGPU] == 1 {
		return tokens
	}
	for t, n := range c.Tier {
		tokens -= (1 - m.weights[t]) * float64(n)
	}
	return tokens
}

// shortage returns the share of c's used memory that has to become free before n more tokens fit into it.
func shortage(c *Candidate, n float64) float64 {
	room := float64(c.Worker.Facts.BlocksPerRank)
	if room <= 0 {
		return 0
	}
	size := float64(max(c.BlockSize, 1))
	used := float64(c.Load.ContextBlocks) + float64(c.Load.OutputTokens)/size
	if over := used + n/size - room; over > 0 {
		return over / max(used, 1)
	}
	return 0
}

// means holds a running mean for each model. If two models share a slot, they share one mean, which makes their
// predicted costs a little wrong.
type means struct {
	// The upper half of a slot is the mean as a float32. The lower half is the number of values in the mean, at most
	// meanOver.
	slots [32]atomic.Uint64
}

const (
	firstAnswer = 211 // tokens of an answer, before any is measured: the mean of the public trace azure2023_conv
	firstCrowd  = 1   // requests at a chosen holder, before any is counted
	meanOver    = 256 // the number of values in a mean: enough for rare long answers, few enough to follow a change of use
)

func (a *means) slot(model string) *atomic.Uint64 {
	return &a.slots[block.Mix64(block.FNVText(block.FNVBasis, model))%uint64(len(a.slots))]
}

func (a *means) mean(model string, first float64) float64 {
	v := a.slot(model).Load()
	if v == 0 {
		return first
	}
	return float64(math.Float32frombits(uint32(v >> 32)))
}

func (a *means) learn(model string, value, first float64) {
	s := a.slot(model)
	for {
		old := s.Load()
		mean, n := first, 1.0 // the assumed mean counts as one value
		if old != 0 {
			mean, n = float64(math.Float32frombits(uint32(old>>32))), float64(uint32(old))
		}
		mean += (value - mean) / (n + 1)
		n = min(n+1, meanOver)
		if s.CompareAndSwap(old, uint64(math.Float32bits(float32(mean)))<<32|uint64(n)) {
			return
		}
	}
}
