package app_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/tenant"
)

func TestReloadAppliesTenantsAndOpensTheGatewayOnlyIfAsked(t *testing.T) {
	e := engine(t, nil)
	acme := []tenant.Config{{Name: "acme", KeysSHA256: []string{"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}}} // of "test"
	use := func(c *config.Config, list []tenant.Config) { c.Tenants, c.AllTenants = list, list }
	next := settings(e)
	r := startWith(t, settings(e), app.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Load: func() (*config.Config, error) { return next, nil }, File: "f.yaml"})
	r.exact(1)
	get := func(url, key string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	models, tenants := r.Addr().String()+"/v1/models", r.AdminAddr().String()+"/admin/tenants"
	if status, _ := get(models, ""); status != 200 {
		t.Errorf("the open gateway answers %d", status)
	}
	if _, text := get(tenants, ""); !strings.Contains(text, `"open": true`) {
		t.Errorf("/admin/tenants: %s", text)
	}
	use(next, acme)
	if changes, err := r.Reload(); err != nil || strings.Join(changes, ";") != "tenants: 1, 1 added, 0 changed, 0 removed" {
		t.Errorf("%q %v", changes, err)
	}
	for key, want := range map[string]int{"": 401, "other": 401, "test": 200} {
		if status, text := get(models, key); status != want {
			t.Errorf("key %q: %d %s, want %d", key, status, text, want)
		}
	}
	if _, text := get(tenants+"?name=acme", ""); !strings.Contains(text, `"name": "acme"`) || !strings.Contains(text, `"open": false`) || strings.Contains(text, "9f86") {
		t.Errorf("/admin/tenants: %s", text)
	}
	if status, _ := get(tenants+"?name=nobody", ""); status != 404 {
		t.Errorf("an unknown tenant: %d", status)
	}
	if status, _ := get(tenants+"?n=0", ""); status != 400 {
		t.Errorf("n=0: %d", status)
	}
	next = settings(e) // a file that was cut short
	if _, err := r.Reload(); err == nil || err.Error() != "f.yaml: no list under tenants; the file may be cut short. To open the gateway to all write tenants: []" {
		t.Errorf("a file without tenants: %v", err)
	}
	if status, _ := get(models, ""); status != 401 {
		t.Errorf("the gateway is open: %d", status)
	}
	use(next, []tenant.Config{})
	if changes, err := r.Reload(); err != nil || strings.Join(changes, ";") != "tenants: 0, 0 added, 0 changed, 1 removed" {
		t.Errorf("%q %v", changes, err)
	}
	if status, _ := get(models, ""); status != 200 {
		t.Errorf("the open gateway answers %d", status)
	}
}

// A tenant that leaves the file, or its first 100 names, takes its series along.
func TestReloadForgetsTheSeriesOfTenantsThatAreGone(t *testing.T) {
	e := engine(t, nil)
	keyed := func(name string) tenant.Config {
		return tenant.Config{Name: name, KeysSHA256: []string{fmt.Sprintf("%x", sha256.Sum256([]byte(name)))}}
	}
	with := func(names ...string) *config.Config {
		cfg := settings(e)
		for _, name := range names {
			cfg.Tenants = append(cfg.Tenants, keyed(name))
		}
		cfg.AllTenants = cfg.Tenants
		return cfg
	}
	var next *config.Config
	r := startWith(t, with("acme", "brew", "crew"), app.Options{Log: slog.New(slog.DiscardHandler), Load: func() (*config.Config, error) { return next, nil }})
	r.exact(1)
	for i, name := range []string{"acme", "brew", "crew"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/v1/completions", strings.NewReader(`{"model":"mock","max_tokens":2,"prompt":"hi"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+name)
		resp, err := r.client.Do(req)
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
		r.wait("the request is booked", func() bool { return len(r.Telemetry().Last(0)) == i+1 })
	}
	series := func() (names []string) {
		for _, m := range regexp.MustCompile(`(?m)^warmpath_tenant_(?:requests|tokens)_total\{.*tenant="([a-z]+)"`).FindAllStringSubmatch(r.scrape(), -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	if got := series(); !slices.Equal(got, []string{"acme", "brew", "crew"}) {
		t.Errorf("series of %q", got)
	}
	next = with("brew", "crew")
	if _, err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := series(); !slices.Equal(got, []string{"brew", "crew"}) {
		t.Errorf("series of %q after acme has left", got)
	}
	var names []string
	for i := range 99 {
		names = append(names, fmt.Sprintf("b%02d", i))
	}
	next = with(append(names, "brew", "crew")...) // crew is not one of the first 100
	if _, err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	if got := series(); !slices.Equal(got, []string{"brew"}) {
		t.Errorf("series of %q after 99 tenants have come", got)
	}
}
