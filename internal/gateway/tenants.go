package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/tenant"
)

// visit is a request's use of its tenant's limits. The zero value is a request without a tenant.
type visit struct {
	tenant *tenant.Tenant
	// limited is the code of the limit that the request exceeds; "" if it exceeds none.
	limited string
	spent   int // prompt tokens that were taken before the request was sent
	prompt  int // prompt tokens and tokens of the answer that the request used
	output  int
}

// maxCredential is the greatest length of a key or a token in bytes. Tokens with many claims have some KB. A longer
// text is not hashed.
const maxCredential = 16 << 10

// whoAsks returns the tenant of a request, nil if the gateway is open. The error is ready for api.WriteError.
func (g *Gateway) whoAsks(h http.Header) (*tenant.Tenant, error) {
	if g.Tenants.Open() {
		return nil, nil
	}
	if g.identity.named {
		// A proxy in front of the gateway names the tenant. The name of a tenant with keys is not enough: otherwise a
		// client that reaches the gateway without the proxy would need no key.
		if values := h[g.identity.tenant]; len(values) > 0 {
			if t := g.Tenants.ByName(values[0]); t != nil && !t.Keyed() {
				return t, nil
			}
		}
	}
	presented := false
	for _, name := range credentials[:3] {
		values := h[name]
		if len(values) == 0 || values[0] == "" {
			continue
		}
		presented = true
		if key := credential(name, values[0]); len(key) <= maxCredential {
			if t := g.Tenants.ByKey(key); t != nil {
				return t, nil
			}
		}
	}
	if !presented {
		return nil, api.KeyMissing()
	}
	if values := h["Authorization"]; g.Issuer != nil && len(values) > 0 {
		return g.tenantOfToken(credential("Authorization", values[0]))
	}
	return nil, api.KeyUnknown()
}

// tenantOfToken returns the tenant that a token of the issuer names. A key was looked up before, so the issuer has no
// part in requests with keys.
func (g *Gateway) tenantOfToken(token string) (*tenant.Tenant, error) {
	name, err := g.Issuer.Tenant(token, time.Now())
	switch {
	case errors.Is(err, tenant.ErrNoToken):
		return nil, api.KeyUnknown()
	case errors.Is(err, tenant.ErrNoKeys):
		return nil, api.IssuerAbsent(err)
	case errors.Is(err, tenant.ErrNoClaim):
		return nil, api.TokenUnnamed(g.Issuer.Claim())
	case err != nil:
		return nil, api.TokenInvalid(err)
	}
	t := g.Tenants.ByName(name)
	if t == nil {
		return nil, api.TokenOfNobody(name)
	}
	return t, nil
}

// credential returns the key in a header field. In Authorization the name of the scheme comes first.
func credential(field, value string) string {
	if field != "Authorization" {
		return value
	}
	scheme, key, ok := strings.Cut(value, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return value
	}
	return strings.TrimSpace(key)
}

// tenantName returns the name of a request's tenant. t is nil if the gateway is open; then a header names the tenant,
// or the tenant is a hash of the key.
func (g *Gateway) tenantName(t *tenant.Tenant, h http.Header) string {
	if t != nil {
		return t.Name
	}
	return g.identity.tenantOf(h)
}

// refuseStranger answers a request whose tenant is not known.
func (g *Gateway) refuseStranger(w http.ResponseWriter, d api.Dialect, err error) {
	if api.AsError(err).Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="warmpath"`)
	}
	g.refuse(w, d, api.AsError(err).Code, err)
}

// enter begins the request of a tenant: the limits that need no body. The error is ready for api.WriteError.
func (x *exchange) enter(t *tenant.Tenant) error {
	if t == nil {
		return nil
	}
	now := time.Now()
	limited := t.Enter(now.UnixNano())
	x.showBudgets(t, now)
	if limited != nil {
		e := api.TenantLimited(limited.Limit.String(), limited.RetryAfter)
		x.g.Telemetry.TenantRequest(t.Label, e.Code)
		x.rec.Tenant = t.Name // for the access log
		return e
	}
	x.visit = visit{tenant: t}
	x.prepared.tenant = t
	return nil
}

// admit takes the tokens of the prompt from the tenant's budget. The error is ready for api.WriteError.
func (x *exchange) admit() error {
	t := x.visit.tenant
	if t == nil || t.TokensPerMinute == 0 {
		return nil
	}
	now := time.Now()
	// Without token ids, four bytes count as a token.
	tokens := cmp.Or(len(x.prepared.found.Tokens), x.prepared.read.PromptBytes()/4)
	limited := t.Spend(tokens, now.UnixNano())
	if limited == nil {
		x.visit.spent = tokens
	}
	x.showBudgets(t, now)
	if limited != nil {
		e := api.TenantLimited(limited.Limit.String(), limited.RetryAfter)
		x.visit.limited = e.Code
		return e
	}
	return nil
}

// used notes what the request has used, from the result of its last attempt.
func (x *exchange) used(r *proxy.Result) {
	v := &x.visit
	if v.tenant == nil {
		return
	}
	switch u := &r.Usage; {
	case r.Sent.IsZero() || notComputed(r.Status):
	case u.Seen:
		v.prompt, v.output = u.Prompt, cmp.Or(u.Completion, x.output)
	default:
		v.prompt, v.output = max(v.spent, len(x.prepared.found.Tokens)), x.output
	}
	// A count of the worker that is greater than the client's limit is not believed. Choices and limit are the client's
	// numbers, so their product may be too large for an int.
	if q := &x.prepared.route; q.MaxTokens > 0 {
		if each := (v.output-1)/max(q.Choices, 1) + 1; each > q.MaxTokens {
			v.output = q.MaxTokens * max(q.Choices, 1)
		}
	}
}

// leave ends the request of a tenant. It runs on every path, also after a panic. If the request reached no worker, its
// tokens are given back.
func (x *exchange) leave() {
	v := &x.visit
	if v.tenant == nil {
		return
	}
	v.tenant.Settle(v.spent, v.prompt, v.output)
	v.tenant.Leave()
	outcome := cmp.Or(v.limited, "refused")
	if x.routed {
		outcome = "routed"
	}
	x.g.Telemetry.TenantRequest(v.tenant.Label, outcome)
	x.g.Telemetry.TenantTokens(v.tenant.Label, v.prompt, v.output)
	x.visit = visit{}
}

// showBudgets tells the client what is left of its tenant's limits, in the headers that OpenAI's and Anthropic's
// clients know (https://platform.openai.com/docs/guides/rate-limits, https://docs.anthropic.com/en/api/rate-limits).
func (x *exchange) showBudgets(t *tenant.Tenant, now time.Time) {
	requests, tokens := t.Budgets(now.UnixNano())
	h := x.w.Header()
	for _, b := range [...]struct {
		what string
		tenant.Budget
	}{{"requests", requests}, {"tokens", tokens}} {
		switch {
		case b.Limit == 0:
		case x.dialect == api.AnthropicMessages || x.dialect == api.AnthropicCountTokens:
			name := "Anthropic-Ratelimit-" + strings.ToUpper(b.what[:1]) + b.what[1:]
			h.Set(name+"-Limit", strconv.Itoa(b.Limit))
			h.Set(name+"-Remaining", strconv.Itoa(b.Remaining))
			h.Set(name+"-Reset", now.Add(b.Reset).UTC().Format(time.RFC3339))
		default:
			h.Set("X-Ratelimit-Limit-"+b.what, strconv.Itoa(b.Limit))
			h.Set("X-Ratelimit-Remaining-"+b.what, strconv.Itoa(b.Remaining))
			h.Set("X-Ratelimit-Reset-"+b.what, b.Reset.Round(time.Millisecond).String())
		}
	}
}

// edited applies the settings for models and the tenant's settings to a request that was read: aliases and fall-backs,
// the tenant's models, its default model and its cache salt. It returns the body that goes to the worker: body itself,
// or a copy with other members.
func (g *Gateway) edited(ctx context.Context, p *prepared, d api.Dialect, body []byte) ([]byte, error) {
	t := p.tenant
	if d == api.OpenAIResponse {
		return body, nil
	}
	editable := !d.Unchecked() // the body is JSON
	var edits []api.Edit
	sent := p.read.Model // the model in the body
	name := sent
	if t != nil && editable {
		name = cmp.Or(name, t.DefaultModel)
	}
	if pool, ok := g.Fleet.Snapshot().Pool(name); ok && name == "" {
		name, sent = pool.Model, pool.Model // without a name, it is the only model of the fleet
	}
	model, err := g.chooseModel(p, name)
	if err != nil {
		return nil, err
	}
	if err := mayUseAdapters(t, d, body); err != nil {
		return nil, err
	}
	if model != sent {
		if !editable {
			return nil, api.ModelOfForm(name, model)
		}
		edits = append(edits, api.Edit{Name: "model", Value: quoted(model)})
	}
	if err := g.adapters.loadFor(ctx, p, model, len(body)); err != nil {
		return nil, err
	}
	pool, ok := g.Fleet.Snapshot().Pool(model)
	if t != nil && t.CacheSalt == tenant.SaltOwn && editable {
		switch {
		case p.read.MixedScopes:
			return nil, api.Invalid("cache_salt", "cache_salt and extra_key must be texts of at most 4,096 bytes here, because the router adds the tenant to the salt")
		case ok && d == api.AnthropicMessages && !allOf(pool.Workers, fleet.EngineVLLM):
			return nil, api.Unsalted()
		}
		edits = append(edits, api.Edit{Name: "cache_salt", Value: quoted(t.Salt(p.read.CacheSalt))})
	}
	if len(edits) == 0 {
		return body, nil
	}
	edited := api.AppendEdited(p.edited[:0], body, edits...)
	if cap(edited) <= keptText {
		p.edited = edited
	}
	return edited, api.Read(d, edited, &p.read)
}

// mayUseAdapters returns an error if the body names an adapter in lora_path that the tenant may not use.
func mayUseAdapters(t *tenant.Tenant, d api.Dialect, body []byte) error {
	if t == nil || len(t.Models) == 0 || d.Unchecked() {
		return nil
	}
	names, ok := api.LoRAPaths(body)
	if !ok {
		return api.Invalid("lora_path", "lora_path must be a text or a list of texts")
	}
	for _, name := range names {
		if !t.Allows(name) {
			return api.ModelForbidden(name)
		}
	}
	return nil
}

// allOf reports whether all workers run the engine.
func allOf(workers []*fleet.Worker, engine fleet.Engine) bool {
	for _, w := range workers {
		if w.Facts.Engine != engine {
			return false
		}
	}
	return true
}

// quoted returns text as JSON.
func quoted(text string) []byte {
	out, err := json.Marshal(text)
	if err != nil {
		panic("bug: marshal a text: " + err.Error())
	}
	return out
}

// priority returns the priority of a request in the queue. A client may let its request wait for others, but not push
// it before the requests of other tenants: its own priority counts only in the direction of later.
func (p *prepared) priority(highFirst bool) int {
	switch own := p.read.Priority; {
	case p.tenant == nil:
		return own
	case highFirst:
		return p.tenant.Priority + min(own, 0)
	default:
		return p.tenant.Priority + max(own, 0)
	}
}
