package gateway

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/tenant"
)

// ModelNames says which models take requests in place of the model that a request names.
type ModelNames struct {
	// Aliases has the model for each further name that clients may use.
	Aliases map[string]string
	// Fallbacks has the fall-backs of a model: the models that take its requests, in order, while it cannot.
	Fallbacks map[string][]string
}

// UseModelNames applies n to all requests that come from now on; n has passed the checks of package config. A request
// under way keeps the fall-backs that it began with.
func (g *Gateway) UseModelNames(n ModelNames) { g.names.Store(&n) }

// modelChoice is the choice of the model for one request.
type modelChoice struct {
	asked     string   // the name in the request; "" if the model with this name takes the request
	target    string   // the model that the name stands for
	fallbacks []string // the fall-backs of target that the request may use; shared by requests
	passed    int      // the number of models of target and fallbacks that could not take the request
}

// at returns model i of the target and its fall-backs.
func (m *modelChoice) at(i int) string {
	if i == 0 {
		return m.target
	}
	return m.fallbacks[i-1]
}

// next returns the number of the first fall-back after the present model that a worker can take now; 0 if there is
// none.
func (m *modelChoice) next(g *Gateway, snap *fleet.Snapshot, now int64) int {
	for i := m.passed + 1; i <= len(m.fallbacks); i++ {
		if g.takes(snap, m.at(i), now) {
			return i
		}
	}
	return 0
}

// chooseModel decides which model takes the request, and returns it. name is the model that the request names, or the
// only model of the fleet if it names none. The error is ready for api.WriteError.
func (g *Gateway) chooseModel(p *prepared, name string) (string, error) {
	names := g.names.Load()
	m := &p.choice
	if m.target == "" { // otherwise the request has passed a model, and keeps its fall-backs
		m.target = cmp.Or(names.Aliases[name], name)
		if names.forbidden(p.tenant, name) {
			return "", api.ModelForbidden(name)
		}
		m.fallbacks = p.allowed(names.Fallbacks[m.target])
	}
	// A request for a certain worker has no fall-back: that worker may not serve the other model.
	if m.passed == 0 && len(m.fallbacks) > 0 && !p.pinned {
		snap, now := g.Fleet.Snapshot(), time.Now().UnixNano()
		if !g.takes(snap, m.target, now) {
			m.passed = m.next(g, snap, now)
		}
	}
	m.asked = ""
	chosen := m.at(m.passed)
	if chosen != name {
		m.asked = name
	}
	return chosen, nil
}

// forbidden reports whether a tenant may use neither the model of that name nor the one that the name stands for. t is
// nil if the gateway is open.
func (n *ModelNames) forbidden(t *tenant.Tenant, name string) bool {
	return t != nil && !t.Allows(name) && !t.Allows(cmp.Or(n.Aliases[name], name))
}

// allowed returns the models that the request's tenant may use.
func (p *prepared) allowed(models []string) []string {
	forbidden := func(name string) bool { return p.tenant != nil && !p.tenant.Allows(name) }
	if !slices.ContainsFunc(models, forbidden) {
		return models
	}
	return slices.DeleteFunc(slices.Clone(models), forbidden)
}

// nextFallBack returns the number of the fall-back for which a worker can take the request now; 0 if there is none.
func (x *exchange) nextFallBack() int {
	m := &x.prepared.choice
	if m.passed >= len(m.fallbacks) || x.recovery != nil && x.recovery.again != none || x.prepared.pinned {
		return 0
	}
	return m.next(x.g, x.g.Fleet.Snapshot(), time.Now().UnixNano())
}

// The reasons for which a fall-back takes a request, as labels of warmpath_model_fallbacks_total.
const (
	fellUnavailable = "unavailable" // no worker could be chosen
	fellSaturated   = "saturated"   // all workers were saturated or answered 429 before, and the queue took no more
	fellFailed      = "failed"      // the attempts at the model's workers failed
)

// failedBy returns fellFailed if a fall-back may take a request whose last attempt ended so; "" if it may not. A
// request that the workers refused is probably at fault: another model would refuse it, too, or would hide the client's
// mistake.
func failedBy(r *proxy.Result) string {
	switch verdictOf(r) {
	case failed, limited, cut, broken:
		return fellFailed
	case good, lost, refused, useless:
		if r.Class == proxy.Abandoned && !r.FirstByte {
			return fellFailed
		}
	}
	return ""
}

// fallsBack returns the reason for which a fall-back may take a request that could not be routed because of err; "" if
// none may take it. last is the result of the last attempt, if there was one.
func (x *exchange) fallsBack(err error, last *proxy.Result) string {
	var refused *api.Error
	switch {
	case x.rec.Attempts > 0:
		return failedBy(last)
	case errors.Is(err, warmpath.ErrNoWorker), errors.Is(err, warmpath.ErrUnknownModel):
		return fellUnavailable
	case errors.Is(err, warmpath.ErrSaturated), errors.Is(err, warmpath.ErrLimited):
		return fellSaturated
	case errors.As(err, &refused):
		switch refused.Code {
		case api.CodeHoldFull, api.CodeHoldTimeout, api.CodeAdapterNotLoaded:
			return fellUnavailable
		case api.CodeSaturated, api.CodeQueueFull, api.CodeQueueTooLong, api.CodeQueueTimeout:
			return fellSaturated
		}
	}
	return ""
}

// fallBack prepares the request for the next fall-back of its model. It returns false if there is none that a worker
// can take now: then the caller's result stands.
func (x *exchange) fallBack(ctx context.Context, why string) bool {
	if why == "" || ctx.Err() != nil {
		return false
	}
	next := x.nextFallBack()
	if next == 0 {
		return false
	}
	p := &x.prepared
	m := p.choice
	from := m.at(m.passed)
	m.passed = next
	if err := x.prepareAgain(ctx, m, nil); err != nil {
		x.g.Log.Warn("a fall-back cannot take a request", "model", from, "fallback", m.at(m.passed), "error", err)
		return false
	}
	// Doubts about the workers of the other model say nothing about the workers of this one.
	x.recovery = nil
	clear(x.doubts)
	x.doubts, x.otherModel = x.doubts[:0], false
	x.most = x.rec.Attempts + x.g.cfg.Attempts
	x.g.Telemetry.FellBack(from, p.read.Model, why)
	x.noteModel()
	return true
}

// prepareAgain prepares the request for the model of m. The workers of exclude do not get it.
func (x *exchange) prepareAgain(ctx context.Context, m modelChoice, exclude []fleet.WorkerID) error {
	p := &x.prepared
	tenant, span := p.tenant, p.span
	p.reset()
	p.tenant, p.span, p.choice = tenant, span, m
	p.route.Exclude = append(p.route.Exclude[:0], exclude...)
	return x.g.prepare(ctx, p, x.dialect, x.path, x.body.Bytes, x.r.Header)
}

// noteModel puts the model that takes the request into the record, and into the answer's header if the request names
// another.
func (x *exchange) noteModel() {
	p := &x.prepared
	x.rec.Model, x.rec.AskedModel = p.read.Model, p.choice.asked
	if p.choice.asked != "" && x.g.cfg.Headers {
		x.w.Header().Set(headerModel, headerText(p.read.Model))
	}
}

// headerText returns text as it may stand in a header: a model's name may have characters that must not.
func headerText(text string) string {
	if i := slices.IndexFunc([]byte(text), func(c byte) bool { return c < ' ' || c > '~' }); i >= 0 {
		return strconv.QuoteToASCII(text)
	}
	return text
}

// listed returns the names of no ready model that a client may use, each with the model that takes its requests now.
// allows says which names the client may use.
func (n *ModelNames) listed(ready, allows func(name string) bool) map[string]string {
	out := map[string]string{}
	add := func(name, target string) {
		if ready(name) || !allows(name) && !allows(target) {
			return
		}
		if ready(target) {
			out[name] = target
			return
		}
		usable := func(model string) bool { return ready(model) && allows(model) }
		if i := slices.IndexFunc(n.Fallbacks[target], usable); i >= 0 {
			out[name] = n.Fallbacks[target][i]
		}
	}
	for alias, target := range n.Aliases {
		add(alias, target)
	}
	for target := range n.Fallbacks {
		add(target, target)
	}
	return out
}
