package gateway

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
	"github.com/warmpath/warmpath/internal/proxy"
)

// made remembers that the worker of the attempt under way made the response id. It is called before the client gets a
// byte of the response, so that the client finds it.
func (x *exchange) made(id []byte) {
	if x.decision == nil || x.dialect != api.OpenAIResponses {
		return
	}
	x.g.responses.add(string(id), madeResponse{worker: x.decision.Worker.ID, incarnation: x.decision.Worker.Incarnation,
		model: x.prepared.read.Model, tenant: x.g.tenantName(x.visit.tenant, x.r.Header), at: time.Now()})
}

// workerOf returns the worker that has a tenant's response, and the model that the response was made for. If the router
// does not know the response, but has only one worker, it is that worker, and the model is "".
func (g *Gateway) workerOf(id, tenant string) (w *fleet.Worker, model string, err error) {
	snap := g.Fleet.Snapshot()
	made, ok := g.responses.find(id, tenant, time.Now())
	if !ok {
		// With tenants, the response of a worker may be another tenant's.
		if all := snap.Workers(); len(all) == 1 && g.Tenants.Open() {
			return all[0], "", nil
		}
		return nil, "", api.UnknownResponse(id)
	}
	w = snap.ByID(made.worker)
	if w == nil || w.Incarnation != made.incarnation {
		return nil, made.model, api.LostResponse(id)
	}
	return w, made.model, nil
}

// callsTools reports whether the engine may call a tool of the request itself, such as a web search or the code
// interpreter. It then generates once more after each call. max_output_tokens limits each of these generations, and the
// usage is that of all of them [vLLM 0.32 entrypoints/openai/responses/serving.py, _generate_with_builtin_tools].
func callsTools(r *api.Request) bool {
	if r.Dialect != api.OpenAIResponses || !r.Tools {
		return false
	}
	for name, value := range r.Members {
		if string(name) != "tools" {
			continue
		}
		for _, tool := range jsonscan.Items(value) {
			for key, kind := range jsonscan.Members(tool) {
				if string(key) == "type" && string(kind) != `"function"` && string(kind) != `"custom"` { // the client calls these
					return true
				}
			}
		}
	}
	return false
}

// continues sends a request that continues a response to the worker that has the response.
func (g *Gateway) continues(p *prepared, tenant string) error {
	id := p.read.PreviousResponseID
	// X-Warmpath-Target may name another worker than the one with the response. The tenant is checked all the same.
	if id == "" || p.route.Target != "" && g.Tenants.Open() {
		return nil
	}
	w, _, err := g.workerOf(id, tenant)
	if err != nil {
		e := api.AsError(err)
		e.Param = "previous_response_id"
		return e
	}
	p.route.Target = cmp.Or(p.route.Target, w.URL)
	return nil
}

// responseID returns the id in a path below /v1/responses/, and the methods that the path answers.
func responseID(path string) (id, methods string) {
	id, what, _ := strings.Cut(strings.TrimPrefix(path, api.OpenAIResponses.Path()+"/"), "/")
	switch what {
	case "":
		return id, "GET, DELETE"
	case "cancel":
		return id, onlyPost
	case "input_items":
		return id, "GET"
	}
	return id, ""
}

// follow answers a request about a response: it goes to the worker that made the response, whatever the worker's load
// and health are. It takes the engine no work, so it reserves nothing.
func (x *exchange) follow(ctx context.Context) {
	id, methods := responseID(x.r.URL.Path)
	switch {
	case methods == "":
		x.refuse(api.UnknownPath(x.r.Method, x.r.URL.Path))
		return
	case !(&route{methods: methods}).allows(x.r.Method):
		x.w.Header().Set("Allow", methods)
		x.refuse(api.MethodNotAllowed(x.r.Method, x.r.URL.Path, methods))
		return
	}
	w, model, err := x.g.workerOf(id, x.g.tenantName(x.visit.tenant, x.r.Header))
	x.rec.Model = model
	if err != nil {
		x.refuse(err)
		return
	}
	x.routed, x.rec.Attempts, x.rec.Worker = true, 1, w.URL
	if x.g.cfg.Headers {
		x.w.Header().Set(headerWorker, w.URL)
	}
	a := &x.attempt
	a.Worker, a.Method, a.Path, a.Header, a.Body, a.Set = w.URL, x.r.Method, x.r.URL.RequestURI(), x.r.Header, x.body.Bytes, nil
	a.RequestID, a.Dialect, a.Writer, a.Model = x.rec.RequestID, x.dialect, x.w, ""
	a.HTTP2 = x.r.ProtoMajor == 2
	a.Unchecked, a.Whole = true, false
	a.Set = x.set[:0]
	span := x.callWorker(w.URL, w.Facts.Engine.String())
	result := x.g.Client.Forward(ctx, a)
	x.endCall(span, &result)
	if result.Class == proxy.Success && x.r.Method == http.MethodDelete {
		x.g.responses.remove(id)
	}
	x.settle(ctx, &result)
}
