package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Spec is a policy as data.
type Spec struct {
	Name string
	// Filters are applied in order, after the common filter of all policies, which leaves out candidates that cannot serve
	// the request.
	Filters []Filter
	Scorers []Weighted
	Picker  string // "" is best

	// Chooser makes a chooser. The chooser decides among the candidates that passed the filters, in place of scorers and
	// picker. The function is called once for each policy that is built from the spec, so that each policy has a memory of
	// its own.
	Chooser func() Chooser
	Terms   []string // the names of the chooser's terms
	// Reasons has the policy's own words for the meaning of a branch. A branch without an entry has its general words.
	// If Reasons is nil, and the Chooser does not name the branch of a choice, words are used that fit any rule.
	Reasons map[Branch]string
	// NeedsMatches says that the Chooser reads matches, or the prompt's tokens and keys. NeedsText says that the Chooser
	// reads the prompt's text.
	NeedsMatches, NeedsText bool

	// Learns says what the Chooser's Routed reads of a prompt besides keys: peers that told this router of a request have
	// to tell this, too.
	Learns PromptForm

	// NeedsActive says that the policy reads Candidate.Active. This costs a lookup at each holder with a match.
	NeedsActive bool
	// NeedsAtRisk says that the policy reads Candidate.AtRisk. This costs a lookup at each holder with a match and with
	// requests under way.
	NeedsAtRisk bool

	// Reach says which holders of a large fleet become candidates. With ReachUnset, the reach follows from the chooser and
	// the picker.
	Reach Reach

	// Source is called once for each request, before the first decision about the request. Its answer becomes
	// Query.Cached. nil is no source.
	Source Source

	// Failed is told of each failure of a chooser that is a [Failer]. The program that builds the policy sets it; nil is
	// none. It must not wait.
	Failed func(call string, err error)

	// NeedsTarget makes the policy refuse requests that name no worker.
	NeedsTarget bool

	// TierWeights are the worth of a matched token by tier, 0 to 1, for the match scorer. If all are 0, the scorer uses
	// DefaultTierWeights.
	TierWeights [block.NumTiers]float64

	// ImbalanceTokens bounds how far a match is followed: see the package comment. 0 is no bound. If
	// there is a bound, and Filters has no filter [Balanced], this filter is added after Filters.
	ImbalanceTokens int

	// If Learned is not nil, matches come from the requests that the policy sent, and Learned says how long they count.
	// The router stores these matches for each model. If Learned is nil, matches come from the engines' events.
	Learned *Learned

	// SpeculativeTTL is how long a prompt that this policy dispatched counts as cached before events confirm it. 0
	// means the router's own setting; a negative value means not at all.
	SpeculativeTTL time.Duration
	// BlockSize is the number of tokens in a block of the index. BlockSize counts only if this is the router's default
	// policy and the router has no setting of its own. 0 leaves the size to the router.
	BlockSize int
}

// PromptForm is a form of a prompt.
type PromptForm uint8

// The forms. If the preferred form of a prompt is not known, the other one is meant.
const (
	FormNone   PromptForm = iota // neither text nor tokens
	FormText                     // the text, or else the tokens
	FormTokens                   // the tokens, or else the text
)

// Learned says how long a prompt counts as cached at the holder that it was sent to.
type Learned struct {
	TTL             time.Duration // the time after the last use; 0 is without end
	HolderTokens    int           // how many tokens are remembered for each holder, the most recently used; 0 is no limit
	MaxBlocks       int           // how many blocks are remembered in all; 0 is no limit if HolderTokens is set, else 2^20
	MaxPrefixTokens int           // how many tokens of a prompt are compared; 0 is all
}

// Weighted is a scorer and its weight.
type Weighted struct {
	Scorer string  `yaml:"scorer"`
	Weight float64 `yaml:"weight"` // > 0
}

// DefaultTierWeights are the worth of a matched token by tier if nothing was measured. The weight of host memory (CPU)
// is the weight that llm-d uses. It is close to the share of time that a reload over PCIe saves, compared with
// computing a long prefix. With the weights of disk and remote storage, a worker with the whole prefix there wins over
// a worker with nothing, but not over a worker with half of the prefix on the GPU.
var DefaultTierWeights = [block.NumTiers]float64{block.TierGPU: 1.0, block.TierCPU: 0.8, block.TierDisk: 0.3, block.TierRemote: 0.1}

// DefaultImbalanceTokens is the value of ImbalanceTokens for fleets where many conversations share a system prompt. It
// is the smallest default of vLLM and SGLang for the number of tokens in one step.
//
// With a smaller value, requests would leave a holder where they do not have to wait: no queue forms while the
// imbalance is less than one step. Such a request would give up its match for nothing. With a greater value, new
// conversations would go to busy workers, because resident context counts only a quarter as work: with 8,192, a new
// conversation would follow the shared system prompt to a worker that already runs 32,000 tokens of other requests,
// while other workers are idle. A conversation with a long match does not need a greater value, because the tokens that
// the match saves are added to the bound.
const DefaultImbalanceTokens = 2048

func (s *Spec) tierWeights() [block.NumTiers]float64 {
	if s.TierWeights == ([block.NumTiers]float64{}) {
		return DefaultTierWeights
	}
	return s.TierWeights
}

// Policy chooses. It is safe for concurrent use.
type Policy struct {
	spec      Spec
	filters   []Filter
	scorers   []weightedScorer
	picker    Picker
	chooser   Chooser // nil: scorers and picker decide
	terms     []string
	matches   bool // a scorer or the chooser reads matches
	ranks     bool // the picker takes the highest score
	tie       Tie  // if ranks: the picker's rule among candidates with the highest score
	reasons   map[Branch]string
	reach     Reach
	nominator Nominator // the chooser, if it nominates
	weighs    bool      // other terms than the match enter the score
}

type weightedScorer struct {
	scorer Scorer
	weight float64
}

// Build makes a policy from its spec. The error names all problems of the spec.
func Build(s Spec) (*Policy, error) {
	var errs []error
	if s.Name == "" {
		errs = append(errs, errors.New("name is missing"))
	}
	if s.ImbalanceTokens < 0 {
		errs = append(errs, fmt.Errorf("imbalance of %d tokens is negative", s.ImbalanceTokens))
	}
	for t, w := range s.TierWeights {
		if !(w >= 0 && w <= 1) {
			errs = append(errs, fmt.Errorf("tier weight %v of %s is not within 0..1", w, block.Tier(t)))
		}
	}
	p := &Policy{spec: s, filters: filtersOf(&s), picker: best{}, terms: slices.Clone(s.Terms), matches: s.NeedsMatches}
	if s.Chooser != nil {
		p.chooser = s.Chooser()
		if f, ok := p.chooser.(Failer); ok && s.Failed != nil {
			f.OnFailure(s.Failed)
		}
		if len(s.Scorers) > 0 || s.Picker != "" {
			errs = append(errs, errors.New("a chooser decides alone: leave out scorers and picker"))
		}
	}
	errs = append(errs, p.compose(&s)...)
	switch p.picker.(type) {
	case best:
		p.ranks, p.tie = true, TieWork
	case maxScore:
		p.ranks, p.tie = true, TieHash
	}
	p.nominator, _ = p.chooser.(Nominator)
	p.reach = p.reachOf(&s)
	p.reasons = reasonsOf(&s)
	p.weighs = p.chooser != nil || len(p.scorers) > 1
	if len(p.terms) > MaxTerms {
		errs = append(errs, fmt.Errorf("%d scorers or terms, at most %d", len(p.terms), MaxTerms))
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("build policy %q: %w", s.Name, errors.Join(errs...))
	}
	return p, nil
}

// compose finds the scorers and the picker that s names, and returns an error for each name that does not exist.
func (p *Policy) compose(s *Spec) (errs []error) {
	for _, w := range s.Scorers {
		f, ok := scorers[w.Scorer]
		if !ok {
			errs = append(errs, fmt.Errorf("no scorer is called %q (known: %v)", w.Scorer, known(scorers)))
			continue
		}
		if !(w.Weight > 0) {
			errs = append(errs, fmt.Errorf("weight %v of scorer %s is not above 0", w.Weight, w.Scorer))
		}
		p.scorers = append(p.scorers, weightedScorer{f(s), w.Weight})
		p.terms = append(p.terms, w.Scorer)
		p.matches = p.matches || w.Scorer == "match"
	}
	if s.Picker != "" {
		var ok bool
		if p.picker, ok = pickers[s.Picker]; !ok {
			errs = append(errs, fmt.Errorf("no picker is called %q (known: %v)", s.Picker, known(pickers)))
		}
	}
	return errs
}

func known[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Spec returns the spec of the policy. Another policy that is built from it decides alike, and has a memory of its own.
func (p *Policy) Spec() Spec { return p.spec }

// SpeculativeTTL returns how long a prompt that this policy dispatched counts as cached before events confirm it. 0
// means the router's own setting; a negative value means not at all.
func (p *Policy) SpeculativeTTL() time.Duration { return p.spec.SpeculativeTTL }

// Learned returns how the policy learns from its own decisions; nil if it uses the engines' announcements.
func (p *Policy) Learned() *Learned { return p.spec.Learned }

// Name returns the policy's name.
func (p *Policy) Name() string { return p.spec.Name }

// NeedsTarget reports whether the policy refuses requests that name no worker.
func (p *Policy) NeedsTarget() bool { return p.spec.NeedsTarget }

// Matches reports whether the policy reads matches. If it does not, it needs no tokens.
func (p *Policy) Matches() bool { return p.matches }

// Follows reports whether a match of the prompt can decide where a request goes: the policy reads matches, or the
// uncached tokens decide between candidates that are as good ([TieWork]).
func (p *Policy) Follows() bool { return p.matches || p.ranks && p.tie == TieWork }

// NeedsActive reports whether the policy reads Candidate.Active: the part of the prompt that requests under way also
// have.
func (p *Policy) NeedsActive() bool { return p.spec.NeedsActive }

// NeedsAtRisk reports whether the policy reads Candidate.AtRisk: the part of a match that may be evicted before the
// request is scheduled.
func (p *Policy) NeedsAtRisk() bool { return p.spec.NeedsAtRisk }

// NeedsText reports whether the policy reads the prompt's text.
func (p *Policy) NeedsText() bool { return p.spec.NeedsText }

// Learns returns what the policy learns from besides the keys of a prompt.
func (p *Policy) Learns() PromptForm { return p.spec.Learns }

// Terms returns the names of the terms of a candidate's Score, in the order of Candidate.Terms. They are the names of
// the scorers, or the names in [Spec].Terms.
func (p *Policy) Terms() []string { return p.terms }

// Routed reports to the policy that q is sent to c.
func (p *Policy) Routed(q *Query, c *Candidate) {
	if p.chooser != nil {
		p.chooser.Routed(q, c)
	}
}

// Finished reports to the policy how a request ended. Finished is called once for each call of Routed.
func (p *Policy) Finished(f *Finished) {
	if p.chooser != nil {
		p.chooser.Finished(f)
	}
}

// Forget drops what the policy remembers of a holder.
func (p *Policy) Forget(h fleet.Holder) {
	if p.chooser != nil {
		p.chooser.Forget(h)
	}
}

// Retire drops everything that the policy remembers of holders that will not come back: their ids may be given to other
// holders.
func (p *Policy) Retire(holders []fleet.Holder) {
	for _, h := range holders {
		p.Forget(h)
	}
	if r, ok := p.chooser.(Retirer); ok {
		r.Retire(holders)
	}
}

// Choice is a policy's decision. Choose also reorders the candidates: first the candidates that passed the filters,
// then the other candidates.
type Choice struct {
	Index  int // the index of the chosen candidate; -1 if no candidate was chosen
	Passed int // the number of candidates that passed the filters
	Branch Branch
	Reason string // the meaning of the branch, in the policy's words
	Ranked bool   // the highest score was taken; false: the picker or chooser has another rule
	Tie    Tie    // if Ranked: the rule among candidates with the highest score
}

// Choose filters, scores and picks. It reorders c and overwrites Score, Terms, Reason and Note. It allocates nothing.
func (p *Policy) Choose(q *Query, c []Candidate) Choice {
	choice := p.choose(q, c)
	if choice.Reason == "" {
		choice.Reason = p.reasonAmong(choice.Branch, c)
	}
	return choice
}

func (p *Policy) choose(q *Query, c []Candidate) Choice {
	for i := range c {
		c[i].Score, c[i].Terms, c[i].Reason, c[i].Note = 0, [MaxTerms]float64{}, "", ""
	}
	passed := len(c)
	for _, f := range p.filters {
		passed = f.Filter(q, c[:passed])
	}
	if passed == 0 {
		return Choice{Index: -1, Branch: BranchNone}
	}
	if p.chooser != nil {
		pick := p.chooser.Choose(q, c[:passed])
		choice := Choice{Index: pick.Index, Passed: passed, Branch: pick.Branch, Reason: pick.Reason, Ranked: pick.Ranked, Tie: pick.Tie}
		switch {
		case pick.Index < 0:
			choice.Branch, choice.Reason = BranchNone, ""
		case q.Target != "":
			choice.Branch, choice.Reason = BranchDirect, ""
		case pick.Branch == "":
			choice.Branch = p.branch(q, c, pick.Index)
			if p.reasons == nil {
				choice.Reason = ownRule[reasonKey(choice.Branch, c)]
			}
		}
		return choice
	}
	for term, s := range p.scorers {
		s.scorer.Score(q, c[:passed], s.weight)
		noteTerm(c[:passed], term)
	}
	picked := p.picker.Pick(q, c[:passed])
	return Choice{Index: picked, Passed: passed, Branch: p.branch(q, c, picked), Ranked: p.ranks, Tie: p.tie}
}

// noteTerm stores, as a term of each candidate, the part of the score that the last scorer added: the score less the
// terms that were stored before.
func noteTerm(c []Candidate, term int) {
	for i := range c {
		added := c[i].Score
		for _, t := range c[i].Terms[:term] {
			added -= t
		}
		c[i].Terms[term] = added
	}
}

// Why says in words why candidate i of c was chosen, not chosen, or left out. c must have the order in which Choose
// left it. Of q, only PromptTokens changes the result.
func (choice *Choice) Why(q *Query, c []Candidate, i int) string {
	if i == choice.Index {
		return choice.Reason
	}
	if c[i].Reason != "" {
		return c[i].Reason
	}
	if c[i].Note != "" {
		return c[i].Note
	}
	if choice.Index < 0 || !choice.Ranked {
		return "not picked"
	}
	chosen, other := &c[choice.Index], &c[i]
	if other.Score < chosen.Score {
		return "lower score"
	}
	_, reason := choice.Tie.decide(q, chosen, other)
	return reason
}
