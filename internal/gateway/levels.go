package gateway

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// ServiceLevels says which service levels a request has. The first of these lists counts: the levels that the request
// names, if ByRequest allows it; the levels of its tenant; the levels of its model; All. An empty list means that the
// request has no levels.
type ServiceLevels struct {
	All []fleet.ServiceLevel
	// ByModel has the levels of single models, by the model name in requests or by the base model.
	ByModel map[string][]fleet.ServiceLevel
	// ByTenant has the levels of single tenants. A tenant is named as in Config.TenantHeader.
	ByTenant map[string][]fleet.ServiceLevel
	// ByRequest: a request may name its levels in X-Warmpath-Service-Levels.
	ByRequest bool
}

// levels are ServiceLevels in the form in which requests use them. They are immutable, and requests share their lists.
type levels struct {
	ServiceLevels                               // no list is nil, and the names of tenants are bounded
	names         map[fleet.ServiceLevel]string // the names of all levels in these lists
}

// UseServiceLevels applies s to all requests that come from now on. s has passed the checks of package config.
func (g *Gateway) UseServiceLevels(s ServiceLevels) {
	l := &levels{names: map[fleet.ServiceLevel]string{}}
	l.ServiceLevels = ServiceLevels{All: l.own(s.All), ByModel: map[string][]fleet.ServiceLevel{}, ByTenant: map[string][]fleet.ServiceLevel{}, ByRequest: s.ByRequest}
	for model, list := range s.ByModel {
		l.ByModel[model] = l.own(list)
	}
	for tenant, list := range s.ByTenant {
		l.ByTenant[bounded(tenant)] = l.own(list)
	}
	g.levels.Store(l)
}

// own notes the names of the levels in list, and returns a copy of list. The copy is never nil, because nil in a
// request means the levels of the router's Options.
func (l *levels) own(list []fleet.ServiceLevel) []fleet.ServiceLevel {
	for _, level := range list {
		l.names[level] = level.String()
	}
	return append(make([]fleet.ServiceLevel, 0, len(list)), list...)
}

// of returns the levels of a request that names none. base is the base model of model.
func (l *levels) of(tenant, model, base string) []fleet.ServiceLevel {
	if list, ok := l.ByTenant[tenant]; ok {
		return list
	}
	if list, ok := l.ByModel[model]; ok {
		return list
	}
	if list, ok := l.ByModel[base]; ok {
		return list
	}
	return l.All
}

// named returns the levels that a request names in its header; nil means that it names none.
func (l *levels) named(h http.Header) ([]fleet.ServiceLevel, error) {
	values := h[headerLevels]
	switch {
	case len(values) == 0 || len(values) == 1 && strings.TrimSpace(values[0]) == "":
		return nil, nil
	case !l.ByRequest:
		return nil, api.Invalid("", "requests may not choose their service levels here: leave out the header "+headerLevels+
			", or have the operator set request_service_levels")
	case len(values) > 1:
		return nil, api.Invalid("", headerLevels+" stands more than once; send it once")
	}
	list, err := fleet.ParseServiceLevels(values[0])
	if err != nil {
		return nil, api.Invalid("", headerLevels+" must list up to "+strconv.Itoa(fleet.MaxServiceLevels)+" levels such as 5s/100ms, or be none: "+api.Bounded(err.Error()))
	}
	return list, nil
}

// countLevels counts for each service level of the request whether the answer kept it. r is the result of the request.
// Only a complete answer counts. If no token was seen before the end of the answer, because the answer came in one
// piece, it counts only if its usage says how long it is.
func (x *exchange) countLevels(r *proxy.Result) {
	whole := x.lastToken.IsZero() || r.FirstTokenAt.IsZero()
	if r.Class != proxy.Success || !r.FirstByte || whole && !r.Usage.Seen {
		return
	}
	first, total := r.FirstTokenAt.Sub(x.rec.Time), x.lastToken.Sub(x.rec.Time)
	if whole {
		total = time.Since(x.rec.Time)
	}
	q := &x.prepared.route
	tokens := perChoice(cmp.Or(r.Usage.Completion, x.output), q.Choices)
	if q.MaxTokens > 0 {
		tokens = min(tokens, q.MaxTokens) // a greater count of the worker is not believed
	}
	for _, l := range q.Levels {
		if whole && l.PerToken == 0 {
			continue // it limits only the first token, which was not seen
		}
		kept := l.Kept(first, total, tokens)
		if whole {
			kept = l.KeptWhole(total, tokens)
		}
		name, configured := x.prepared.levels.names[l]
		if !configured {
			name = l.String()
		}
		if kept {
			x.rec.KeptLevels = append(x.rec.KeptLevels, name)
		} else {
			x.rec.BrokenLevels = append(x.rec.BrokenLevels, name)
		}
		if !configured {
			name = telemetry.UnconfiguredLevel // clients must not be able to make new series
		}
		x.g.Telemetry.Answered(name, kept)
	}
}

// perChoice returns the length of an answer in tokens. tokens is the length of all choices together. The engine
// generates the choices at the same time, and the longest choice has at least the mean length, rounded up.
func perChoice(tokens, choices int) int {
	if tokens <= 0 || choices <= 1 {
		return tokens
	}
	return (tokens-1)/choices + 1
}
