package gateway

import (
	"context"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
)

// Explanation is a request decided but not sent.
type Explanation struct {
	Record      warmpath.Record
	TokenSource tokens.Outcome
	TokensFound int
	Waited      time.Duration // for the tokens
	Err         error         // why no worker could be chosen; nil when one was
}

// Explain decides where body would go, reserving and sending nothing. policy may be empty. The error is the client's,
// ready for api.WriteError.
func (g *Gateway) Explain(ctx context.Context, d api.Dialect, body []byte, h http.Header, policy string) (*Explanation, error) {
	p := prepared{explains: true}
	if err := g.prepare(ctx, &p, d, body, h); err != nil {
		return nil, err
	}
	if policy != "" {
		p.route.Policy = policy
	}
	p.route.Now, p.route.Random = time.Now().UnixNano(), rand.Uint64()
	decision, err := g.Router.Explain(ctx, &p.route)
	if decision == nil {
		return nil, g.routeError(err, p.read.Model)
	}
	defer decision.Recycle()
	return &Explanation{decision.Clone(-1), p.found.Outcome, len(p.found.Tokens), p.waited, err}, nil
}
