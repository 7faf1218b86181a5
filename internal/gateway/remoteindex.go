package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// RemoteIndex is a remote index: the index of another process.
type RemoteIndex interface {
	// Match appends to q.Matches what each holder of this gateway's fleet has of the prompt. It returns soon after ctx
	// ends, and keeps no reference to q. It may be called from any goroutine. After an error, q.Matches is not used. Match
	// does not change the trust of holders: whoever makes the index tells the fleet how far its answers can be believed.
	Match(ctx context.Context, q *warmpath.Lookup) error
}

// askIndex asks the remote index about p's prompt, if there is such an index. It is asked here, once for each request,
// and not during the decision: a decision that waited would hold up all requests in the queue. Without an answer the
// request is decided by load and by the prompts that were sent before.
func (g *Gateway) askIndex(ctx context.Context, p *prepared) {
	if g.Index == nil {
		return
	}
	lookups := p.decisions.Lookups()
	if len(lookups) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, g.IndexTimeout)
	defer cancel()
	began, span := time.Now(), p.span.Part("index")
	var failed error
	for i := range lookups {
		if i > 0 && ctx.Err() != nil { // the others had no time: that the index is late was said once
			lookups[i].Matches, failed = lookups[i].Matches[:0], ctx.Err()
		} else if err := g.Index.Match(ctx, &lookups[i]); err != nil {
			lookups[i].Matches, failed = lookups[i].Matches[:0], err
		}
	}
	outcome := telemetry.LookupAnswered
	switch {
	case failed == nil:
	case errors.Is(failed, context.Canceled):
		outcome = telemetry.LookupCanceled
	case errors.Is(failed, context.DeadlineExceeded):
		outcome = telemetry.LookupTimeout
	default:
		outcome = telemetry.LookupFailed
	}
	span.Text("warmpath.index_lookup", outcome)
	span.End()
	g.Telemetry.LookedUp(outcome, time.Since(began))
}
