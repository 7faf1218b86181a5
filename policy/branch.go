package policy

// Branch is the rule that decided, in one word. Metrics count decisions by branch.
type Branch string

const (
	BranchAffinity    Branch = "affinity"     // the holder with the best match, weighted by tier, was taken
	BranchMiss        Branch = "miss"         // no candidate has a match
	BranchShort       Branch = "short"        // the longest match is too short to be followed
	BranchFallback    Branch = "fallback"     // the holder with the longest match cannot be used now: the next best was taken
	BranchSpill       Branch = "spill"        // load outweighs the longest match
	BranchDirect      Branch = "direct"       // the client named the worker
	BranchNoTokens    Branch = "no_tokens"    // the prompt's tokens are not known, so there are no matches
	BranchDraw        Branch = "draw"         // the holder was drawn at random, and is not the best one
	BranchSilent      Branch = "silent"       // the external source knows nothing about the candidates
	BranchSession     Branch = "session"      // the session's worker was taken
	BranchPlaced      Branch = "placed"       // a new session was given a worker
	BranchMoved       Branch = "moved"        // the session's worker cannot be used now: another worker was taken
	BranchNoKey       Branch = "no_key"       // the request names no session
	BranchPrefix      Branch = "prefix"       // the worker for prompts with this beginning was taken
	BranchOverflow    Branch = "overflow"     // the worker for this beginning has too much load: the next worker was taken
	BranchBucket      Branch = "bucket"       // the worker for prompts of this length was taken
	BranchBalance     Branch = "balance"      // the loads of the workers differ too much: load alone decided
	BranchMatchUnused Branch = "match_unused" // the policy does not look at matches
	BranchScript      Branch = "script"       // a script decided, or left the choice to the default policy
	BranchBroken      Branch = "broken"       // a script failed: the default policy decided
	BranchNone        Branch = "none"         // no candidate can be used
)

// missAtRisk is a key of reasons, not a branch. It is for a miss where a worker has a part of the prompt, but the whole
// part is expected to be evicted before the request is scheduled.
const missAtRisk Branch = "miss at risk"

// missUnknown is a key of reasons, not a branch. It is for a miss where no candidate's cache is known, so that the miss
// says nothing about what the workers have.
const missUnknown Branch = "miss unknown"

// reasons has the general meaning of each branch, in the words of kv_aware. A [Spec] may have its own words.
var reasons = map[Branch]string{
	BranchAffinity:    "longest match, least work among equals",
	BranchMiss:        "no worker has a part of the prompt: least load",
	missAtRisk:        allAtRisk + "least load",
	missUnknown:       ReasonUnknown + ": least load",
	BranchShort:       "no worker has enough of the prompt to follow it: least load",
	BranchFallback:    "the holder of the longest match cannot be used: next best match, least work among equals",
	BranchSpill:       "the load of the holder of the longest match outweighs what the match saves",
	BranchDirect:      "the client asked for this worker",
	BranchNoTokens:    "tokens are not known: least load",
	BranchDraw:        "drawn at random: more likely the better it is, and not the best this time",
	BranchSilent:      "nothing is known of what the policy asks for: its fallback",
	BranchSession:     "the session belongs to this worker",
	BranchPlaced:      "the session is new and was given this worker",
	BranchMoved:       "the session's worker cannot be used: another one",
	BranchNoKey:       "the request names no session",
	BranchPrefix:      "prompts that begin so belong to this worker",
	BranchOverflow:    "the worker that the prompt belongs to has more than its share of the load: the next one",
	BranchBucket:      "prompts of this length belong to this worker",
	BranchBalance:     "loads are too far apart: the least load",
	BranchMatchUnused: "the policy does not look at matches",
	BranchScript:      "the script's choice",
	BranchBroken:      "the script failed: the default policy decided",
	BranchNone:        "no worker can be used",
}

// allAtRisk is the beginning of the reason for missAtRisk.
const allAtRisk = "what workers have of the prompt is expected to be evicted before it is scheduled: "

// ReasonUnknown is the beginning of the reason of a miss where no candidate has trust, before a colon.
const ReasonUnknown = "the caches are not known"

// Reason returns the general meaning of the branch in words. The Reason of a [Choice] describes the same branch in the
// words of the policy that chose.
func (b Branch) Reason() string { return reasons[b] }

// branch returns the rule that led to the choice.
func (p *Policy) branch(q *Query, c []Candidate, picked int) Branch {
	switch {
	case q.Target != "":
		return BranchDirect
	case !p.matches:
		return BranchMatchUnused
	case !q.Known:
		return BranchNoTokens
	}
	// If a filter left out a candidate with a longer match, this explains the choice better than the chosen match.
	longest, why, outweighed := c[picked].Kept(), "", false
	for i := range c {
		switch r := c[i].Reason; {
		case r == "":
			outweighed = outweighed || (c[i].Kept() > c[picked].Kept() && (p.weighs || c[picked].Kept() == 0))
		case r != ReasonNotRank && c[i].Kept() > longest:
			longest, why = c[i].Kept(), r
		}
	}
	switch {
	case why == reasonImbalance:
		return BranchSpill
	case why != "":
		return BranchFallback
	case outweighed:
		return BranchSpill
	case c[picked].Kept() > 0:
		return BranchAffinity
	}
	return BranchMiss
}
