package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/policy"
)

// identity finds a request's conversation and tenant. It looks only at headers and body fields that are made for this
// purpose, never at prompts. It is safe for concurrent use.
type identity struct {
	headers []namedHeader
	fields  []api.Field
	tenant  string // canonical name of the header with the tenant; "" is none
	named   bool   // the header has names of tenants, and not keys
	// A random seed of this process. Without it, a tenant's hash cannot be computed from an API key.
	seed maphash.Seed
}

// namedHeader is a header field: its canonical name, as net/http uses it, and the name under which sessions show it as
// their source.
type namedHeader struct{ canonical, source string }

// maxKey is the longest session key or tenant that is kept as it is. A longer text is replaced by its digest.
const maxKey = 256

// newIdentity returns the identity for cfg, which has passed Validate.
func newIdentity(cfg *Config) identity {
	id := identity{tenant: textproto.CanonicalMIMEHeaderKey(cfg.TenantHeader), named: cfg.NamesTenants(), seed: maphash.MakeSeed()}
	for _, name := range cfg.SessionHeaders {
		id.headers = append(id.headers, namedHeader{textproto.CanonicalMIMEHeaderKey(name), strings.ToLower(name)})
	}
	for _, name := range cfg.SessionFields {
		if f, ok := api.SessionField(name); ok {
			id.fields = append(id.fields, f)
		}
	}
	return id
}

// session returns the first session key that it finds. It looks in the headers first, then in the body's fields.
func (id *identity) session(h http.Header, r *api.Request) policy.Session {
	for _, name := range id.headers {
		if values := h[name.canonical]; len(values) > 0 {
			if key := strings.TrimSpace(values[0]); key != "" {
				return policy.Session{Key: bounded(key), Source: name.source}
			}
		}
	}
	for _, f := range id.fields {
		if key := r.Session(f); key != "" {
			return policy.Session{Key: bounded(key), Source: f.String()}
		}
	}
	return policy.Session{}
}

// tenantOf returns the tenant of a request: the tenant header's value, else a hash of the API key, else "".
func (id *identity) tenantOf(h http.Header) string {
	if id.tenant != "" {
		if values := h[id.tenant]; len(values) > 0 && values[0] != "" {
			if slices.Contains(credentials, id.tenant) {
				return id.hashed(values[0])
			}
			return bounded(values[0])
		}
	}
	for _, name := range credentials[:2] {
		if values := h[name]; len(values) > 0 && values[0] != "" {
			return id.hashed(values[0])
		}
	}
	return ""
}

// NamesTenants reports whether a header names the tenants. Otherwise a tenant is a hash of a key.
func (c Config) NamesTenants() bool {
	return c.TenantHeader != "" && !slices.Contains(credentials, textproto.CanonicalMIMEHeaderKey(c.TenantHeader))
}

// credentials are header fields with secret values. The first two identify a tenant.
var credentials = []string{"Authorization", "X-Api-Key", "Api-Key", "Proxy-Authorization", "Cookie"}

// hashed returns the hash that replaces a key wherever a tenant is shown.
func (id *identity) hashed(key string) string {
	var text [20]byte
	return string(strconv.AppendUint(append(text[:0], "key-"...), maphash.String(id.seed, key), 16))
}

func bounded(key string) string {
	if len(key) <= maxKey {
		return key
	}
	digest := sha256.Sum256([]byte(key))
	return "sha256-" + hex.EncodeToString(digest[:])
}

// allowed has the policies that a request may choose.
type allowed map[string]bool

// AllowPolicies sets the policies that requests may name in X-Warmpath-Policy.
func (g *Gateway) AllowPolicies(names []string) {
	set := allowed{}
	for _, name := range names {
		set[name] = true
	}
	g.allowed.Store(&set)
}

// policyFor returns the policy that decides a request, and the policy's name as the request gives it. The name is ""
// when the request names no policy.
func (g *Gateway) policyFor(h http.Header, model string) (name string, p *policy.Policy, err error) {
	if values := h[headerPolicy]; len(values) > 0 && values[0] != "" {
		name = values[0]
		if set := *g.allowed.Load(); !set[name] {
			return "", nil, refusedPolicy(name, set)
		}
	}
	if p, err = g.Router.Policy(name, model); err != nil {
		return "", nil, g.routeError(err, model, -1)
	}
	return name, p, nil
}

func refusedPolicy(name string, set allowed) *api.Error {
	if len(set) == 0 {
		return api.Invalid("", "requests may not choose their policy here: leave out the header "+headerPolicy+", or have the operator list policies in request_policies")
	}
	return api.Invalid("", fmt.Sprintf("%s: %.64q is none of %s", headerPolicy, name, strings.Join(slices.Sorted(maps.Keys(set)), ", ")))
}
