package gateway

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/policy"
)

// Explanation is the decision for a request that is not sent.
type Explanation struct {
	Record      warmpath.Record
	Session     policy.Session
	Tenant      string
	Levels      []fleet.ServiceLevel // the service levels of the request; not to be changed
	TokenSource tokens.Outcome
	// TokensMissing is the reason why there are no ids; set when TokenSource is text.
	TokensMissing tokens.Outcome
	TokensFound   int
	ChangingLine  string        // of the chosen worker, as in telemetry.Record
	Waited        time.Duration // time that the request waited for its tokens
	Queued        bool          // the request would first wait in the queue
	Err           error         // the reason why no worker could be chosen; nil when one was chosen
}

// Explain decides where body would be sent. It reserves nothing, and sends the request to no worker. Each of the named
// policies decides, at the same moment and with the same random number. Without names, the policy that would decide the
// real request decides. An error is ready for api.WriteError.
func (g *Gateway) Explain(ctx context.Context, d api.Dialect, body []byte, h http.Header, names ...string) ([]*Explanation, error) {
	p := prepared{explains: true}
	if err := g.prepare(ctx, &p, d, d.Path(), body, h); err != nil {
		return nil, err
	}
	defer p.reset()
	if len(names) == 0 {
		names = []string{p.route.Policy}
	}
	p.route.Now, p.route.Random = time.Now().UnixNano(), rand.Uint64()
	var all []*Explanation
	for _, name := range names {
		p.route.Policy = name
		if decides, err := g.Router.Policy(name, p.route.Model); err == nil {
			p.route.Cached = p.askSource(ctx, decides)
		}
		decision, err := p.decisions.Explain(ctx)
		if decision == nil {
			return nil, g.routeError(err, p.read.Model, p.route.Rank.Number())
		}
		e := &Explanation{
			Record: decision.Clone(-1), Session: p.route.Session, Tenant: p.route.Tenant, Levels: p.route.Levels,
			TokenSource: p.found.Outcome, TokensMissing: p.found.Missing, TokensFound: len(p.found.Tokens), Waited: p.waited, Err: err,
		}
		if r := &e.Record; r.Worker != nil {
			e.ChangingLine = changingLine(&p, r.Worker)
		}
		if pool, ok := g.Fleet.Snapshot().Pool(p.route.Model); ok && g.waiting.on() {
			e.Queued = g.waiting.mustWait(&p.route, pool)
		}
		decision.Recycle()
		all = append(all, e)
	}
	return all, nil
}
