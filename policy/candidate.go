package policy

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Query is a request as policies see it.
type Query struct {
	PromptTokens int              // tokens of the prompt, estimated when they are not known; ≥ 0
	Known        bool             // the tokens are known; if not, no candidate has a match
	Target       string           // the one worker the client asked for, by URL or host:port; "" is any
	Rank         int              // the one data-parallel rank the client asked for; negative is any
	Exclude      []fleet.WorkerID // workers that were tried already
	MaxRequests  int              // requests a holder may have at once; 0 is no limit
	Turn         uint64           // how many requests for this model came before; round robin goes by it
	Random       uint64           // a uniformly random number

	Model   string  // the base model
	LoRA    string  // the adapter; "" is none
	Prompt  Prompt  // for policies that read more than matches
	Session Session // the conversation, when the client named one
	Tenant  string  // of the client; "" is not known
	Now     int64   // Unix nanoseconds

	Cached []Cached // the answer of the policy's Source, by ascending worker; nil is no answer
}

// Candidate is one holder that serves the request's model. The router fills in the facts; the policy sets Score,
// Terms and Reason.
type Candidate struct {
	Worker    *fleet.Worker
	Holder    fleet.Holder
	Rank      int // global data-parallel rank
	Hash      uint64
	Trust     fleet.Trust
	Available bool // a request may go there
	// Bar is the reason why it should get no request, BarNone when there is none. A suspect and a holder with useless
	// answers are available, but get requests only if no other holder can.
	Bar       fleet.Bar
	Withheld  float64 // the part of its share of requests that it does not get during slow start, 0 to 1
	Load      fleet.Load
	BlockSize int // tokens of an engine block there; Load.ContextBlocks counts such blocks

	Match     int                 // prompt tokens that confirmed blocks cover and the engine can use
	Tier      [block.NumTiers]int // Match by tier
	Predicted int                 // as Match, with speculative entries; ≥ Match
	Active    int                 // prompt tokens that requests under way there hold already; 0 without Spec.NeedsActive
	// AtRisk counts the last tokens of Predicted that are expected to be evicted before the request is scheduled; 0
	// without Spec.NeedsRisk.
	AtRisk int
	Full   int // prompt tokens that the groups with full attention alone would match; for explanation only

	Score  float64           // weighted sum of the scorers, set when the candidate passed the filters; higher is better
	Terms  [MaxTerms]float64 // the parts of Score in the order of [Policy.Terms]; for explanation
	Reason string            // why it was left out; "" when it passed the filters
}

// MaxTerms is how many terms a policy may name.
const MaxTerms = 8

// contextDivisor: a context token is a quarter of a prefill token. The package comment says why.
const contextDivisor = 4

// Work returns the load of the candidate in prompt tokens, as the package comment defines it.
func (c *Candidate) Work() int64 {
	return c.Load.PrefillTokens + c.Load.ContextBlocks*int64(max(c.BlockSize, 1))/contextDivisor
}

// Kept returns the prompt tokens that are expected to be cached when the request is scheduled.
func (c *Candidate) Kept() int { return c.Predicted - c.AtRisk }

// Uncached returns the prompt tokens that the candidate would have to compute for q.
func (c *Candidate) Uncached(q *Query) int64 {
	return int64(max(q.PromptTokens-c.Predicted, 0))
}

// lighter reports whether a goes before b among equals: less work, the request's own part included; then fewer turns;
// then fewer requests so far; then the hash.
func lighter(q *Query, a, b *Candidate) bool {
	if wa, wb := a.Work()+a.Uncached(q), b.Work()+b.Uncached(q); wa != wb {
		return wa < wb
	}
	if a.Load.Turns != b.Load.Turns {
		return a.Load.Turns < b.Load.Turns
	}
	if a.Load.Processed != b.Load.Processed {
		return a.Load.Processed < b.Load.Processed
	}
	return block.Mix64(a.Hash^q.Random) < block.Mix64(b.Hash^q.Random)
}
