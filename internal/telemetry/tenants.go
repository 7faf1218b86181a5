package telemetry

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

func (t *Telemetry) makeTenantMetrics(f promauto.Factory) {
	t.tenantRequests = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_tenant_requests_total",
		Help: "Requests of known tenants, by tenant (the first 100 of the file by name, all others as other) and outcome: routed (a worker was asked), refused (no worker was asked, as the model is not the tenant's or none is free), requests_limited, concurrency_limited, tokens_limited (refused by that limit of the tenant)."},
		[]string{"tenant", "outcome"})
	t.tenantTokens = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_tenant_tokens_total",
		Help: "Tokens of finished requests, by tenant (the first 100 of the file by name, all others as other) and kind: prompt, output."}, []string{"tenant", "kind"})
}

// TenantRequest counts a request of a tenant. label is the tenant's name in metrics.
func (t *Telemetry) TenantRequest(label, outcome string) {
	t.tenantRequests.WithLabelValues(label, outcome).Inc()
}

// TenantTokens counts the tokens that a request of a tenant used.
func (t *Telemetry) TenantTokens(label string, prompt, output int) {
	if prompt > 0 {
		t.tenantTokens.WithLabelValues(label, "prompt").Add(float64(prompt))
	}
	if output > 0 {
		t.tenantTokens.WithLabelValues(label, "output").Add(float64(output))
	}
}

// ForgetTenant removes the series of a tenant that a reload has removed. A request of the tenant that is still under
// way makes its series again.
func (t *Telemetry) ForgetTenant(label string) {
	t.tenantRequests.DeletePartialMatch(prometheus.Labels{"tenant": label})
	t.tenantTokens.DeletePartialMatch(prometheus.Labels{"tenant": label})
}
