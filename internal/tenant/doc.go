// Package tenant knows who may use the gateway, and how much: tenants with their keys, their limits and their models.
// It knows no HTTP server, no request body and no worker.
//
// A Registry finds the tenant of a key. The gateway then asks this Tenant for each limit:
//
//	t := registry.ByKey(key)
//	if limited := t.Enter(now); limited != nil {
//		// answer 429 with limited.RetryAfter
//	}
//	defer t.Leave()
//	t.Allows(model)
//	limited := t.Spend(promptTokens, now)
//
// Time is an argument, as in the core.
package tenant
