package policy

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Marginal takes the holder where the request costs least, in predicted milliseconds. The cost is the request's own
// time there, and the time that it costs others: requests that run there now, and requests whose cache it evicts.
// docs/policies.md explains the terms.
type Marginal struct {
	// Externality is the weight of a millisecond of another request's answer, relative to one before this request's
	// first token. It follows from the ratio of the times that service levels allow for the two: 5 s to the first token
	// and 100 ms for each of 343 more (the mean of the public conversation trace) is 0.15; 2 s and 50 ms is 0.12. At 0
	// each request is served as if it were alone. At 1 long prompts wait a long time for a holder that they disturb
	// little.
	Externality float64 `yaml:"externality"`
	// Eviction is the weight of computing again the blocks that uncached tokens evict. At 1 an evicted block is wanted
	// again with a probability of one half, and computing it again evicts as many blocks, which are again wanted with
	// one half: 1/2 + 1/4 + … of the cost.
	Eviction float64 `yaml:"eviction"`
	// Tail is the additional weight of a millisecond of waiting beyond TailAfter: requests must not starve for others'
	// sake.
	Tail float64 `yaml:"tail"`
	// TailAfter is half of what a service level for chat allows for the first token, 5 s.
	TailAfter time.Duration `yaml:"tail_after"`
	// TierWeights are the share of a matched token's computation that is saved, by where its block lies.
	TierWeights TierWeights `yaml:"tier_weights"`
}

// DefaultMarginal returns the parameters we recommend.
func DefaultMarginal() Marginal {
	return Marginal{
		Externality: 0.1, Eviction: 1, Tail: 1, TailAfter: 2500 * time.Millisecond, TierWeights: DefaultKVAware().TierWeights,
	}
}

// Validate returns all problems.
func (p Marginal) Validate() error {
	var wrong Problems
	wrong.Within("externality", p.Externality, 0, 100)
	wrong.Within("eviction", p.Eviction, 0, 100)
	wrong.Within("tail", p.Tail, 0, 100)
	wrong.AtLeast("tail_after", p.TailAfter.Seconds(), 0)
	wrong.Section("tier_weights", p.TierWeights.Validate())
	return wrong.Join()
}

// The terms of a marginal cost, in milliseconds.
const (
	costWait    = iota // until the prompts before it are computed
	costMemory         // until running requests have freed memory for it
	costPrefill        // computing the uncached tokens
	costTail           // the part of the wait beyond TailAfter, counted a second time
	costDecode         // the answer, slowed by the requests that run there
	costOthers         // the delay that this prompt and answer cause the requests there
	costEvict          // computing the evicted blocks again
)

// Spec returns the policy.
func (p Marginal) Spec(name string) Spec {
	return Spec{
		Name: name, NeedsMatches: true, NeedsRisk: true, Terms: []string{"wait", "memory", "prefill", "tail", "decode", "others", "evict"},
		Chooser: func() Chooser { return &marginal{Marginal: p, weights: p.TierWeights.ByTier()} }, Reasons: ReasonsBy("the lowest predicted cost"),
	}
}

type marginal struct {
	Marginal
	weights [block.NumTiers]float64
	answers means // tokens of an answer
	crowds  means // requests at a holder that gets one more
}

func (m *marginal) Routed(q *Query, c *Candidate) {
	m.crowds.learn(q.Model, float64(c.Load.Requests), firstCrowd)
}

func (m *marginal) Finished(f *Finished) {
	if f.Outcome == fleet.OutcomeServed && f.OutputTokens > 0 {
		m.answers.learn(f.Model, float64(f.OutputTokens), firstAnswer)
	}
}

// Forget has nothing to drop: the fleet keeps what depends on a holder.
func (m *marginal) Forget(fleet.Holder) {}

func (m *marginal) Choose(q *Query, c []Candidate) Pick {
	typical := m.typical(q, c)
	b := 0
	for i := range c {
		m.price(q, &c[i], &typical)
		if c[i].Score > c[b].Score || (c[i].Score == c[b].Score && lighter(q, &c[i], &c[b])) {
			b = i
		}
	}
	return Pick{Index: b, Branch: followed(q, c, b), Ranked: true}
}

// followed returns BranchSpill when a candidate with a longer match was not taken, else "".
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

// Constants of the prices.
const (
	// levelled is the difference in requests between holders from which the router levels their loads. A smaller value
	// lets long answers gather on a few holders of a dozen requests each. With a larger value, requests of busy fleets
	// leave their prefix because of a difference that soon disappears.
	levelled = 24
	// mostTogether bounds the share of an answer during which a request that was running at its start keeps running.
	// Take two answers with the same distribution of lengths, where the second begins at a random moment of the first.
	// Both run together for half of the mean length, whatever the distribution: E[min(R, L)] = E[L]/2 for the residual
	// R of L. Later requests go to holders with room.
	mostTogether = 0.5
	// leastPressure is the least pressure, also of a cache with room: new blocks evict nothing there yet, but make the
	// cache full sooner.
	leastPressure = 0.5
)

// typical holds the facts of a price that do not depend on the candidate.
type typical struct {
	answer   float64      // tokens
	together float64      // the share of the answer during which a holder's additional load lasts
	timing   fleet.Timing // the mean of the candidates
	pressure float64      // the mean of the candidates where it is known; 1 if it is known for none
}

// typical returns the expected length of an answer to q, and the means over the candidates.
//
// Where holders serve many requests at once, their loads do not stay different for a whole answer. A router that reads
// load keeps holders within a number k of requests that does not grow with their load [Mitzenmacher, The Power of Two
// Choices, 2001]. In the time of an answer it sends each holder n new requests, where n is the number of requests that
// the holder has. So a difference of k is levelled in k/n of that time. A long conversation counts for many short ones,
// so k is not one or two.
func (m *marginal) typical(q *Query, c []Candidate) typical {
	t := typical{answer: m.answers.mean(q.Model, firstAnswer)}
	t.together = min(mostTogether, levelled/max(m.crowds.mean(q.Model, firstCrowd), 1))
	t.timing = meanTiming(c)
	t.pressure = meanPressure(c)
	return t
}

// meanPressure returns the pressure to assume where it is not known: a holder that was not used yet must not look
// worse than one that was.
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
		t := timing(&c[i])
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

// timing returns how long c's passes take.
func timing(c *Candidate) *fleet.Timing {
	if c.Load.Timing.Token > 0 {
		return &c.Load.Timing
	}
	return &fleet.DefaultTiming
}

// price sets the terms of c and its score, the negated sum.
func (m *marginal) price(q *Query, c *Candidate, usual *typical) {
	answer, together := usual.answer, usual.together
	l := &c.Load
	own, t := timing(c), &usual.timing
	prompt := float64(q.PromptTokens)
	n := max(prompt-m.reach(c), 1)
	requests := float64(l.Requests)
	context := float64(l.ContextTokens + l.OutputTokens)
	step := t.Step(l.Requests, l.ContextTokens+l.OutputTokens)
	compute := t.Token*n + t.Attention*n*(prompt-n/2)

	// The wait for the prompts before it, for the decodes in the same passes, and for the rest of the pass under way.
	wait := float64(l.Backlog) / 1e6 * (t.Token / own.Token)
	if wait == 0 {
		wait = t.Token * float64(l.PendingTokens)
	}
	wait += (step-t.Base)*float64(l.PendingTokens)/fleet.PassTokens + step/2
	memory := 0.0
	if share := shortage(c, n); share > 0 {
		memory = share * answer * step
	}

	// Requests that run there now slow a part of the answer, and are slowed by it for as long, at the machine's own
	// pace. All other terms are priced at the mean machine's pace. So two idle machines cost the same, and a slow
	// machine gets work in proportion to its pace, so that its cache is used.
	alone := answer * t.Base
	slowed := together * answer * (own.Context*context + own.Sequence*requests)
	slows := together * answer * (own.Context*prompt + own.Sequence)
	others := m.Externality * requests * (compute + slows)

	terms := &c.Terms
	terms[costWait] = wait
	terms[costMemory] = memory
	terms[costPrefill] = compute + step*max(1, n/fleet.PassTokens)
	terms[costTail] = m.Tail * max(wait+memory-float64(m.TailAfter)/1e6, 0)
	terms[costDecode] = alone + slowed
	terms[costOthers] = others
	pressure := usual.pressure
	if l.RoomKnown {
		pressure = l.Pressure()
	}
	pressure = max(pressure, leastPressure)
	terms[costEvict] = m.Eviction * pressure * compute * (1 + m.Externality*requests)
	c.Score = -(wait + memory + terms[costPrefill] + terms[costTail] + alone + slowed + others + terms[costEvict])
}

// reach returns the prompt tokens that c need not compute. Tokens on slower tiers count in part: reading them takes
// time, too.
func (m *marginal) reach(c *Candidate) float64 {
	tokens := float64(c.Kept())
	if c.Tier[block.TierGPU] == c.Match && m.weights[block.TierGPU] == 1 {
		return tokens
	}
	for t, n := range c.Tier {
		tokens -= (1 - m.weights[t]) * float64(n)
	}
	return tokens
}

// shortage returns the share of the requests at c that have to end before n more tokens fit into its memory.
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

// means are running means by model. Two models may share a slot, and then a mean, which makes their prices a little
// wrong.
type means struct {
	slots [32]atomic.Uint64 // the mean as float32, and how many values it is of
}

const (
	firstAnswer = 211 // tokens: the mean of the public trace azure2023_conv, used until answers were measured
	firstCrowd  = 1
	meanOver    = 256 // values: enough for a long tail, and few enough to follow a change of use
)

func (a *means) slot(model string) *atomic.Uint64 {
	h := uint32(2166136261)
	for i := range len(model) {
		h = (h ^ uint32(model[i])) * 16777619
	}
	return &a.slots[(h^h>>16)%uint32(len(a.slots))]
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
		mean, n := first, 1.0 // the assumption counts as one
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
