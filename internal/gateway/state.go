package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tenant"
)

// model is one line of /v1/models, in OpenAI's shape with vLLM's additions.
type model struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"`
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root,omitempty"`
	Parent      *string `json:"parent"`
	MaxModelLen *int    `json:"max_model_len,omitempty"`
}

// models answers GET /v1/models with each model name that the fleet serves and that the tenant may use, once. A model
// is listed while a ready worker serves it.
func (g *Gateway) models(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", g.served(r)})
}

// served returns the models that a ready worker serves and that the tenant of r may use.
func (g *Gateway) served(r *http.Request) []model {
	t, err := g.whoAsks(r.Header)
	if err != nil { // a reload has just removed the tenant
		return []model{}
	}
	snapshot := g.Fleet.Snapshot()
	list := []model{}
	for _, m := range snapshot.Models() {
		pool, ok := snapshot.Pool(m.ID)
		if !ok || !anyReady(pool.Workers) || t != nil && !t.Allows(m.ID) {
			continue
		}
		list = append(list, lineOf(&m))
	}
	return g.withNames(list, snapshot, t)
}

// withNames appends the names that are no model of a ready worker, but that clients may use: aliases, and models whose
// fall-backs take their requests now. Such a line is that of the model that takes the requests, with another id.
func (g *Gateway) withNames(list []model, snapshot *fleet.Snapshot, t *tenant.Tenant) []model {
	lines := g.adapters.lines(snapshot)
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if t == nil || t.Allows(name) {
			list = append(list, lines[name])
		}
	}
	for _, m := range snapshot.Models() {
		if pool, ok := snapshot.Pool(m.ID); ok && anyReady(pool.Workers) {
			lines[m.ID] = lineOf(&m)
		}
	}
	ready := func(name string) bool { _, ok := lines[name]; return ok }
	allows := func(name string) bool { return t == nil || t.Allows(name) }
	names := g.names.Load().listed(ready, allows)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		l := lines[names[name]]
		l.ID = name
		list = append(list, l)
	}
	return list
}

// lineOf returns the line of a model.
func lineOf(m *fleet.Model) model {
	out := model{ID: m.ID, Object: "model", OwnedBy: "warmpath", Root: m.Root}
	if m.Parent != "" {
		out.Parent = &m.Parent
	}
	if m.MaxModelLen > 0 {
		out.MaxModelLen = &m.MaxModelLen
	}
	return out
}

// model answers GET /v1/models/NAME with the line of /v1/models. A name may contain slashes.
func (g *Gateway) model(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/v1/models/")
	for _, line := range g.served(r) {
		if line.ID == name {
			writeJSON(w, http.StatusOK, line)
			return
		}
	}
	err := g.routeError(warmpath.ErrUnknownModel, name, -1)
	if t, unknown := g.whoAsks(r.Header); unknown == nil && g.names.Load().forbidden(t, name) {
		err = api.ModelForbidden(name)
	}
	g.refuse(w, api.OpenAIChat, err.Code, err)
}

// engines is a line of /version: the workers of one engine and version.
type engines struct {
	Engine  string `json:"engine"`
	Version string `json:"version"`
	Workers int    `json:"workers"`
}

// version answers GET /version with the router's own version, under the same key as vLLM, and with the engines'
// versions.
func (g *Gateway) version(w http.ResponseWriter, _ *http.Request) {
	counts := map[engines]int{}
	for _, worker := range g.Fleet.Snapshot().Workers() {
		counts[engines{Engine: worker.Facts.Engine.String(), Version: worker.Facts.Version}]++
	}
	list := []engines{}
	for e, n := range counts {
		e.Workers = n
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b engines) int {
		return cmp.Or(cmp.Compare(a.Engine, b.Engine), cmp.Compare(a.Version, b.Version))
	})
	writeJSON(w, http.StatusOK, struct {
		Version string    `json:"version"`
		Router  string    `json:"router"`
		Engines []engines `json:"engines"`
	}{cmp.Or(g.Version, "unknown"), "warmpath", list})
}

// workerLoad is a line of /get_loads, as SGLang's router answers it.
type workerLoad struct {
	Worker string `json:"worker"`
	Load   int64  `json:"load"` // number of unfinished requests
}

// getLoads answers GET /get_loads with the number of unfinished requests of each worker. If clients must not see the
// workers' addresses, the workers have numbers in place of URLs.
func (g *Gateway) getLoads(w http.ResponseWriter, _ *http.Request) {
	snapshot := g.Fleet.Snapshot()
	list := []workerLoad{}
	for i, worker := range snapshot.Workers() {
		line := workerLoad{Worker: worker.URL}
		if !g.cfg.Headers {
			line.Worker = strconv.Itoa(i)
		}
		for _, h := range worker.Holders {
			line.Load += snapshot.Load(h).Requests
		}
		list = append(list, line)
	}
	writeJSON(w, http.StatusOK, struct {
		Workers []workerLoad `json:"workers"`
	}{list})
}

// state is the answer of /health and /readiness.
type state struct {
	Status  string `json:"status"`
	Reason  string `json:"reason,omitempty"`
	Workers int    `json:"workers"`
	Ready   int    `json:"ready"`
}

// health answers that the process lives. It does not say whether the process can serve requests: see readiness.
func (g *Gateway) health(w http.ResponseWriter, _ *http.Request) {
	s := g.state()
	s.Status, s.Reason = "ok", ""
	writeJSON(w, http.StatusOK, s)
}

// readiness answers 200 if a worker that generates answers is ready, and the router neither drains nor stalls. Else it
// answers 503 with the reason.
func (g *Gateway) readiness(w http.ResponseWriter, _ *http.Request) {
	s := g.state()
	if s.Reason != "" {
		s.Status = "unavailable"
		writeJSON(w, http.StatusServiceUnavailable, s)
		return
	}
	s.Status = "ready"
	writeJSON(w, http.StatusOK, s)
}

func (g *Gateway) state() state {
	workers := g.Fleet.Snapshot().Workers()
	s := state{Workers: len(workers)}
	why := ""
	answers := false
	for _, w := range workers {
		if w.Ready {
			s.Ready++
			answers = answers || w.Facts.Role != fleet.RolePrefill
		} else if why == "" {
			why = w.URL + ": " + w.Why
		}
	}
	stalled := ""
	if g.Stalled != nil {
		stalled = g.Stalled()
	}
	switch {
	case stalled != "":
		s.Reason = stalled
	case g.draining.Load():
		s.Reason = "draining: the process is about to stop"
	case len(workers) == 0:
		s.Reason = "there are no workers: none is listed, and no file, DNS name or operator names one now"
	case s.Ready == 0:
		s.Reason = fmt.Sprintf("none of %d workers is ready (%s)", len(workers), why)
	case !answers:
		s.Reason = "no worker that is ready generates answers: all of them have the role prefill; add a worker with the role decode or both"
		if why != "" {
			s.Reason += ", or see why another is not ready (" + why + ")"
		}
	}
	return s
}

func anyReady(workers []*fleet.Worker) bool {
	for _, w := range workers {
		if w.Ready {
			return true
		}
	}
	return false
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("bug: marshal an answer: " + err.Error())
	}
	body = append(body, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the client is gone
}
