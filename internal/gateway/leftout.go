package gateway

import (
	"sync"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// LeftOut is a model name and an endpoint for which a worker gets no requests, because its answers there were useless.
type LeftOut struct{ Model, Endpoint string }

// scopeNames has the model name and the endpoint of each scope of which a worker was left out. A fleet.Scope is only a
// hash of these two names. scopeNames is safe for concurrent use.
type scopeNames struct {
	mu    sync.Mutex
	names map[fleet.Scope]LeftOut
}

// note remembers the names of a scope, cut to the length that logs show. note keeps at most mostScopes scopes. When
// there are more, note forgets all scopes. A forgotten name is noted again when a worker is left out of its scope.
func (s *scopeNames) note(scope fleet.Scope, n LeftOut) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.names == nil || len(s.names) >= mostScopes {
		s.names = map[fleet.Scope]LeftOut{}
	}
	s.names[scope] = LeftOut{api.Bounded(n.Model), api.Bounded(n.Endpoint)}
}

// everyName is the name of all scopes together.
var everyName = LeftOut{"*", "*"}

// ScopeName returns the model name and the endpoint of a scope, and "*" for all scopes. If no worker was left out of
// the scope, or note has forgotten it, the result is empty.
func (g *Gateway) ScopeName(scope fleet.Scope) LeftOut {
	if scope == fleet.EveryScope {
		return everyName
	}
	g.scopeNames.mu.Lock()
	defer g.scopeNames.mu.Unlock()
	return g.scopeNames.names[scope]
}

// observeScopes records an outcome in the request's scope and in all scopes together.
func (x *exchange) observeScopes(h fleet.Holder, o fleet.Outcome, v verdict, now int64) {
	x.observeScope(h, x.prepared.route.Scope, o, v, now)
	x.observeScope(h, fleet.EveryScope, o, v, now)
}

// observeScope records an outcome in a scope, and logs when the worker is left out of it or returns. v is the verdict
// on the answer.
func (x *exchange) observeScope(h fleet.Holder, scope fleet.Scope, o fleet.Outcome, v verdict, now int64) {
	change := x.g.Fleet.ObserveScope(h, scope, o, now)
	if change == fleet.ScopeUnchanged {
		return
	}
	snap := x.g.Fleet.Snapshot()
	w := snap.Worker(h)
	if w == nil {
		return
	}
	name := LeftOut{x.prepared.read.Model, x.path}
	if scope == fleet.EveryScope {
		name = everyName
	}
	log := x.g.Log.With("worker", w.URL, "model", api.Bounded(name.Model), "endpoint", name.Endpoint)
	where := "this model and endpoint"
	if scope == fleet.EveryScope {
		where = "all models and endpoints"
	}
	if change == fleet.ScopeReadmitted {
		log.Info("worker gets requests again for " + where + ": a trial request got a good answer")
		return
	}
	if scope != fleet.EveryScope {
		x.g.scopeNames.note(scope, name)
	}
	why := "its answers were useless, another worker's were not"
	if v == lost {
		why = "it loses more answers than another worker"
	}
	log.Warn("worker gets no requests for "+where+": "+why, "answer", retryReasons[v])
}
