package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/policy"
)

// shadow asks the router's shadow policy about a sample of the requests, just before these requests are routed, and
// records whether the shadow policy would choose another holder. shadow changes no loads, no routes, and nothing that a
// policy learns.
type shadow struct {
	policy *policy.Policy // nil: there is none
	sample float64        // share of the requests about which the policy is asked, 0 to 1
}

// SampleShadow sets the share of the requests about which the router's present shadow policy is asked, 0 to 1.
func (g *Gateway) SampleShadow(share float64) { g.shadow.Store(&shadow{g.Router.Shadow(), share}) }

// wants reports whether the shadow policy needs the tokens of a request. Then the tokens of all requests are found,
// not only those of the sampled requests, because the router reports every routed request to the shadow policy.
func (s *shadow) wants() bool { return s.policy != nil && s.policy.Matches() }

// wantsText reports whether the shadow policy needs the text of a request's prompt.
func (s *shadow) wantsText() bool { return s.policy != nil && s.policy.NeedsText() }

// asks reports whether to ask the shadow policy about a request. router is the policy that routes the request: if it is
// the shadow policy, there is nothing to compare.
func (s *shadow) asks(router *policy.Policy) bool {
	return s.policy != nil && s.policy != router && (s.sample >= 1 || rand.Float64() < s.sample)
}

// maxShadowLookups bounds the lookups under way for shadow policies. The external source in package discovery has the
// same bound for its own lookups.
const maxShadowLookups = 32

// errNoAnswer is the error of a shadow policy whose external source has not answered when the request is routed, or was
// not asked because of maxShadowLookups.
var errNoAnswer = errors.New("the external source of the shadow policy had not answered yet: the shadow made no decision")

// askForShadow asks the source of p's shadow, and never waits for a lookup. If the shadow reads matches, its source
// looks up the prompt: this is done in a goroutine of its own, and p.shadowAnswer gets the answer. The goroutine may
// outlive the request. The goroutine ends when the source answers (a [policy.Source] bounds this time); Serve waits for
// the goroutine.
func (g *Gateway) askForShadow(ctx context.Context, p *prepared) {
	source, prompt := p.shadow.policy.Source(), p.sure()
	switch {
	case source == nil:
		return
	case len(prompt) == 0 || !p.shadow.wants(): // there is nothing to look up, so the source answers from memory
		p.forShadow = source(ctx, nil)
		return
	}
	answer := make(chan []fleet.Cached, 1)
	p.shadowAnswer = answer
	if g.shadowLookups.Add(1) > maxShadowLookups {
		g.shadowLookups.Add(-1)
		return // too many lookups are under way: without an answer the shadow makes no decision
	}
	prompt, ctx = slices.Clone(prompt), context.WithoutCancel(ctx) // p is used again after the request
	g.lookingUp.Go(func() {
		defer g.shadowLookups.Add(-1)
		defer func() {
			if cause := recover(); cause != nil {
				g.Telemetry.Panicked()
				g.Log.Error("lookup for the shadow policy panicked", "cause", cause, "stack", string(debug.Stack()))
			}
		}()
		answer <- source(ctx, prompt)
	})
}

// answered reports whether p.forShadow is complete. It does not wait.
func (p *prepared) answered() bool {
	select {
	case p.forShadow = <-p.shadowAnswer:
		p.shadowAnswer = nil
	default:
	}
	return p.shadowAnswer == nil
}

// opinion is the shadow policy's decision about a request.
type opinion struct {
	holder fleet.Holder
	record telemetry.Shadow
}

// ask lets the shadow policy decide about a request that is about to be routed. While the lookup of the shadow's source
// is under way, there is no decision: a decision without the lookup's answer would not follow the policy's rule.
func (s *shadow) ask(ctx context.Context, p *prepared) opinion {
	began := time.Now()
	if !p.answered() {
		return opinion{holder: fleet.NoHolder, record: telemetry.Shadow{Policy: s.policy.Name(), Error: errNoAnswer.Error()}}
	}
	q := &p.route
	decides, cached := q.Policy, q.Cached
	q.Policy, q.Cached = s.policy.Name(), p.forShadow
	d, err := p.decisions.Explain(ctx)
	q.Policy, q.Cached = decides, cached
	o := opinion{holder: fleet.NoHolder, record: telemetry.Shadow{Policy: s.policy.Name()}}
	if err != nil {
		o.record.Error = err.Error()
	}
	if d != nil {
		if d.Worker != nil {
			o.holder = d.Holder
			o.record.Worker, o.record.Rank, o.record.Branch = d.Worker.URL, d.Rank, string(d.Branch)
			o.record.MatchTokens, o.record.PredictedTokens = d.MatchTokens, d.PredictedTokens
		}
		d.Recycle()
	}
	o.record.MS = milliseconds(time.Since(began))
	return o
}

// compareShadow records the differences between the shadow's opinion o and the decision d.
func (x *exchange) compareShadow(o *opinion, d *warmpath.Decision) {
	o.record.Agrees = o.holder == d.Holder
	o.record.Difference = o.record.PredictedTokens - d.PredictedTokens
	record := o.record
	x.rec.Shadow = &record
	x.g.Telemetry.Shadowed(&record)
}
