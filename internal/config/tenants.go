package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/warmpath/warmpath/internal/tenant"
)

// EnvTenantSaltKey is the environment variable with the secret of tenants' cache salts. It overrides the file.
const EnvTenantSaltKey = "WARMPATH_TENANT_SALT_KEY"

// minSaltKey is the minimum length of the secret of cache salts, in bytes: 128 bits in hex have 32.
const minSaltKey = 32

// readTenants fills AllTenants and TenantSaltKey from the file's list, tenants_file and tenant_salt_key_file.
func (c *Config) readTenants(found *problems) {
	c.AllTenants = c.Tenants
	if c.TenantsFile != "" {
		list, err := tenant.ReadFile(c.TenantsFile)
		switch {
		case err != nil:
			for _, e := range parts(err) {
				found.add("tenants_file", placed(e, c.TenantsFile))
			}
			list = nil // so that no problem is reported a second time
		case len(list) == 0:
			found.add("tenants_file", fmt.Errorf("%s has no tenants, so the gateway would be open to all; to open it remove tenants_file", c.TenantsFile))
		}
		c.AllTenants = append(append([]tenant.Config{}, c.Tenants...), list...)
	}
	found.secret(secret{path: "tenant_salt_key", value: &c.TenantSaltKey, override: EnvTenantSaltKey, file: c.TenantSaltKeyFile})
}

func (c *Config) validateTenants(found *problems) {
	where := func(i int) string {
		if i < len(c.Tenants) {
			return fmt.Sprintf("tenants[%d]", i)
		}
		return "tenants_file"
	}
	// The reader of tenants_file has checked its own entries, and a file with an error has none here. Here they can only
	// repeat a name or a key of the list.
	for _, e := range tenant.Validate(c.AllTenants, where) {
		path, problem, ok := strings.Cut(e.Error(), ": ")
		if !ok {
			path, problem = "tenants", e.Error()
		}
		found.add(path, errors.New(problem))
	}
	found.section("jwt", c.JWT.Validate())
	if c.JWT.On() && len(c.AllTenants) == 0 {
		found.add("jwt.issuer", errors.New("tokens name tenants, and there are none: list tenants"))
	}
	for i := range c.AllTenants {
		switch t := &c.AllTenants[i]; {
		case len(t.KeysSHA256) == 0 && !c.Gateway.NamesTenants() && !c.JWT.On():
			found.add(where(i)+".keys_sha256", fmt.Errorf("the tenant %q has no key, so nobody can be this tenant: add the SHA-256 of a key, or set "+
				"jwt.issuer where tokens name the tenant, or gateway.tenant_header where a proxy does", t.Name))
			return
		case t.CacheSalt == tenant.SaltOwn && len(c.TenantSaltKey) < minSaltKey:
			found.add(where(i)+".cache_salt", fmt.Errorf("own needs a secret of at least %d bytes in tenant_salt_key_file or %s: openssl rand -hex 32 prints one. "+
				"All replicas need the same secret", minSaltKey, EnvTenantSaltKey))
			return // one line is enough for 100,000 tenants
		}
	}
}
