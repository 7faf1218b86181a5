package gateway

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/policy"
)

// prepared is a request that was read and whose tokens were found. It is pooled with its exchange.
type prepared struct {
	tenant  *tenant.Tenant // nil: the gateway is open
	choice  modelChoice
	adapter *adapterUse   // the adapter that the request uses; nil: none that the router loads
	held    time.Duration // the request waited for its adapter
	pinned  bool          // the request names its worker or its rank, or belongs to an answer of a worker
	read    api.Request
	body    []byte // the body for the worker: the client's own, or edited
	edited  []byte // buffer for an edited body
	found   tokens.Found
	model   string // the base model
	waited  time.Duration
	text    []byte // buffer for found.Text
	workers []tokens.Worker
	route   warmpath.Request
	// decisions is the Router's part of the preparation, which all decisions about the request share; nil until prepare
	// ends.
	decisions  *warmpath.Prepared
	rankChosen bool           // the client chose the rank by a header that engines understand
	patience   time.Duration  // how long the client would wait in the queue; 0: not given
	shadow     *shadow        // the shadow that is asked about the request; nil: none
	forShadow  []fleet.Cached // the answer of the shadow policy's external source, in the form of route.Cached
	// shadowAnswer receives the answer of the lookup for the shadow policy; nil when forShadow is complete.
	shadowAnswer <-chan []fleet.Cached
	levels       *levels        // the service levels that were in force when the request came
	span         telemetry.Span // of the request
	toolCalls    bool           // the engine may call tools itself, and generate several times for one answer
	changing     bool           // the prompt has the line that Claude Code changes with every request
	kept         *keptTurn      // whose blocks the prefill worker may read; nil: none
	explains     bool           // find tokens and text even if the policy needs none
}

func (p *prepared) reset() {
	if t := p.found.Text; t != nil && cap(t) <= keptText {
		p.text = t
	}
	p.found = tokens.Found{}
	if p.decisions != nil {
		p.decisions.Recycle()
		p.decisions = nil
	}
	p.adapter.leave()
	p.adapter, p.held = nil, 0
	p.tenant, p.body, p.choice, p.pinned = nil, nil, modelChoice{}, false
	exclude := p.route.Exclude[:0]
	p.route = warmpath.Request{Exclude: exclude}
	p.rankChosen, p.patience = false, 0
	p.model, p.waited, p.shadow, p.forShadow, p.shadowAnswer = "", 0, nil, nil, nil
	p.levels, p.changing, p.toolCalls, p.span, p.kept = nil, false, false, telemetry.Span{}, nil
}

// unneeded is the token outcome if the policy does not look at matches, or if the dialect's prompts are not matched.
const unneeded tokens.Outcome = "unneeded"

// prepare reads body and finds its tokens. endpoint is the path of the request's scope. An error is ready for
// api.WriteError.
func (g *Gateway) prepare(ctx context.Context, p *prepared, d api.Dialect, endpoint string, body []byte, h http.Header) error {
	if err := api.ReadAs(d, h.Get("Content-Type"), body, &p.read); err != nil {
		return err
	}
	if err := refuseForeign(body, h); err != nil {
		return err
	}
	if err := p.readRank(h); err != nil {
		return err
	}
	p.pinned = h.Get(headerTarget) != "" || p.route.Rank.Asked() || p.read.PreviousResponseID != ""
	if err := p.readPatience(h); err != nil {
		return err
	}
	var err error
	if p.body, err = g.edited(ctx, p, d, body); err != nil {
		return err
	}
	p.levels = g.levels.Load()
	levels, err := p.levels.named(h)
	if err != nil {
		return err
	}
	p.changing = tokens.HasChangingLine(&p.read)
	p.workers = p.workers[:0]
	name, decides, err := g.policyFor(h, p.read.Model)
	if err != nil {
		return err
	}
	shadow := g.shadow.Load()
	p.route.Policy, p.shadow = name, nil
	if shadow.asks(decides) {
		p.shadow = shadow
	}
	pool, ok := g.Fleet.Snapshot().Pool(p.read.Model)
	base := p.read.Model
	if ok {
		base = pool.Model
	}
	p.model = base
	switch {
	case !ok:
		p.found.Outcome = tokens.NoWorker
	case !d.Matched(), !decides.Matches() && !shadow.wants() && !p.explains:
		p.found.Outcome = unneeded
	default:
		p.workers = appendWorkers(p.workers, pool.Workers, pool.Model)
		began := time.Now()
		span := p.span.Part("tokenize")
		p.found = g.Tokens.Find(ctx, tokens.Prompt{Request: &p.read, Authorization: h.Get("Authorization"), Model: pool.Model, Scratch: p.text}, p.workers)
		p.waited = time.Since(began)
		span.Text("warmpath.token_source", string(p.found.Outcome))
		span.Text("warmpath.tokens_missing", string(p.found.Missing))
		span.Int("warmpath.prompt_tokens", len(p.found.Tokens))
		span.End()
	}
	if d.Matched() && (decides.NeedsText() || shadow.wantsText() || p.explains) && p.found.Text == nil {
		p.found.Text = tokens.AppendPromptText(p.text[:0], &p.read)
	}
	q := &p.route
	q.Model, q.MaxTokens, q.PromptBytes = p.read.Model, p.read.LongestAnswer, p.read.PromptBytes()
	if !d.Generates() {
		q.MaxTokens = 1 // otherwise the router would expect an answer of the usual length
	}
	if p.toolCalls = callsTools(&p.read); p.toolCalls {
		q.MaxTokens = 0 // the limit is not that of the whole answer
	}
	q.Undivided = undivided(d, p)
	q.Scope = fleet.ScopeOf(p.read.Model, endpoint)
	q.Whole, q.Choices = !p.read.Stream, p.read.N*max(p.read.Prompts, 1)
	q.Salt, q.Extra = p.read.CacheSalt, p.read.ExtraKey
	q.Target = h.Get(headerTarget)
	q.Session, q.Tenant = g.identity.session(h, &p.read), g.tenantName(p.tenant, h)
	if err := g.continues(p, q.Tenant); err != nil {
		return err
	}
	if q.Levels = levels; levels == nil {
		q.Levels = p.levels.of(q.Tenant, q.Model, base)
	}
	// If MixedScopes is true, the salt or the extra key of each prompt is not known. The router then gets no tokens:
	// without salt and key, the tokens would match cached blocks of other requests.
	if !p.read.MixedScopes {
		q.Tokens, q.Features, q.Text = p.found.Tokens, p.found.Features, p.found.Text
		q.Known, q.Stable = p.found.Known, p.found.Stable
	}
	if !p.explains { // Explain itself asks the sources of the policies that it explains
		if p.shadow != nil {
			g.askForShadow(ctx, p) // first, so that both sources are looked up at the same time
		}
		q.Cached = p.askSource(ctx, decides)
	}
	g.findTurn(p)
	p.decisions = g.Router.Prepare(q)
	g.askIndex(ctx, p)
	return nil
}

// sure returns the prompt's tokens for an external source: only the token ids that are the engine's own.
func (p *prepared) sure() []block.Token {
	return p.route.Tokens[:min(p.found.Sure, len(p.route.Tokens))]
}

// askSource asks the external source of policy x, and returns its answer, or nil if x has no source. The source is
// asked here, once for each request, and not during the decision: a decision that waited would hold up all requests in
// the queue.
func (p *prepared) askSource(ctx context.Context, x *policy.Policy) []fleet.Cached {
	source := x.Source()
	if source == nil {
		return nil
	}
	return source(ctx, p.sure())
}

// readPatience reads X-Warmpath-Max-Wait: seconds, or a duration with its unit.
func (p *prepared) readPatience(h http.Header) error {
	values := h[headerPatience]
	if len(values) == 0 {
		return nil
	}
	d, err := time.ParseDuration(values[0])
	if seconds, notNumber := strconv.ParseFloat(values[0], 64); notNumber == nil {
		d, err = time.Duration(min(seconds, 3600)*float64(time.Second)), nil
	}
	if err != nil || d <= 0 {
		return api.Invalid("", headerPatience+" must say how long to wait, such as 2s or 500ms")
	}
	p.patience = d
	return nil
}

// readRank finds the data-parallel rank that the client asked for. vLLM reads only the header; SGLang reads the header
// first, then the body.
func (p *prepared) readRank(h http.Header) error {
	p.route.Rank = warmpath.OnRank(p.read.Rank)
	values := h[headerRank]
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return nil
	}
	rank, err := strconv.ParseUint(values[0], 10, 15)
	switch {
	case err != nil:
		return api.Invalid("", headerRank+" must be a data-parallel rank, a whole number from 0 to 32767, not "+api.Quoted(values[0]))
	case len(values) > 1:
		return api.Invalid("", headerRank+" stands more than once; send it once")
	}
	p.route.Rank, p.rankChosen = warmpath.OnRank(int(rank)), true
	return nil
}

// appendWorkers adds the workers that may be asked for the tokens of a base model. If at least one worker is known to
// give tokens, only such workers are added.
func appendWorkers(dst []tokens.Worker, workers []*fleet.Worker, model string) []tokens.Worker {
	gives := func(w *fleet.Worker) bool { return w.Ready && (w.Facts.CanTokenize || w.Facts.CanRender) }
	some := slices.ContainsFunc(workers, gives)
	for _, w := range workers {
		if !w.Ready || some && !gives(w) {
			continue
		}
		dst = append(dst, tokens.WorkerOf(w, model))
	}
	return dst
}

// longPrompt is the prompt length, in tokens, for which loads computes the time of a prompt token. The result is used
// for prompts of every length, although attention makes each token of a longer prompt take longer.
const longPrompt = 4096

// loads takes a snapshot of the fleet, and returns a function for the token source. For an engine of the snapshot, this
// function returns how many requests the engine has, and how long it takes for a prompt token.
func (g *Gateway) loads() func(tokens.Worker) tokens.Load {
	s, now := g.Fleet.Snapshot(), time.Now().UnixNano()
	return func(w tokens.Worker) (out tokens.Load) {
		known := s.ByID(fleet.WorkerID(w.ID))
		if known == nil {
			return out
		}
		for _, h := range known.Holders {
			load := s.LoadAt(h, now)
			out.Requests += int(load.Requests)
			out.Waiting += int(load.Waiting)
			out.PerToken = max(out.PerToken, time.Duration(load.Timing.Prompt(longPrompt, longPrompt)/longPrompt*float64(time.Millisecond)))
		}
		return out
	}
}
