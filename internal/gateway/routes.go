package gateway

import (
	"net/http"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/api"
)

// A route says how the requests to one path are answered. A new path is one line in routes.
type route struct {
	path string // a path that ends in /* stands for all paths below it
	// methods are the methods that the path answers, as the header Allow lists them.
	methods string
	// dialect is the form of the path's requests and answers, and of the router's own errors there.
	dialect api.Dialect
	// serve answers the request. If serve is nil, the request goes to a worker.
	serve func(g *Gateway, w http.ResponseWriter, r *http.Request)
}

const (
	onlyGet  = "GET, HEAD"
	onlyPost = "POST"
)

var routes = []route{
	{path: api.OpenAIChat.Path(), methods: onlyPost, dialect: api.OpenAIChat},
	{path: api.OpenAICompletions.Path(), methods: onlyPost, dialect: api.OpenAICompletions},
	{path: "/v1/models", methods: onlyGet, serve: (*Gateway).models},
	{path: "/health", methods: onlyGet, serve: (*Gateway).health},
	{path: "/readiness", methods: onlyGet, serve: (*Gateway).readiness},
}

// exactRoutes are the routes by their path. routesBelow are the routes whose path ends in /*, without the star.
var exactRoutes, routesBelow = sortRoutes(routes)

func sortRoutes(all []route) (exact map[string]*route, below []*route) {
	exact = make(map[string]*route, len(all))
	for i := range all {
		r := &all[i]
		if prefix, is := strings.CutSuffix(r.path, "*"); is {
			r.path = prefix
			below = append(below, r)
		} else {
			exact[r.path] = r
		}
	}
	return exact, below
}

// routeOf returns the route of a path, nil if there is none.
func routeOf(path string) *route {
	if r := exactRoutes[path]; r != nil {
		return r
	}
	for _, r := range routesBelow {
		if len(path) > len(r.path) && strings.HasPrefix(path, r.path) {
			return r
		}
	}
	return nil
}

// allows reports whether the path answers the method.
func (r *route) allows(method string) bool {
	return r.methods == method || slices.Contains(strings.Split(r.methods, ", "), method)
}

// answer lets the route of a request's path answer the request.
func (g *Gateway) answer(w http.ResponseWriter, r *http.Request) {
	to := routeOf(r.URL.Path)
	switch {
	case to == nil:
		g.refuse(w, api.OpenAIChat, "not_found", api.UnknownPath(r.Method, r.URL.Path))
	case !to.allows(r.Method):
		w.Header().Set("Allow", to.methods)
		g.refuse(w, to.dialect, "method", api.MethodNotAllowed(r.Method, r.URL.Path, to.methods))
	case to.serve != nil:
		to.serve(g, w, r)
	default:
		x := g.exchanges.Get().(*exchange)
		x.begin(w, r, to.dialect)
		defer x.end()
		x.serve()
	}
}
