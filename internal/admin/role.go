package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	// Force: change the role also if no worker is left that generates answers.
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
	// HitRate is the share of their prompt tokens that were expected to be cached. HitRateAfter is this share without the
	// cache of the worker, if the engine drops its cache. It is the hit rate right after the change; prompts that are
	// computed again raise it.
	HitRate      float64 `json:"hit_rate"`
	HitRateAfter float64 `json:"hit_rate_after"`
	// KeptLevels is the share of the service levels that these requests kept. ServiceLevel says how to predict it for the
	// changed fleet.
	KeptLevels   *float64 `json:"kept_levels,omitempty"`
	ServiceLevel string   `json:"service_level"`
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
	switches := gateway.SwitchesRole(worker)
	out := RoleChanged{URL: worker.URL, Role: role.String(), Before: worker.Facts.Role.String(), Prediction: predictRole(a.Telemetry.Last(0), worker.URL, switches),
		How: "the engine has no role switch: only the router's role changes, so the engine must serve this leg (vLLM: kv_role kv_both)"}
	if switches {
		out.How = "the worker is drained, and SGLang is told to change its role; it drops its cache"
	}
	if predict := r.URL.Query().Get("predict"); predict != "" && predict != "0" {
		answer(w, http.StatusOK, out)
		return
	}
	if model := unanswered(snapshot, worker, role); model != "" && !c.Force {
		problem(w, http.StatusConflict, fmt.Errorf("no other worker would generate answers of %s; add one first, or send \"force\": true", api.Quoted(model)))
		return
	}
	if switches && role != worker.Facts.Role {
		// The switch goes on if the operator's client leaves: half of a switch helps nobody.
		if out.Engine, err = a.Gateway.SwitchRole(context.WithoutCancel(r.Context()), worker, role, drain); err != nil {
			problem(w, http.StatusBadGateway, fmt.Errorf("change the role of %s: %w", worker.URL, err))
			return
		}
	}
	if err := a.Workers.SetRole(worker.URL, role); err != nil {
		problem(w, statusOf(err), err)
		return
	}
	a.Log.Info("an operator changed the role of a worker", "worker", worker.URL, "before", out.Before, "role", out.Role)
	out.Changed = true
	answer(w, http.StatusOK, out)
}

// unanswered returns a model for which no worker generates answers after the change, "" if there is none.
func unanswered(s *fleet.Snapshot, changed *fleet.Worker, role fleet.Role) string {
	if role != fleet.RolePrefill {
		return ""
	}
	for i := range changed.Facts.Models {
		pool, ok := s.Pool(changed.Facts.Models[i].ID)
		if !ok {
			continue
		}
		left := false
		for _, h := range pool.Whole.Holders {
			left = left || s.Worker(h).ID != changed.ID
		}
		if !left {
			return changed.Facts.Models[i].ID
		}
	}
	return ""
}

// predictRole says what the last decisions lose if the cache of the worker at url is dropped.
func predictRole(decided []telemetry.Record, url string, drops bool) RolePrediction {
	p := RolePrediction{Decisions: len(decided), ServiceLevel: "play the decision log with the changed fleet: warmpath sim --workload decisions:FILE --decode-workers N (docs/simulator.md)"}
	prompt, cached, here, kept, levels := 0, 0, 0, 0, 0
	for i := range decided {
		r := &decided[i]
		prompt, cached = prompt+r.PromptTokens, cached+r.PredictedTokens
		if r.Worker == url {
			here += r.PredictedTokens
		}
		kept, levels = kept+len(r.KeptLevels), levels+len(r.KeptLevels)+len(r.BrokenLevels)
	}
	if prompt > 0 {
		p.HitRate = float64(cached) / float64(prompt)
		p.HitRateAfter = p.HitRate
		if drops {
			p.HitRateAfter = float64(cached-here) / float64(prompt)
		}
	}
	if levels > 0 {
		share := float64(kept) / float64(levels)
		p.KeptLevels = &share
	}
	return p
}
