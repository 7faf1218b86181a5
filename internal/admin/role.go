package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// RoleChange is the body of POST /admin/workers/role.
type RoleChange struct {
	URL  string `json:"url"`  // the worker's URL, as GET /admin/workers shows it
	Role string `json:"role"` // prefill, decode or both
	// Drain is how long the worker may take to end its requests before its engine is told, such as 5m (the default).
	Drain string `json:"drain,omitempty"`
	// Force: change the role also if requests for a model cannot be served any more.
	Force bool `json:"force,omitempty"`
}

// RoleChanged is the answer of POST /admin/workers/role.
type RoleChanged struct {
	URL     string `json:"url"`
	Role    string `json:"role"`
	Before  string `json:"before"`
	Changed bool   `json:"changed"` // false: only the prediction was asked for
	// How says whether the engine is told, or only the router's view of the worker changes. Engine is the engine's answer.
	How        string         `json:"how"`
	Engine     string         `json:"engine,omitempty"`
	Prediction RolePrediction `json:"prediction"`
}

// RolePrediction says what the change does to the hit rate, by the last decisions.
type RolePrediction struct {
	Decisions int `json:"decisions"` // requests that the figures are from
	// HitRate is the share of their prompt tokens that were expected to be cached. HitRateAfter is this share without what
	// was expected at the worker, if its engine drops the cache, or if the worker no longer computes these prompts. It is
	// the hit rate right after the change; prompts that are computed again raise it.
	HitRate      float64 `json:"hit_rate"`
	HitRateAfter float64 `json:"hit_rate_after"`
	// KeptLevels is the share of the service levels that these requests kept.
	KeptLevels *float64 `json:"kept_levels,omitempty"`
	// Laboratory is what the simulator says about both fleets. It is absent if the role was changed.
	Laboratory *RoleLaboratory `json:"laboratory,omitempty"`
}

// roleDrain is the usual time for a worker to end its requests before its role is changed.
const roleDrain = 5 * time.Minute

// changeRole changes the role of a worker. With ?predict=1 it only predicts what the change does.
func (a *Admin) changeRole(w http.ResponseWriter, r *http.Request) {
	var c RoleChange
	if err := readBody(w, r, &c); err != nil || c.URL == "" || c.Role == "" {
		if err == nil {
			err = errors.New("url and role are needed")
		}
		problem(w, statusOf(err), fmt.Errorf(`read the change of a role: %w; send a body such as {"url": "http://gpu-1:8000", "role": "decode"}`, err))
		return
	}
	role, err := fleet.ParseRole(c.Role)
	if err != nil {
		problem(w, http.StatusBadRequest, err)
		return
	}
	drain := roleDrain
	if c.Drain != "" {
		if drain, err = time.ParseDuration(c.Drain); err != nil || drain < 0 || drain > maxDrain {
			problem(w, http.StatusBadRequest, fmt.Errorf("drain: %s is not a duration from 0s to %v, such as 5m", api.Quoted(c.Drain), maxDrain))
			return
		}
	}
	snapshot := a.Router.Fleet().Snapshot()
	worker := workerAt(snapshot, discovery.NormalURL(c.URL))
	switch {
	case worker == nil:
		problem(w, http.StatusNotFound, fmt.Errorf("no worker has the URL %s; GET /admin/workers lists them", api.Quoted(c.URL)))
		return
	case a.Workers == nil:
		problem(w, statusOf(errFixed), errFixed)
		return
	}
	switches, recent := gateway.SwitchesRole(worker), a.Telemetry.Last(0)
	out := RoleChanged{URL: worker.URL, Role: role.String(), Before: worker.Facts.Role.String(), Prediction: predictRole(recent, worker.URL, role, switches),
		How: "the engine has no role switch: only the router's role changes, so the engine must serve this leg (vLLM: kv_role kv_both)"}
	if switches {
		out.How = "the worker is drained, and SGLang is told to change its role; it drops its cache"
	}
	if predict := r.URL.Query().Get("predict"); predict != "" && predict != "0" {
		out.Prediction.Laboratory = a.playRoles(r.Context(), snapshot, worker, role, recent)
		answer(w, http.StatusOK, out)
		return
	}
	if !a.changing.TryLock() { // each of two changes could rely on the worker that the other one changes
		problem(w, http.StatusConflict, errors.New("the role of a worker is being changed, and the router changes one at a time; try again after the answer to that order"))
		return
	}
	defer a.changing.Unlock()
	snapshot = a.Router.Fleet().Snapshot()
	now := snapshot.ByID(worker.ID) // an order that has just ended may have changed its role
	if now == nil || now.Facts.Role != worker.Facts.Role {
		problem(w, http.StatusConflict, fmt.Errorf("the role of %s has just changed; look at GET /admin/workers, and send the order again", worker.URL))
		return
	}
	if what := unserved(snapshot, worker, role); what != "" && !c.Force {
		problem(w, http.StatusConflict, fmt.Errorf("%s; add one first, or send \"force\": true", what))
		return
	}
	setRole := func() error { return a.Workers.SetRole(worker.URL, role) }
	if switches && role != worker.Facts.Role {
		// The switch goes on if the operator's client leaves: half of a switch helps nobody.
		if out.Engine, err = a.Gateway.SwitchRole(context.WithoutCancel(r.Context()), worker, role, drain, setRole); err != nil {
			status := http.StatusBadGateway
			if errors.Is(err, gateway.ErrNotTold) {
				status = http.StatusConflict
			}
			problem(w, status, fmt.Errorf("change the role of %s: %w", worker.URL, err))
			return
		}
	} else if err := setRole(); err != nil {
		problem(w, statusOf(err), err)
		return
	} else if now := a.Router.Fleet().Snapshot().ByID(worker.ID); now != nil { // the next order must see it, before the probe
		facts := now.Facts
		facts.Role = role
		a.Router.Fleet().Put(worker.URL, facts)
	}
	a.Log.Info("an operator changed the role of a worker", "worker", worker.URL, "before", out.Before, "role", out.Role)
	out.Changed = true
	answer(w, http.StatusOK, out)
}

// unserved says for which model requests could not be served any more after the change, and why; "" if there is none. A
// model that is not served now either does not count.
func unserved(s *fleet.Snapshot, changed *fleet.Worker, role fleet.Role) string {
	for i := range changed.Facts.Models {
		model := changed.Facts.Models[i].ID
		if undone(s, model, changed, changed.Facts.Role) != "" {
			continue
		}
		if what := undone(s, model, changed, role); what != "" {
			return "no other worker would " + what + " of " + api.Quoted(model)
		}
	}
	return ""
}

// undone says what no ready worker does for the requests for a model if one worker has that role; "" if the requests
// can be served, at one worker or at two.
func undone(s *fleet.Snapshot, model string, changed *fleet.Worker, role fleet.Role) string {
	var prefill, decode []*fleet.Worker
	for _, w := range s.Workers() {
		if w.ID == changed.ID {
			as := *w
			as.Facts.Role = role
			w = &as
		} else if !w.Ready {
			continue
		}
		if !slices.ContainsFunc(w.Facts.Models, func(m fleet.Model) bool { return m.ID == model }) {
			continue
		}
		if w.Facts.Answers() {
			return ""
		}
		if w.Facts.Prefills() {
			prefill = append(prefill, w)
		}
		if w.Facts.Decodes() {
			decode = append(decode, w)
		}
	}
	for _, p := range prefill {
		for _, d := range decode {
			if p.ID != d.ID && p.Facts.Transfer.Pairs(&d.Facts.Transfer) {
				return ""
			}
		}
	}
	if len(decode) > 0 {
		return "compute prompts"
	}
	return "generate answers"
}

// predictRole says what the last decisions lose of the cache of the worker at url when it gets that role. drops says
// that its engine drops the cache.
func predictRole(decided []telemetry.Record, url string, role fleet.Role, drops bool) RolePrediction {
	p := RolePrediction{Decisions: len(decided)}
	prompt, cached, lost, kept, levels := 0, 0, 0, 0, 0
	for i := range decided {
		r := &decided[i]
		prompt, cached = prompt+r.PromptTokens, cached+r.PredictedTokens
		// A divided request finds its cached tokens at the prefill worker.
		at, without := r.Worker, fleet.RolePrefill
		if r.PrefillWorker != "" {
			at, without = r.PrefillWorker, fleet.RoleDecode
		}
		if at == url && (drops || role == without) {
			lost += r.PredictedTokens
		}
		kept, levels = kept+len(r.KeptLevels), levels+len(r.KeptLevels)+len(r.BrokenLevels)
	}
	if prompt > 0 {
		p.HitRate = float64(cached) / float64(prompt)
		p.HitRateAfter = float64(cached-lost) / float64(prompt)
	}
	if levels > 0 {
		share := float64(kept) / float64(levels)
		p.KeptLevels = &share
	}
	return p
}
