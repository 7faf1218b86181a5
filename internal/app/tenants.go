package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/tenant"
)

// noTenants returns the error for a file without the key tenants while tenants are in force: a file that was cut short
// must not open the gateway.
func noTenants(file string) error {
	err := errors.New("no list under tenants; the file may be cut short. To open the gateway to all write tenants: []")
	if file != "" {
		err = fmt.Errorf("%s: %w", file, err)
	}
	return err
}

// useTenants puts next's tenants in force. Callers hold a.mu.
func (a *App) useTenants(next *config.Config) {
	before := a.tenants.Tenants()
	a.tenants.Use(next.AllTenants, []byte(next.TenantSaltKey))
	for _, t := range before {
		if t.Label == tenant.Other {
			break // only the first tenants have series of their own
		}
		if now := a.tenants.ByName(t.Name); now == nil || now.Label == tenant.Other {
			a.telemetry.ForgetTenant(t.Label)
		}
	}
}

// compareTenants returns a line that says how many tenants change, or "". It names none, because there may be many.
func compareTenants(old, next *config.Config) string {
	before := make(map[string]*tenant.Config, len(old.AllTenants))
	for i := range old.AllTenants {
		before[old.AllTenants[i].Name] = &old.AllTenants[i]
	}
	added, changed := 0, 0
	for i := range next.AllTenants {
		t := &next.AllTenants[i]
		was, known := before[t.Name]
		delete(before, t.Name)
		switch {
		case !known:
			added++
		case !reflect.DeepEqual(was, t):
			changed++
		}
	}
	switch {
	case added+changed+len(before) > 0:
		return fmt.Sprintf("tenants: %d, %d added, %d changed, %d removed", len(next.AllTenants), added, changed, len(before))
	case old.TenantSaltKey != next.TenantSaltKey:
		return "tenants: another secret for cache salts"
	case !reflect.DeepEqual(old.AllTenants, next.AllTenants):
		return "tenants: another order"
	}
	return ""
}

// runIssuer keeps the keys of the tokens' issuer until ctx ends. The issuer is outside the cluster more often than
// engines are, so it may be asked through the proxy that the environment names.
func (a *App) runIssuer(ctx context.Context) error {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	defer transport.CloseIdleConnections()
	return a.issuer.Run(ctx, &http.Client{Transport: transport}, a.log)
}
