package gateway

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/proxy"
)

const (
	abortTime = 2 * time.Second // bounds how long a worker is asked to abort a leg
	maxAborts = 256             // bounds the number of workers' answers to aborts that are awaited
)

// aborts are requests that end legs at workers. They run beside the clients' requests: a worker that does not answer
// them must hold up nobody.
type aborts struct {
	running  sync.WaitGroup // Gateway.Serve waits for it
	underWay atomic.Int64
}

// abort asks a worker to end its leg, if the connector has a request for this. The end of the connection alone ends a
// request that computes, but not what an engine keeps for the other leg. abort does not wait for the answer.
func (l *legs) abort(ctx context.Context, leg fleet.Leg) {
	var answer []byte // of legs that are sent together nothing is carried, and the prefill leg may still write its answer
	if !l.connector.Together() {
		answer = l.answer.body
	}
	method, path, body, ok := l.connector.Abort(leg, &l.pair, answer)
	g, ctx := l.x.g, context.WithoutCancel(ctx)
	count := func(sent bool) {
		if leg == fleet.LegPrefill { // a decode worker keeps nothing for another worker
			g.Telemetry.LeaseAborted(sent)
		}
	}
	if !ok {
		if l.connector.Leases() && l.usage.Seen && !l.x.begun.Load() { // the prefill leg has ended, and its blocks were not read
			count(false)
		}
		return
	}
	end := &l.pair.Prefill
	if leg == fleet.LegDecode {
		end = &l.pair.Decode
	}
	a := &proxy.Attempt{
		Worker: end.URL, Method: method, Path: path, Header: http.Header{"Content-Type": {"application/json"}}, Body: body, RequestID: l.pair.RequestID,
		Writer: new(capture), Unchecked: true,
	}
	if g.aborts.underWay.Add(1) > maxAborts {
		g.aborts.underWay.Add(-1)
		count(false)
		return
	}
	g.aborts.running.Go(func() { // ends with the attempt, which abortTime bounds
		defer g.aborts.underWay.Add(-1)
		ctx, cancel := context.WithTimeout(ctx, abortTime)
		defer cancel()
		result := g.Client.Forward(ctx, a)
		count(result.Class == proxy.Success && result.Status < 300)
	})
}
