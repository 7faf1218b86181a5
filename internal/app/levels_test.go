package app_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
)

func TestReloadAppliesServiceLevels(t *testing.T) {
	r, log, reload := reloading(t)
	one, two := fleet.ServiceLevel{FirstToken: 1e9}, fleet.ServiceLevel{FirstToken: 2e9, PerToken: 5e7}
	for _, c := range []struct {
		change  func(*config.Config)
		want    []string // the changes
		explain string   // the levels of a request
	}{
		{func(*config.Config) {}, nil, "[5s/100ms 2s/50ms]"},
		{func(c *config.Config) { c.ServiceLevels = []fleet.ServiceLevel{one} }, []string{"service_levels: [1s], was [5s/100ms, 2s/50ms]"}, "[1s]"},
		{func(c *config.Config) {
			c.ServiceLevels = []fleet.ServiceLevel{}
			c.ModelServiceLevels = map[string][]fleet.ServiceLevel{"mock": {two, one}}
		}, []string{"service_levels: [], was [1s]", "model_service_levels: {mock: [2s/50ms, 1s]}, was {}"}, "[2s/50ms 1s]"},
		{func(c *config.Config) {
			c.Gateway.TenantHeader = "x-customer" // tenants have no names until a restart applies it
			c.TenantServiceLevels = map[string][]fleet.ServiceLevel{"acme": {one}}
			c.RequestServiceLevels = true
		}, []string{"service_levels: [5s/100ms, 2s/50ms], was []", "model_service_levels: {}, was {mock: [2s/50ms, 1s]}",
			"tenant_service_levels: {acme: [1s]}, was {}", "request_service_levels: true, was false",
			"gateway.tenant_header: differs, a restart is needed to apply it"}, "[5s/100ms 2s/50ms]"},
	} {
		if got := reload(c.change); !slices.Equal(got, c.want) {
			t.Errorf("reload says %q, want %q", got, c.want)
		}
		if got := r.levels(); got != c.explain {
			t.Errorf("after %q a request has the levels %s, want %s", c.want, got, c.explain)
		}
	}
	if got := r.levels("X-Warmpath-Service-Levels", "9s"); got != "[9s]" {
		t.Errorf("requests may choose their levels after the reload: %s", got)
	}
	if strings.Contains(log.String(), "setting=service_levels") || strings.Contains(log.String(), "setting=request_service_levels") {
		t.Errorf("all levels are applied, and yet: %s", log)
	}
}

func TestTheConfiguredServiceLevelsReachRequestsFromTheStart(t *testing.T) {
	e := engine(t, nil)
	cfg := settings(e)
	cfg.Gateway.TenantHeader = "x-customer"
	cfg.TenantServiceLevels = map[string][]fleet.ServiceLevel{"acme": {{FirstToken: 1e9}}}
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	r.exact(1)
	if all, acme := r.levels(), r.levels("X-Customer", "acme"); all != "[5s/100ms 2s/50ms]" || acme != "[1s]" {
		t.Errorf("a request has %s, and one of acme %s", all, acme)
	}
}

// levels returns the service levels of a request with the given headers, as explain shows them.
func (r *router) levels(headers ...string) string {
	r.t.Helper()
	ask, err := http.NewRequest(http.MethodPost, "http://"+r.AdminAddr().String()+"/admin/explain", strings.NewReader(`{"model":"mock","prompt":[1,2,3]}`))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		ask.Header.Set(headers[i], headers[i+1])
	}
	resp, err := r.client.Do(ask)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var explained admin.Explanation
	if err := json.NewDecoder(resp.Body).Decode(&explained); err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%d, %v", resp.StatusCode, err)
	}
	return fmt.Sprint(explained.ServiceLevels)
}
