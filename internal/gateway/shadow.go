package gateway

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/policy"
)

// shadow asks the router's shadow policy about a sample of the requests, just before they are routed, and counts
// different choices. It changes no loads, no routes, and nothing that a policy learns.
type shadow struct {
	policy *policy.Policy // nil: there is none
	sample float64        // share of requests that the policy is asked about, 0 to 1
}

// SampleShadow sets the share of requests that the router's present shadow policy is asked about, 0 to 1.
func (g *Gateway) SampleShadow(share float64) { g.shadow.Store(&shadow{g.Router.Shadow(), share}) }

// wants reports whether the shadow policy needs the tokens of a request. Every request's tokens are found for it, not
// only those of the sampled requests, because the router reports every routed request to the shadow policy.
func (s *shadow) wants() bool { return s.policy != nil && s.policy.Matches() }

// wantsText reports whether the shadow policy needs the text of a request's prompt.
func (s *shadow) wantsText() bool { return s.policy != nil && s.policy.NeedsText() }

// asks reports whether to ask the shadow policy about a request that the policy decides routes.
func (s *shadow) asks(decides *policy.Policy) bool {
	return s.policy != nil && s.policy != decides && (s.sample >= 1 || rand.Float64() < s.sample)
}

// opinion is the shadow policy's decision about a request.
type opinion struct {
	holder fleet.Holder
	record telemetry.Shadow
}

// ask lets the shadow policy decide about a request that is about to be routed.
func (s *shadow) ask(ctx context.Context, p *prepared) opinion {
	began := time.Now()
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
