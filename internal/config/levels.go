package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
)

// GatewayLevels returns the settings of service levels in the form that a gateway takes.
func (c *Config) GatewayLevels() gateway.ServiceLevels {
	return gateway.ServiceLevels{All: c.ServiceLevels, ByModel: c.ModelServiceLevels, ByTenant: c.TenantServiceLevels, ByRequest: c.RequestServiceLevels}
}

func (c *Config) validateLevels(found *problems) {
	found.levels("service_levels", c.ServiceLevels)
	for model, list := range c.ModelServiceLevels {
		found.levels("model_service_levels."+model, list)
	}
	for tenant, list := range c.TenantServiceLevels {
		found.levels("tenant_service_levels."+tenant, list)
	}
	if _, nameless := c.TenantServiceLevels[""]; nameless {
		found.add("tenant_service_levels", errors.New("a tenant has no name"))
	}
	if len(c.TenantServiceLevels) > 0 && len(c.AllTenants) == 0 && !c.Gateway.NamesTenants() {
		why := "gateway.tenant_header is empty"
		if c.Gateway.TenantHeader != "" {
			why = fmt.Sprintf("gateway.tenant_header is %s, whose values are keys", c.Gateway.TenantHeader)
		}
		err := fmt.Errorf("%s, so a tenant is a hash of a key, and the hash differs after each start: list tenants, or set gateway.tenant_header to a header with the tenant's name", why)
		*found = append(*found, &problem{path: "tenant_service_levels", err: err, other: "gateway.tenant_header"})
	}
}

// levels adds the problems of the list at path.
func (p *problems) levels(path string, list []fleet.ServiceLevel) {
	if list == nil {
		p.add(path, errors.New("there is no list: write [] for no service levels"))
	}
	if n := len(list); n > fleet.MaxServiceLevels {
		p.add(path, fmt.Errorf("%d service levels, at most %d", n, fleet.MaxServiceLevels))
	}
	for i, l := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		p.level(at, l)
		if first := slices.Index(list, l); first < i {
			p.add(at, fmt.Errorf("%v is listed twice, first as %s[%d]", l, path, first))
		}
	}
}

// level adds the problem of the service level at path, if it has one.
func (p *problems) level(path string, l fleet.ServiceLevel) {
	err := l.Validate()
	switch {
	case err == nil:
	case l.FirstToken == 0: // a level without the key is read as 0
		p.add(path+".first_token", errors.New("the time is missing or 0: set a time such as 5s"))
	case l.FirstToken > 0 && l.PerToken >= 0: // the only mistake left is a time that is too long
		key := ".per_token"
		if (fleet.ServiceLevel{FirstToken: l.FirstToken}).Validate() != nil {
			key = ".first_token"
		}
		p.add(path+key, fmt.Errorf("%w, the largest value", err))
	default:
		p.section(path, err)
	}
}
