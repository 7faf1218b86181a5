package gateway

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
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
	all               []fleet.ServiceLevel
	byModel, byTenant map[string][]fleet.ServiceLevel
	byRequest         bool
}

// UseServiceLevels applies s to all requests that come from now on. s has passed the checks of package config.
func (g *Gateway) UseServiceLevels(s ServiceLevels) {
	l := &levels{all: own(s.All), byModel: map[string][]fleet.ServiceLevel{}, byTenant: map[string][]fleet.ServiceLevel{}, byRequest: s.ByRequest}
	for model, list := range s.ByModel {
		l.byModel[model] = own(list)
	}
	for tenant, list := range s.ByTenant {
		l.byTenant[bounded(tenant)] = own(list)
	}
	g.levels.Store(l)
}

// own returns a copy of list. The copy is never nil, because nil in a request means the levels of the router's Options.
func own(list []fleet.ServiceLevel) []fleet.ServiceLevel {
	return append(make([]fleet.ServiceLevel, 0, len(list)), list...)
}

// of returns the levels of a request that names none. base is the base model of model.
func (l *levels) of(tenant, model, base string) []fleet.ServiceLevel {
	if list, ok := l.byTenant[tenant]; ok {
		return list
	}
	if list, ok := l.byModel[model]; ok {
		return list
	}
	if list, ok := l.byModel[base]; ok {
		return list
	}
	return l.all
}

// named returns the levels that a request names in its header; nil means that it names none.
func (l *levels) named(h http.Header) ([]fleet.ServiceLevel, error) {
	values := h[headerLevels]
	switch {
	case len(values) == 0 || len(values) == 1 && strings.TrimSpace(values[0]) == "":
		return nil, nil
	case !l.byRequest:
		return nil, api.Invalid("", "requests may not choose their service levels here: leave out the header "+headerLevels+
			", or have the operator set request_service_levels")
	case len(values) > 1:
		return nil, api.Invalid("", headerLevels+" stands more than once; send it once")
	}
	return readLevels(values[0])
}

// readLevels reads levels such as "5s/100ms, 2s/50ms", or "none".
func readLevels(text string) ([]fleet.ServiceLevel, error) {
	list := []fleet.ServiceLevel{}
	if strings.TrimSpace(text) == "none" {
		return list, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		l, err := fleet.ParseServiceLevel(item)
		switch {
		case err != nil:
			why := cmp.Or(errors.Unwrap(err), err) // the error without its hint, which this error has, too
			return nil, api.Invalid("", headerLevels+" must list levels such as 5s/100ms, or be none, not "+api.Quoted(item)+": "+api.Bounded(why.Error()))
		case slices.Contains(list, l):
			return nil, api.Invalid("", headerLevels+" lists "+l.String()+" twice")
		case len(list) == fleet.MaxServiceLevels:
			return nil, api.Invalid("", headerLevels+" lists more than "+strconv.Itoa(fleet.MaxServiceLevels)+" levels")
		}
		list = append(list, l)
	}
	return list, nil
}
