package gateway

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/policy"
)

// Explanation is the decision for a request that is not sent.
type Explanation struct {
	Record      warmpath.Record
	Session     policy.Session
	Tenant      string
	AskedModel  string               // the model that the request names, if another takes it
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

// Question is a request about which Explain is asked.
type Question struct {
	Dialect api.Dialect
	Body    []byte
	Header  http.Header
	// Tenant is the name of the tenant whose request it is. If it is empty, a key in the header names the tenant. Without
	// either, no tenant's settings count.
	Tenant   string
	Policies []string // the policies to ask; none: the policy that would decide the request
}

// Explain decides where a request would be sent. It reserves nothing, and sends the request to no worker. Each of the
// named policies decides, at the same moment and with the same random number. An error is ready for api.WriteError.
func (g *Gateway) Explain(ctx context.Context, about *Question) ([]*Explanation, error) {
	p := prepared{explains: true}
	var err error
	if p.tenant, err = g.tenantAsked(about); err != nil {
		return nil, err
	}
	if err := g.prepare(ctx, &p, about.Dialect, about.Dialect.Path(), about.Body, about.Header); err != nil {
		return nil, err
	}
	defer p.reset()
	names := about.Policies
	if len(names) == 0 {
		names = []string{p.route.Policy}
	}
	p.route.Now, p.route.Random = time.Now().UnixNano(), rand.Uint64()
	var all []*Explanation
	one, plan := g.adapters.plan(p.read.Model)
	for _, name := range names {
		p.route.Policy = name
		if decides, err := g.Router.Policy(name, p.route.Model); err == nil {
			p.route.Cached = p.askSource(ctx, decides)
		}
		if one != nil && !p.pinned {
			all = append(all, &Explanation{
				Record:  warmpath.Record{Model: one.Name, Base: one.Base, LoRA: one.Name, Policy: name, Branch: policy.BranchNone, Reason: plan, Chosen: -1},
				Session: p.route.Session, Tenant: p.route.Tenant, AskedModel: p.choice.asked, Levels: p.route.Levels, TokenSource: p.found.Outcome,
				Err: errors.New(plan),
			})
			continue
		}
		decision, err := p.decisions.Explain(ctx)
		if decision == nil {
			return nil, g.routeError(err, p.read.Model, p.route.Rank.Number())
		}
		e := &Explanation{
			Record: decision.Clone(-1), Session: p.route.Session, Tenant: p.route.Tenant, AskedModel: p.choice.asked, Levels: p.route.Levels,
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

// tenantAsked returns the tenant of an explained request, nil if there is none.
func (g *Gateway) tenantAsked(about *Question) (*tenant.Tenant, error) {
	if about.Tenant == "" {
		t, err := g.whoAsks(about.Header)
		if err != nil {
			return nil, nil // an operator may ask without a tenant
		}
		return t, nil
	}
	if g.Tenants != nil {
		if t := g.Tenants.ByName(about.Tenant); t != nil {
			return t, nil
		}
	}
	return nil, api.Invalid("", "tenant: the configuration has no tenant "+api.Quoted(about.Tenant)+"; give a name from its list tenants")
}
