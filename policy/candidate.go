package policy

import (
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Query is a request as policies see it.
type Query struct {
	PromptTokens int              // the number of tokens of the prompt, estimated if they are not known; ≥ 0
	Known        bool             // the tokens are known; if not, no candidate has a match
	Target       string           // the worker that the client asked for, by URL or host:port; "" is any
	Rank         int              // the data-parallel rank that the client asked for; negative is any
	Exclude      []fleet.WorkerID // workers that were tried already
	MaxRequests  int              // the greatest number of requests of a holder; 0 is no limit
	Turn         uint64           // the number of requests for this model so far, by which round robin chooses
	Random       uint64           // a uniformly random number

	Model   string  // the base model
	LoRA    string  // the adapter; "" is none
	Prompt  Prompt  // the prompt itself, for policies that read more than matches
	Session Session // the conversation, if the client named one
	Tenant  string  // the client's tenant; "" is not known
	Now     int64   // Unix nanoseconds
	// Age is how long before Now the request was placed. It is 0, unless Routed is told of a request of another router
	// of which this router hears late. What a policy learns from such a request is that old.
	Age time.Duration

	Levels   []fleet.ServiceLevel // the service levels of the request
	Arrived  int64                // when the request arrived, Unix nanoseconds; 0 is Now
	Class    uint64               // requests of one class have prompts with the same beginning; 0 is none
	Requests Requests             // the requests under way at each holder; nil if they are not known

	Cached []fleet.Cached // the answer of the policy's Source, by ascending worker; nil is no answer

	// Leg is the part of the request that the chosen candidate will serve. Before a decode leg comes the prefill leg,
	// which is predicted to end after Prefilled milliseconds.
	Leg       fleet.Leg
	Prefilled float64
}

// Requests knows the requests under way at each holder. A *fleet.Snapshot implements it.
type Requests interface {
	// AppendUnderway appends the requests under way at h that have service levels, as they are at now (Unix
	// nanoseconds). If there are more than most, it appends only every second one, every third one and so on, and
	// returns which. It may take a lock for a short time. It is called concurrently.
	AppendUnderway(dst []fleet.Underway, h fleet.Holder, now int64, most int) (list []fleet.Underway, every int)
}

// Candidate is one holder that serves the request's model. The router fills in the facts; the policy sets Score,
// Terms, Reason and Note.
type Candidate struct {
	Worker    *fleet.Worker
	Holder    fleet.Holder
	Rank      int         // global data-parallel rank
	Hash      uint64      // a hash of the worker's URL and the rank, for choices that every router makes alike
	Trust     fleet.Trust // how well the router knows the holder's cache
	Available bool        // the holder can take a request
	// Bar is the reason why the holder should get no request; BarNone means that there is no reason. With BarSuspect or
	// BarUseless the holder is available, but it gets only requests that no other holder can take.
	Bar       fleet.Bar
	Withheld  float64    // the part of its usual requests that the holder does not get because of slow start, 0 to 1
	Load      fleet.Load // the holder's unfinished work, with the work of other routers as far as it is known
	BlockSize int        // tokens of a block of the holder's engine; Load.ContextBlocks counts such blocks

	Match     int                 // prompt tokens in confirmed blocks of the holder that its engine can use
	Tier      [block.NumTiers]int // Match by tier
	Predicted int                 // Match, or more if a longer part of the prompt was sent to the holder before
	Active    int                 // prompt tokens that requests under way at the holder also have; 0 without Spec.NeedsActive
	// AtRisk is how many tokens at the end of Predicted are expected to be evicted before the request is scheduled. It
	// is 0 without Spec.NeedsAtRisk.
	AtRisk int
	Full   int // prompt tokens that would match if the model had only groups with full attention; for explanation only

	// Fetched is how many tokens beyond Kept come from Source, another worker, before the holder computes the rest.
	// SourceRank is the rank there that has them. In a decode leg Source is the worker of the prefill leg, and all other
	// tokens come from there. Transfer is the predicted time in milliseconds until these blocks are there. Unpaired says
	// why Source cannot send to the holder; "" if it can.
	Fetched    int
	Source     *fleet.Worker
	SourceRank int
	Transfer   float64
	Unpaired   string

	Score  float64           // set by the scorers or the chooser, if the candidate passed the filters; higher is better
	Terms  [MaxTerms]float64 // the parts of Score in the order of [Policy.Terms]; for explanation
	Reason string            // why the candidate was left out; "" if it passed the filters
	Note   string            // why the candidate was not chosen although its Score is higher; "" if Score decided
}

// MaxTerms is the greatest number of terms of a policy.
const MaxTerms = 8

// contextDivisor says how many context tokens count as much work as one prefill token. The package comment says why.
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
