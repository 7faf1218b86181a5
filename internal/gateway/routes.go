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
	// open: the path is answered to everybody, also when tenants are configured, because load balancers ask it.
	open bool
}

const (
	onlyGet  = "GET, HEAD"
	onlyPost = "POST"
)

var routes = []route{
	{path: "/v1/chat/completions", methods: onlyPost, dialect: api.OpenAIChat},
	{path: "/v1/completions", methods: onlyPost, dialect: api.OpenAICompletions},
	{path: "/v1/responses", methods: onlyPost, dialect: api.OpenAIResponses},
	{path: "/v1/responses/*", methods: "GET, POST, DELETE", dialect: api.OpenAIResponse},
	{path: "/v1/messages", methods: onlyPost, dialect: api.AnthropicMessages},
	{path: "/v1/messages/count_tokens", methods: onlyPost, dialect: api.AnthropicCountTokens},
	{path: "/generate", methods: onlyPost, dialect: api.SGLangGenerate},
	{path: "/v1/embeddings", methods: onlyPost, dialect: api.OpenAIEmbeddings},
	{path: "/v1/rerank", methods: onlyPost, dialect: api.Rerank},
	{path: "/v2/rerank", methods: onlyPost, dialect: api.Rerank},
	{path: "/rerank", methods: onlyPost, dialect: api.Rerank},
	{path: "/v1/score", methods: onlyPost, dialect: api.Score},
	{path: "/score", methods: onlyPost, dialect: api.Score},
	{path: "/v1/classify", methods: onlyPost, dialect: api.Classify},
	{path: "/classify", methods: onlyPost, dialect: api.Classify},
	{path: "/v1/tokenize", methods: onlyPost, dialect: api.Tokenize},
	{path: "/tokenize", methods: onlyPost, dialect: api.Tokenize},
	{path: "/v1/detokenize", methods: onlyPost, dialect: api.Detokenize},
	{path: "/detokenize", methods: onlyPost, dialect: api.Detokenize},
	// The paths that OpenAI defines have lines of their own, because each path is a scope of its own.
	{path: "/v1/audio/speech", methods: onlyPost, dialect: api.OpenAIAudio},
	{path: "/v1/audio/transcriptions", methods: onlyPost, dialect: api.OpenAIAudio},
	{path: "/v1/audio/translations", methods: onlyPost, dialect: api.OpenAIAudio},
	{path: "/v1/audio/*", methods: onlyPost, dialect: api.OpenAIAudio},
	{path: "/v1/images/generations", methods: onlyPost, dialect: api.OpenAIImages},
	{path: "/v1/images/edits", methods: onlyPost, dialect: api.OpenAIImages},
	{path: "/v1/images/variations", methods: onlyPost, dialect: api.OpenAIImages},
	{path: "/v1/images/*", methods: onlyPost, dialect: api.OpenAIImages},
	{path: "/v1/models", methods: onlyGet, serve: (*Gateway).models},
	{path: "/v1/models/*", methods: onlyGet, serve: (*Gateway).model},
	{path: "/version", methods: onlyGet, serve: (*Gateway).version},
	{path: "/get_loads", methods: onlyGet, serve: (*Gateway).getLoads},
	{path: "/flush_cache", methods: onlyPost, serve: (*Gateway).refuseOrder},
	{path: "/sleep", methods: onlyPost, serve: (*Gateway).refuseOrder},
	{path: "/wake_up", methods: onlyPost, serve: (*Gateway).refuseOrder},
	{path: "/is_sleeping", methods: onlyGet, serve: (*Gateway).isSleeping},
	{path: "/openapi.json", methods: onlyGet, serve: (*Gateway).describe},
	{path: "/health", methods: onlyGet, serve: (*Gateway).health, open: true},
	{path: "/liveness", methods: onlyGet, serve: (*Gateway).health, open: true}, // as sglang-router, SMG and vllm-router
	{path: "/readiness", methods: onlyGet, serve: (*Gateway).readiness, open: true},
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
		if rest, below := strings.CutPrefix(path, r.path); below && rest != "" && (r.serve != nil || plain(rest)) {
			return r
		}
	}
	return nil
}

// plain reports whether a part of a path has only segments that mean themselves: letters, digits, and -._~. Segments
// such as .. are not plain: a proxy between router and engine could turn the path into that of another endpoint.
func plain(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		dots := 0
		for _, c := range []byte(segment) {
			switch {
			case c == '.':
				dots++
			case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '~':
			default:
				return false
			}
		}
		if dots == len(segment) {
			return false
		}
	}
	return true
}

// dialectAt returns the dialect of the router's own errors at a path. A path that the router does not know belongs to
// the dialect whose paths begin as it does.
func dialectAt(path string) api.Dialect {
	if r := routeOf(path); r != nil {
		return r.dialect
	}
	if strings.HasPrefix(path, api.AnthropicMessages.Path()+"/") {
		return api.AnthropicMessages
	}
	return api.OpenAIChat
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
		g.refuse(w, dialectAt(r.URL.Path), "not_found", api.UnknownPath(r.Method, r.URL.Path))
	case !to.allows(r.Method):
		w.Header().Set("Allow", to.methods)
		g.refuse(w, to.dialect, "method", api.MethodNotAllowed(r.Method, r.URL.Path, to.methods))
	case to.open:
		limitRead(w, r, 0)
		to.serve(g, w, r)
	case g.Certificates.MissingCertificate(r.TLS):
		g.refuse(w, to.dialect, "client_certificate", api.CertificateMissing())
	default:
		t, err := g.whoAsks(r.Header)
		if err != nil {
			g.refuseStranger(w, to.dialect, err)
			return
		}
		if to.serve != nil {
			limitRead(w, r, orderTimeout) // the router answers an order when it was carried out
			to.serve(g, w, r)
			return
		}
		x := g.exchanges.Get().(*exchange)
		x.begin(w, r, to)
		defer x.end()
		if err := x.enter(t); err != nil {
			x.refuse(err)
			return
		}
		x.serve()
	}
}
