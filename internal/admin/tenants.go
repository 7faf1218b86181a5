package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tenant"
)

// Tenants is the answer of GET /admin/tenants.
type Tenants struct {
	Open    bool         `json:"open"`  // no tenants are configured, so everybody may use the gateway
	Total   int          `json:"total"` // number of tenants
	Tenants []TenantLine `json:"tenants"`
}

// TenantLine is one tenant: its settings without its keys, what it has used, and what is left of its limits.
type TenantLine struct {
	tenant.Config
	KeysSHA256        *struct{}     `json:"keys_sha256,omitempty"` // hides the field of Config; always nil
	Counts            tenant.Counts `json:"counts"`
	RemainingRequests *int          `json:"remaining_requests,omitempty"` // absent without requests_per_second
	RemainingTokens   *int          `json:"remaining_tokens,omitempty"`   // absent without tokens_per_minute
}

// mostTenants bounds ?n=.
const mostTenants = 1000

// tenants shows the tenants with the most requests: ?n= of them, 100 by default. ?name= shows one tenant.
func (a *Admin) tenants(w http.ResponseWriter, r *http.Request) {
	n := maxTenants
	if v := r.URL.Query().Get("n"); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil || n < 1 || n > mostTenants {
			problem(w, http.StatusBadRequest, fmt.Errorf("n: %s is not a number from 1 to %d", api.Quoted(v), mostTenants))
			return
		}
	}
	all := a.Parts.Tenants.Tenants()
	out := Tenants{Open: len(all) == 0, Total: len(all), Tenants: []TenantLine{}}
	if name := r.URL.Query().Get("name"); name != "" {
		t := a.Parts.Tenants.ByName(name)
		if t == nil {
			problem(w, http.StatusNotFound, fmt.Errorf("there is no tenant %s", api.Quoted(name)))
			return
		}
		all = []*tenant.Tenant{t}
	}
	for _, t := range all {
		line := TenantLine{Config: t.Config, Counts: t.Counts()}
		if line.Models == nil {
			line.Models = []string{} // a list in each answer
		}
		out.Tenants = append(out.Tenants, line)
	}
	slices.SortStableFunc(out.Tenants, func(a, b TenantLine) int { return cmp.Compare(b.Counts.Requests, a.Counts.Requests) })
	out.Tenants = out.Tenants[:min(n, len(out.Tenants))]
	now := time.Now().UnixNano()
	for i := range out.Tenants {
		line := &out.Tenants[i]
		if t := a.Parts.Tenants.ByName(line.Name); t != nil {
			requests, tokens := t.Budgets(now)
			if requests.Limit > 0 {
				line.RemainingRequests = &requests.Remaining
			}
			if tokens.Limit > 0 {
				line.RemainingTokens = &tokens.Remaining
			}
		}
	}
	answer(w, http.StatusOK, out)
}
