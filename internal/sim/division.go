package sim

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/policy"
)

// Disaggregation says which requests are divided, and how workers exchange KV blocks. The exchange is modelled on
// vLLM's NIXL connector, in which the decode engine reads the blocks after the prefill leg has ended.
type Disaggregation struct {
	warmpath.Legs
	// Rule, if it has a name, decides in place of Legs.Mode which requests are divided.
	Rule Rule
	// LinkGBs is how fast a worker sends KV blocks, and how fast it receives them, in GB/s. 0: as in the profile.
	LinkGBs float64
	// Fetch lets a worker read the beginning of a prompt from another worker before it computes the rest.
	Fetch bool
}

// String returns the name of the mode or of the rule.
func (d *Disaggregation) String() string {
	if d.Rule.Name != "" {
		return d.Rule.Name
	}
	return d.Mode.String()
}

// Rule is the rule by which another project divides requests. The workers of the legs are chosen by the router's
// policies, so that only the rules are compared.
type Rule struct {
	Name string
	// Tokens is the number of prompt tokens that the worker of a whole request would have to compute, from which on the
	// request is divided.
	Tokens int
	// Ratio is the share of the prompt, 0 to 1, that these tokens must not exceed in a request that is not divided. 0:
	// no limit.
	Ratio float64
}

// ParseRule returns the rule that s describes. ok is false if s is no rule.
//
//   - llm-d:TOKENS is the prefix-based-pd-decider of llm-d's scheduler with nonCachedTokens: a request is divided if
//     so many of its tokens are not cached at the decode worker. The decider has no usable default, because 0 turns it
//     off.
//   - dynamo is the policy isl_bounding of Dynamo's conditional disaggregation with its defaults: a request is not
//     divided if at most 2,048 tokens and at most 70 % of its prompt are not cached at the decode worker.
func ParseRule(s string) (r Rule, ok bool, err error) {
	name, tokens, _ := strings.Cut(s, ":")
	switch name {
	case "llm-d":
		n, err := strconv.Atoi(tokens)
		if err != nil || n < 1 {
			return r, true, fmt.Errorf("rule %q: write llm-d:TOKENS with the uncached tokens from which a request is divided, such as llm-d:512", s)
		}
		return Rule{Name: s, Tokens: n}, true, nil
	case "dynamo":
		if tokens != "" {
			return r, true, fmt.Errorf("rule %q: dynamo has no parameter", s)
		}
		return Rule{Name: s, Tokens: 2049, Ratio: 0.7}, true, nil
	}
	return r, false, nil
}

// divides reports whether the rule divides a request, of which so many tokens are not cached at the decode worker.
func (r *Rule) divides(prompt, uncached int) bool {
	if uncached >= r.Tokens {
		return true
	}
	return r.Ratio > 0 && float64(uncached) > r.Ratio*float64(prompt)
}

// parseDivision reads the name of a mode or a rule.
func parseDivision(s string) (mode policy.Mode, rule Rule, err error) {
	if rule, ok, err := ParseRule(s); ok {
		return mode, rule, err
	}
	if mode, err = policy.ParseMode(s); err != nil {
		err = fmt.Errorf("disaggregation %q is none of auto, always, never, llm-d:TOKENS, dynamo", s)
	}
	return mode, rule, err
}

// obey makes req a request for one worker if the rule says so. The rule looks at the worker that would serve the whole
// request.
func (r *Rule) obey(req *warmpath.Request, router *warmpath.Router) {
	whole := *req
	whole.Undivided = policy.BypassRequest
	d, err := router.Explain(context.Background(), &whole)
	if err == nil && !r.divides(d.PromptTokens, d.PromptTokens-d.PredictedTokens) {
		req.Undivided = policy.BypassRequest
	}
	if d != nil {
		d.Recycle()
	}
}

// linkSpeed returns the speed of a worker's link in each direction, in bytes per nanosecond, which are GB/s.
func (d *Disaggregation) linkSpeed(g *Group) float64 {
	if d.LinkGBs > 0 {
		return d.LinkGBs
	}
	return g.Profile.HandoverGBs
}

func (d *Disaggregation) assumptions(g *Group) []string {
	how := "divided by the router's mode " + d.Mode.String()
	if d.Rule.Name != "" {
		how = "divided by the rule " + d.Rule.Name + ", and the router chooses the workers"
	}
	all := []string{
		fmt.Sprintf("Requests are %s. A decode worker reads the KV blocks after the prefill leg has ended, and the prefill worker keeps them until then, but at most %v if the decode worker has no memory for them: one worker serves the request after that.", how, lease),
		fmt.Sprintf("Each worker sends and receives at most %g GB/s, which its transfers share; %g KB for each token. A transfer has no other delay.", d.linkSpeed(g), g.Profile.KVBytes/1000),
	}
	if d.Fetch {
		all = append(all, "A worker may read the beginning of a prompt from another worker's cache before it computes the rest.")
	}
	return all
}
