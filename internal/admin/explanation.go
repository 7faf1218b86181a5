package admin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/policy"
)

// Explanations is the answer of /admin/explain when several policies are asked.
type Explanations struct {
	Policies []*Explanation `json:"policies"` // in the requested order, all for the same moment
	Agree    bool           `json:"agree"`    // all chose the same holder
}

// Explanation is the answer of /admin/explain.
type Explanation struct {
	Model           string  `json:"model"`
	AskedModel      string  `json:"asked_model,omitempty"` // the name in the request, if another model takes it
	Base            string  `json:"base"`
	LoRA            string  `json:"lora,omitempty"`
	Policy          string  `json:"policy"`
	Branch          string  `json:"branch"`
	Reason          string  `json:"reason"`
	Summary         string  `json:"summary"`          // the decision in one line
	Worker          string  `json:"worker,omitempty"` // absent if no worker could be chosen; error says why
	Rank            int     `json:"rank"`
	Trust           string  `json:"trust"` // of the match; at most approximate if the match is an estimate
	TokenSource     string  `json:"token_source"`
	TokensMissing   string  `json:"tokens_missing,omitempty"` // why there are no ids, if token_source is text
	TokenOrigin     string  `json:"token_origin"`             // token_source in words, and the source of the model's ids
	TokenWaitMS     float64 `json:"token_wait_ms"`
	PromptTokens    int     `json:"prompt_tokens"`
	TokensKnown     bool    `json:"tokens_known"` // if not, prompt_tokens is an estimate and nothing is confirmed
	BlockSize       int     `json:"block_size"`
	MatchTokens     int     `json:"match_tokens"`
	PredictedTokens int     `json:"predicted_tokens"`
	// AtRiskTokens is the number of matched tokens that are expected to be evicted before the request is scheduled.
	AtRiskTokens int `json:"at_risk_tokens,omitempty"`
	// ChangingLine: the prompt has the line that Claude Code changes with every request. The chosen worker's engine leaves
	// it out (dropped), or cannot use its cache behind it (rendered).
	ChangingLine string `json:"changing_line,omitempty"`
	Error        string `json:"error,omitempty"`
	// Best is the candidate with the longest predicted match if it was not chosen, with the reason. It is absent if that
	// candidate was chosen, if the chosen candidate's match is equally long, or if no candidate has a match.
	Best *Best `json:"best_match,omitempty"`
	// Terms are the names of the scores' terms, in order. SessionSource is the header or field that named the session.
	Terms         []string    `json:"terms"`
	SessionSource string      `json:"session_source,omitempty"`
	Tenant        string      `json:"tenant,omitempty"`
	ServiceLevels []string    `json:"service_levels"` // the levels of the request, such as 5s/100ms
	Queued        bool        `json:"queued"`         // the request would first wait in the queue
	Candidates    []Candidate `json:"candidates"`     // candidates that no filter left out come first
	// Division says whether the prompt is computed at another worker, and why; absent if no workers exchange KV blocks. If
	// it is, Prefill is the decision about that worker. The other fields are about the worker that generates the answer.
	Division *Division `json:"division,omitempty"`
	Prefill  *Leg      `json:"prefill,omitempty"`
	// Fetch says which tokens the worker reads from another worker's cache before it computes the rest; absent if none.
	Fetch *Fetch `json:"fetch,omitempty"`
}

// Division says whether a request is divided between two workers, and why.
type Division struct {
	Divided bool   `json:"divided"`
	Bypass  string `json:"bypass,omitempty"` // why not, in one word
	Why     string `json:"why"`
	// Predicted are the milliseconds of both ways; absent if they were not compared.
	Predicted *telemetry.Division `json:"predicted,omitempty"`
	// TransferTokens is the number of prompt tokens whose KV blocks are sent over the Link.
	TransferTokens int   `json:"transfer_tokens,omitempty"`
	Link           *Link `json:"link,omitempty"`
}

// Link is how long KV blocks take from one worker to another.
type Link struct {
	From string `json:"from"`
	To   string `json:"to"`
	// A transfer of n tokens takes BaseMS + n · TokenMS.
	BaseMS  float64 `json:"base_ms"`
	TokenMS float64 `json:"token_ms"`
	// Samples is the number of measured transfers of this pair. 0: the times are those of other pairs at the same
	// distance, or are assumed.
	Samples int `json:"samples"`
	// AloneUntil is the time until which the pair gets no transfers, because several failed in a row.
	AloneUntil *time.Time `json:"alone_until,omitempty"`
}

// Leg is the decision about the worker that computes the prompt.
type Leg struct {
	Policy          string      `json:"policy"`
	Branch          string      `json:"branch"`
	Reason          string      `json:"reason"`
	Worker          string      `json:"worker"`
	Rank            int         `json:"rank"`
	Trust           string      `json:"trust"`
	MatchTokens     int         `json:"match_tokens"`
	PredictedTokens int         `json:"predicted_tokens"`
	Terms           []string    `json:"terms"`
	Candidates      []Candidate `json:"candidates"`
}

// Fetch says which tokens of a prompt come from another worker's cache.
type Fetch struct {
	From   string  `json:"from"`
	Tokens int     `json:"tokens"`
	MS     float64 `json:"ms"` // the predicted time
	Link   *Link   `json:"link"`
}

// Best is a holder with a longer match than the chosen holder.
type Best struct {
	Worker          string `json:"worker"`
	Rank            int    `json:"rank"`
	PredictedTokens int    `json:"predicted_tokens"`
	WhyNot          string `json:"why_not"`
}

// Candidate is one holder that serves the model.
type Candidate struct {
	Worker          string         `json:"worker"`
	Rank            int            `json:"rank"`
	Chosen          bool           `json:"chosen"`
	Why             string         `json:"why"`              // why the holder was chosen, not chosen or left out
	MatchTokens     int            `json:"match_tokens"`     // confirmed, and usable by the engine
	Tiers           map[string]int `json:"tiers"`            // match_tokens by tier
	PredictedTokens int            `json:"predicted_tokens"` // confirmed and expected tokens, without tokens at risk
	AtRiskTokens    int            `json:"at_risk_tokens,omitempty"`
	FullTokens      int            `json:"full_tokens"`     // the match if only the layers with full attention counted
	UncachedTokens  int            `json:"uncached_tokens"` // prompt tokens that the engine would compute
	Trust           string         `json:"trust"`           // of the holder's cache, as in /admin/workers
	TrustReason     string         `json:"trust_reason"`
	Load            Load           `json:"load"`
	// Pace is the time of the holder's passes, divided by the time of the passes of the median holder of its kind.
	Pace  fleet.Pace `json:"pace"`
	Score float64    `json:"score"`
	// Terms are the terms of the score, by name; absent if a filter left the candidate out.
	Terms   map[string]float64 `json:"terms,omitempty"`
	LeftOut string             `json:"left_out,omitempty"` // the filter's reason
	// FetchedTokens are prompt tokens that would come from the worker FetchedFrom, in TransferMS milliseconds. In a decode
	// leg FetchedFrom is the worker that computes the prompt.
	FetchedTokens int     `json:"fetched_tokens,omitempty"`
	FetchedFrom   string  `json:"fetched_from,omitempty"`
	TransferMS    float64 `json:"transfer_ms,omitempty"`
}

// explanation returns the answer for a decision. origin is the result of originOf. decided are the last decisions,
// newest first.
func explanation(e *gateway.Explanation, s *fleet.Snapshot, origin string, decided []telemetry.Record) *Explanation {
	r := &e.Record
	sayWhyUnknown(r, s)
	if r.Prefill != nil {
		sayWhyUnknown(r.Prefill, s)
	}
	out := &Explanation{
		Model: r.Model, AskedModel: e.AskedModel, Base: r.Base, LoRA: r.LoRA, Policy: r.Policy, Branch: string(r.Branch), Reason: r.Reason, Summary: r.String(),
		Rank: r.Rank, Trust: r.Trust.String(), TokenSource: string(e.TokenSource), TokensMissing: string(e.TokensMissing),
		TokenOrigin: origin, TokenWaitMS: float64(e.Waited.Microseconds()) / 1000,
		PromptTokens: r.PromptTokens, TokensKnown: r.TokensKnown, BlockSize: r.BlockSize,
		MatchTokens: r.MatchTokens, PredictedTokens: r.PredictedTokens, AtRiskTokens: r.AtRiskTokens, Candidates: []Candidate{}, ServiceLevels: []string{},
		Best: bestOf(r), Terms: append([]string{}, r.Terms...), SessionSource: e.Session.Source, Tenant: e.Tenant, Queued: e.Queued,
		ChangingLine: e.ChangingLine,
	}
	for _, l := range e.Levels {
		out.ServiceLevels = append(out.ServiceLevels, l.String())
	}
	if r.Worker != nil {
		out.Worker = r.Worker.URL
	}
	if e.Err != nil {
		out.Error = e.Err.Error()
	}
	out.Candidates = candidatesOf(r, e, s, decided)
	for i := range out.Candidates {
		if c := &out.Candidates[i]; out.Best != nil && out.Best.Worker == c.Worker && out.Best.Rank == c.Rank {
			out.Best.WhyNot = c.Why
		}
	}
	out.explainLegs(e, s, decided)
	return out
}

// sayWhyUnknown adds to the reason of a miss why the router knows no cache: the reason of the trust in the chosen
// holder. A policy, which allocates nothing, cannot put the two together.
func sayWhyUnknown(r *warmpath.Record, s *fleet.Snapshot) {
	by, unknown := strings.CutPrefix(r.Reason, policy.ReasonUnknown)
	if !unknown || r.Chosen < 0 {
		return
	}
	_, why := s.Trust(r.Holder)
	r.Reason = policy.ReasonUnknown + ", because " + why + by
}

// candidatesOf returns the candidates of r, which is the record of e or of its prefill leg.
func candidatesOf(r *warmpath.Record, e *gateway.Explanation, s *fleet.Snapshot, decided []telemetry.Record) []Candidate {
	list := []Candidate{}
	for i := range r.Candidates {
		c := candidate(&r.Candidates[i], r.PromptTokens)
		c.Chosen, c.Why = i == r.Chosen, r.Why(i)
		if c.LeftOut == policy.ReasonUnavailable {
			c.Why = unavailable(s, &r.Candidates[i])
		}
		if c.LeftOut == policy.ReasonLimited {
			c.LeftOut = limited(s, e, r.Candidates[i].Holder)
			c.Why = strings.ReplaceAll(c.Why, policy.ReasonLimited, c.LeftOut)
		}
		if c.LeftOut == policy.ReasonUseless {
			c.Why += lastFailure(decided, c.Worker)
		}
		_, c.TrustReason = s.Trust(r.Candidates[i].Holder)
		c.Pace = s.Pace(r.Candidates[i].Holder)
		if c.LeftOut == "" {
			c.Terms = termsOf(r, &r.Candidates[i])
		}
		list = append(list, c)
	}
	return list
}

// explainLegs adds whether the request is divided, and which tokens come from another worker.
func (out *Explanation) explainLegs(e *gateway.Explanation, s *fleet.Snapshot, decided []telemetry.Record) {
	r := &e.Record
	if r.Source != nil && r.Chosen >= 0 {
		out.Fetch = &Fetch{From: r.Source.URL, Tokens: r.Fetched, MS: r.Candidates[r.Chosen].Transfer, Link: linkOf(s, r.Source, r.Worker)}
	}
	n := &r.Division
	if !n.Considered {
		return
	}
	out.Division = &Division{Divided: r.Prefill != nil, Bypass: string(n.Bypass), Why: n.Bypass.Reason(), Predicted: gateway.DivisionOf(n)}
	first := r.Prefill
	if first == nil {
		return
	}
	switch {
	case out.Division.Predicted == nil: // nothing was compared
		out.Division.Why = "no worker of the model serves whole requests"
	case n.Whole <= n.Prefill+n.Decode:
		out.Division.Why = "the mode is always"
	default:
		out.Division.Why = "prefill, transfer and decode at two workers cost less than one worker"
	}
	out.Division.TransferTokens, out.Division.Link = n.Tokens, linkOf(s, first.Worker, r.Worker)
	out.Prefill = &Leg{
		Policy: first.Policy, Branch: string(first.Branch), Reason: first.Reason, Worker: first.Worker.URL, Rank: first.Rank, Trust: first.Trust.String(),
		MatchTokens: first.MatchTokens, PredictedTokens: first.PredictedTokens, Terms: append([]string{}, first.Terms...), Candidates: candidatesOf(first, e, s, decided),
	}
}

// linkOf returns what the router knows about the link between two workers.
func linkOf(s *fleet.Snapshot, from, to *fleet.Worker) *Link {
	l := s.Link(from, to)
	out := &Link{From: from.URL, To: to.URL, BaseMS: l.Base, TokenMS: l.Token, Samples: l.Samples}
	if !l.Rested(time.Now().UnixNano()) {
		at := time.Unix(0, l.AloneUntil).UTC()
		out.AloneUntil = &at
	}
	return out
}

// lastFailure says how the last request that failed at the worker failed there. It returns "" if no remembered
// decision has such a failure. decided has the newest decision first.
func lastFailure(decided []telemetry.Record, worker string) string {
	for i := range decided {
		for _, failed := range decided[i].Failed {
			if how, ok := strings.CutPrefix(failed, worker+": "); ok {
				return "; its last failure: " + how
			}
		}
	}
	return ""
}

// unavailable says why a holder cannot get requests.
func unavailable(s *fleet.Snapshot, c *policy.Candidate) string {
	i := slices.IndexFunc(s.Workers(), func(w *fleet.Worker) bool { return w.ID == c.Worker.ID })
	if i >= 0 && s.Workers()[i].Why != "" {
		return policy.ReasonUnavailable + ": " + s.Workers()[i].Why
	}
	if s.BlockedUntil(c.Holder) != 0 {
		return policy.ReasonUnavailable + ": several connections in a row failed, so its breaker keeps requests away"
	}
	return policy.ReasonUnavailable
}

// limited says for how long a holder that answered 429 gets no requests of the tenant.
func limited(s *fleet.Snapshot, e *gateway.Explanation, h fleet.Holder) string {
	now := time.Now().UnixNano()
	until := s.LimitedUntil(h, e.Tenant, now)
	if until == 0 {
		return policy.ReasonLimited // the pause is over
	}
	return fmt.Sprintf("answered 429: gets no requests for another %d s", (until-now+int64(time.Second)-1)/int64(time.Second))
}

// bestOf returns the candidate with the longest match. It returns nil if the chosen candidate has an equally long
// match.
func bestOf(r *warmpath.Record) *Best {
	best := -1
	for i := range r.Candidates {
		if n := r.Candidates[i].Kept(); n > 0 && (best < 0 || n > r.Candidates[best].Kept()) {
			best = i
		}
	}
	if best < 0 || best == r.Chosen || r.Chosen >= 0 && r.Candidates[r.Chosen].Kept() == r.Candidates[best].Kept() {
		return nil
	}
	c := &r.Candidates[best]
	return &Best{c.Worker.URL, c.Rank, c.Kept(), r.Why(best)}
}

// termsOf returns the terms of the score of c by name.
func termsOf(r *warmpath.Record, c *policy.Candidate) map[string]float64 {
	terms := map[string]float64{}
	for i, name := range r.Terms {
		terms[name] += c.Terms[i] // a scorer may be listed twice
	}
	return terms
}

func candidate(c *policy.Candidate, prompt int) Candidate {
	tiers := map[string]int{}
	for t, n := range c.Tier {
		if n > 0 {
			tiers[block.Tier(t).String()] = n
		}
	}
	out := Candidate{
		Worker: c.Worker.URL, Rank: c.Rank, MatchTokens: c.Match, Tiers: tiers, PredictedTokens: c.Kept(), AtRiskTokens: c.AtRisk,
		FullTokens: c.Full, UncachedTokens: max(prompt-c.Kept()-c.Fetched, 0), Trust: c.Trust.String(), Load: loadOf(c.Load),
		Score: c.Score, LeftOut: c.Reason, FetchedTokens: c.Fetched, TransferMS: c.Transfer,
	}
	if c.Source != nil {
		out.FetchedFrom = c.Source.URL
	}
	return out
}
