package gateway

import (
	"io"
	"net/http"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// RescueFrom searches once for requests that wait at the suspect worker w, as Serve does at every tick.
func RescueFrom(g *Gateway, w fleet.WorkerID) { g.rescueFrom(w) }

// Rescues reports whether the budget allows to take a request away from a frozen worker now.
func Rescues(g *Gateway) bool { return g.rescues.thousandths.Load() >= budgetToken }

// Holds reports whether requests are held: before Serve has begun to, they are refused.
func Holds(g *Gateway) bool { return g.hold.runs.Load() }

// ShadowLookups returns the number of lookups under way for shadow policies.
func (g *Gateway) ShadowLookups() int { return int(g.shadowLookups.Load()) }

// WorkerPaths returns the paths whose requests go to workers. A path that ends in / stands for all paths below it.
func WorkerPaths() (paths []string) {
	for _, r := range routes {
		if r.serve == nil {
			paths = append(paths, r.path)
		}
	}
	return paths
}

// NewRecovery returns the writer of a chat that can continue at another worker. The client's writer is w.
func NewRecovery(w http.ResponseWriter) io.Writer {
	r := &recovery{x: &exchange{w: w, dialect: api.OpenAIChat}, chat: true, begun: true}
	return r
}

// Continues returns the rest of a text that was sent, behind the text of the ids that a continuation gives.
var Continues = continues

// MadeResponses are the responses that a gateway remembers.
type MadeResponses struct{ madeResponses }

const (
	MostResponses = mostResponses
	KeptFor       = keptFor
)

// Add remembers a response of a tenant.
func (r *MadeResponses) Add(tenant, id string, at time.Time) {
	r.add(id, madeResponse{tenant: tenant, at: at})
}

// Has reports whether a tenant's response is found.
func (r *MadeResponses) Has(tenant, id string, now time.Time) bool {
	_, ok := r.find(id, tenant, now)
	return ok
}

// Remove forgets a response.
func (r *MadeResponses) Remove(id string) { r.remove(id) }

// Tenants returns the number of tenants that have responses.
func (r *MadeResponses) Tenants() int { return len(r.tenants) }

// Len returns the number of remembered responses.
func (r *MadeResponses) Len() int { return len(r.byID) }

// OpenAPI is the description of the routes.
var OpenAPI = openAPI

// MethodsOf returns the methods of a path's route, as the header Allow lists them; "" if there is no route.
func MethodsOf(path string) string {
	if r := routeOf(path); r != nil {
		return r.methods
	}
	return ""
}

// AllPaths returns the paths of all routes. A path that ends in / stands for all paths below it.
func AllPaths() (paths []string) {
	for _, r := range routes {
		paths = append(paths, r.path)
	}
	return paths
}

// Settle sets for how long no request must be under way at an SGLang that is sent to sleep.
func Settle(g *Gateway, d time.Duration) { g.settle = d }
