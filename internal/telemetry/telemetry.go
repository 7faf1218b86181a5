package telemetry

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// The values of Record.ChangingLine.
const (
	LineDropped  = "dropped"
	LineRendered = "rendered"
)

// Telemetry counts requests and remembers decisions. It is safe for concurrent use and starts no goroutine.
type Telemetry struct {
	// Deciding records the decisions that are running. A decision chooses a worker for a request, and records that the
	// worker will have the prompt in its cache.
	Deciding Progress

	registry *prometheus.Registry
	ring     *ring
	ids      atomic.Uint64

	requests   *prometheus.CounterVec
	retries    *prometheus.CounterVec
	fellBack   *prometheus.CounterVec
	refused    *prometheus.CounterVec
	firstToken *prometheus.HistogramVec
	total      *prometheus.HistogramVec
	routing    prometheus.Histogram
	tokens     *prometheus.CounterVec
	tokenWait  prometheus.Histogram
	tokenAsked *prometheus.CounterVec
	difference *prometheus.HistogramVec
	compared   *prometheus.CounterVec
	panics     prometheus.Counter
	inFlight   prometheus.Gauge
	reloads    *prometheus.CounterVec
	queued     *prometheus.HistogramVec
	recoveries *prometheus.CounterVec
	held       *prometheus.HistogramVec
	holding    prometheus.Gauge
	heldBytes  prometheus.Gauge

	adapterOrders *prometheus.CounterVec
	adapterWait   *prometheus.HistogramVec

	branches *prometheus.CounterVec

	policyFailures *prometheus.CounterVec
	shadowed       *prometheus.CounterVec
	shadowDiff     *prometheus.HistogramVec
	shadowCost     *prometheus.HistogramVec
	levels         *prometheus.CounterVec
	changing       *prometheus.CounterVec
	changingTokens prometheus.Counter

	tenantRequests *prometheus.CounterVec
	tenantTokens   *prometheus.CounterVec

	legs legMetrics

	journals *prometheus.CounterVec
	spans    *prometheus.CounterVec
	lookups  *prometheus.HistogramVec
	index    indexMetrics
	shared   *sharedCollector

	levelMu    sync.Mutex
	levelNames map[string]bool // guarded by levelMu: the values of the label level, at most maxLevels

	perWorker sync.Map // workerKey → *workerSeries: Finished finds all series of a worker and policy with one look-up
	workers   sync.Map // URL → struct{}: the workers that have series

	goneMu sync.Mutex
	gone   map[string]time.Time // guarded by goneMu: when a scrape first missed the worker with this URL
}

// workerKey identifies the series of one worker and one policy.
type workerKey struct{ worker, policy string }

// workerSeries has the series that finished requests of one worker and one policy change.
type workerSeries struct {
	firstToken, total, difference                                  prometheus.Observer
	prompt, matched, predicted, atRisk, reported, uncached         prometheus.Counter
	equal, over, under, unreported, unasked, approximate, unrouted prometheus.Counter
}

// New returns a Telemetry with its own registry. It does not use the global registry of Prometheus.
func New(cfg Config) *Telemetry {
	t := &Telemetry{registry: prometheus.NewRegistry(), ring: newRing(cfg.Decisions), gone: map[string]time.Time{}, levelNames: map[string]bool{}}
	t.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	f := promauto.With(t.registry) // registers what it makes
	t.makeRequestMetrics(f)
	t.makeTokenMetrics(f)
	t.makeQueueMetrics(f)
	t.makeDecisionMetrics(f)
	t.makeTenantMetrics(f)
	t.makeChangingMetrics(f)
	t.makeJournalMetrics(f)
	t.makeTraceMetrics(f)
	t.makeAdapterMetrics(f)
	t.makeLegMetrics(f)
	t.makeLookupMetrics(f)
	t.makeIndexMetrics(f)
	t.makeSharedIndexMetrics()
	return t
}

// latencyBuckets range from 1 ms (a small model, and a prompt that is cached) to 2 min (a long prompt that waits and is
// not cached).
var latencyBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}

// differenceBuckets have a bucket for the difference 0 alone: the bucket above -1 and up to 0 contains only 0, because
// numbers of tokens are whole numbers.
var differenceBuckets = []float64{-16384, -4096, -1024, -256, -64, -16, -1, 0, 16, 64, 256, 1024, 4096, 16384}

func (t *Telemetry) makeRequestMetrics(f promauto.Factory) {
	t.requests = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_requests_total",
		Help: "Finished requests. status is the HTTP status that the client got, or 499 if it left first. branch is the rule that decided."},
		[]string{"policy", "worker", "status", "branch"})
	t.retries = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_retries_total",
		Help: "Attempts that failed before the first byte and were retried elsewhere, by worker and reason: failed (no answer, 502, 503, 504), limited (429), refused (3xx, 4xx), broken (500), useless (200 without an answer), suspect (frozen), local (the router's machine)."}, []string{"worker", "reason"})
	t.fellBack = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_model_fallbacks_total",
		Help: "Requests that a fall-back took (model_fallbacks), by the model, by the fall-back, and by reason: unavailable (no worker could take the request), saturated (the model's queue took no more), failed (the attempts at the model's workers failed)."},
		[]string{"model", "fallback", "reason"})
	t.refused = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_refused_total",
		Help: "Requests that the router answered without asking a worker, by reason: the code of the error (docs/api.md), or headers, method, not_found, connections, client_gone."}, []string{"reason"})
	t.firstToken = f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_first_token_seconds",
		Help: "Time from the request's header to the first generated token. If an answer is not streamed, this is the time until the answer begins to arrive, which is about the time of the whole request.", Buckets: latencyBuckets}, []string{"policy", "worker"})
	t.total = f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_request_seconds",
		Help: "Time from the request's header to the last byte of the answer.", Buckets: latencyBuckets}, []string{"policy", "worker"})
	t.routing = f.NewHistogram(prometheus.HistogramOpts{Name: "warmpath_routing_seconds",
		Help:    "Time of the decisions of a request (Router.Route), all attempts together.",
		Buckets: []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2}})
	t.levels = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_service_level_answers_total",
		Help: "Complete answers, once for each service level of the request, by level (such as 5s/100ms) and by whether the answer kept it. level is request if only a request's header names the level, and other after 64 different levels. Not counted: failed and refused requests, and answers in one piece without a usage. An answer in one piece does not show its first token. It keeps a level if its whole time is at most first_token + per_token · (tokens − 1). A level without per_token does not count for it."},
		[]string{"level", "kept"})
	t.panics = f.NewCounter(prometheus.CounterOpts{Name: "warmpath_panics_total",
		Help: "Requests whose handler panicked: each is a bug."})
	t.inFlight = f.NewGauge(prometheus.GaugeOpts{Name: "warmpath_requests_in_flight",
		Help: "Requests to the model API that are being served now."})
	t.reloads = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_reloads_total",
		Help: "Reloads of the configuration file, by result (ok or error)."}, []string{"result"})
	for _, result := range []string{"ok", "error"} {
		t.reloads.WithLabelValues(result) // increase() does not see a series that begins at 1
	}
}

func (t *Telemetry) makeQueueMetrics(f promauto.Factory) {
	t.queued = f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_queue_wait_seconds",
		Help: "Time that requests waited in the queue, by how the wait ended: routed, timeout, client_gone, drained, failed (there is no worker any more), shed (its place went to another tenant), full and too_long (the request was refused without a wait).", Buckets: latencyBuckets}, []string{"outcome"})
	t.held = f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_hold_wait_seconds",
		Help: "Time for which requests were held because no worker could take them, by how it ended: routed, timeout, client_gone, drained, failed (another error), released (a reload turned the hold off), full (the request was refused without a wait).", Buckets: latencyBuckets}, []string{"outcome"})
	t.recoveries = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_stream_recoveries_total",
		Help: "Streams that lost their worker after they had begun. outcome: recovered (the stream continued at another worker to its end) or refused (it ended with an error event). reason: how a recovered stream was lost, or why it did not continue."},
		[]string{"outcome", "reason"})
	t.holding = f.NewGauge(prometheus.GaugeOpts{Name: "warmpath_held_requests",
		Help: "Requests that are held now because no worker can take them."})
	t.heldBytes = f.NewGauge(prometheus.GaugeOpts{Name: "warmpath_held_bytes",
		Help: "Memory of the bodies of requests that are held now."})
}

func (t *Telemetry) makeDecisionMetrics(f promauto.Factory) {
	t.branches = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_decisions_total",
		Help: "Decisions, by policy and by branch (the rule that decided). A retry of a request is one more decision."}, []string{"policy", "branch"})
	t.policyFailures = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_policy_failures_total",
		Help: "Failed calls of a policy that is a script, by the call (choose, on_routed, on_finished). If choose fails, the default policy decides that request."}, []string{"policy", "call"})
	t.shadowed = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_shadow_decisions_total",
		Help: "Requests that the shadow policy decided, too, by the shadow's choice: same (the same holder as the real decision), other (another holder), none."}, []string{"policy", "result"})
	t.shadowDiff = f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_shadow_difference_tokens",
		Help:    "For requests that the shadow policy would send to another holder: the cached tokens that the shadow predicted, minus the cached tokens that the real decision predicted.",
		Buckets: differenceBuckets}, []string{"policy"})
	t.shadowCost = f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_shadow_seconds",
		Help:    "The time of the shadow policy's decisions.",
		Buckets: []float64{1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2}}, []string{"policy"})
}

// Shadowed counts a decision of the shadow policy.
func (t *Telemetry) Shadowed(s *Shadow) {
	result := "other"
	switch {
	case s.Worker == "":
		result = "none"
	case s.Agrees:
		result = "same"
	default:
		t.shadowDiff.WithLabelValues(s.Policy).Observe(float64(s.Difference))
	}
	t.shadowed.WithLabelValues(s.Policy, result).Inc()
	t.shadowCost.WithLabelValues(s.Policy).Observe(s.MS / 1000)
}

// Decided counts a decision.
func (t *Telemetry) Decided(policy, branch string) { t.branches.WithLabelValues(policy, branch).Inc() }

// PolicyFailed counts a failed call of a policy, such as a script's choose.
func (t *Telemetry) PolicyFailed(policy, call string) {
	t.policyFailures.WithLabelValues(policy, call).Inc()
}

// Queued counts a request that waited for a worker, or that the queue refused, by the outcome. trace is the id of the
// request's trace, "" if none is recorded.
func (t *Telemetry) Queued(outcome string, wait time.Duration, trace string) {
	observe(t.queued.WithLabelValues(outcome), wait.Seconds(), trace)
}

// Held counts a request that was held because no worker could take it, or could not be held, by the outcome. trace is
// as in Queued.
func (t *Telemetry) Held(outcome string, wait time.Duration, trace string) {
	observe(t.held.WithLabelValues(outcome), wait.Seconds(), trace)
}

// Recovered counts a stream that lost its worker after it had begun.
func (t *Telemetry) Recovered(outcome, reason string) {
	t.recoveries.WithLabelValues(outcome, reason).Inc()
}

// Holding adds to the number of requests that are held now, and to the bytes of their bodies.
func (t *Telemetry) Holding(requests int, bytes int64) {
	t.holding.Add(float64(requests))
	t.heldBytes.Add(float64(bytes))
}

func (t *Telemetry) makeTokenMetrics(f promauto.Factory) {
	t.tokens = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_tokens_total",
		Help: "Prompt tokens of finished requests, by kind: prompt (all), matched (in confirmed blocks), predicted (expected to be cached: matched and speculative, without those at risk), at_risk (matched, but expected to be evicted before the request is scheduled), reported (cached, as the engine reports), uncached (prompt minus reported)."},
		[]string{"kind", "policy", "worker"})
	t.tokenWait = f.NewHistogram(prometheus.HistogramOpts{Name: "warmpath_token_wait_seconds",
		Help: "The time that a request waited for its token ids.", Buckets: []float64{1e-5, 1e-4, 5e-4, .001, .0025, .005, .01, .025, .05, .1, .25}})
	t.tokenAsked = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_token_requests_total",
		Help: "Prompts by the source of their token ids (outcome); text if the prompt was matched by its text instead. missing says why there were no ids."},
		[]string{"outcome", "missing"})
	t.difference = f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_prediction_difference_tokens",
		Help: "Matched tokens not at risk, minus the cached tokens that the engine reported, for each request with a report. The bucket le=0 minus the bucket le=-1 counts equality; values above 0 are predictions that were too high.", Buckets: differenceBuckets},
		[]string{"worker"})
	t.compared = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_predictions_total",
		Help: "Finished requests, by how the predicted cached tokens compare with the reported ones: equal, over (more tokens were predicted), under (fewer). Not compared: unreported (the engine gave no figure), unasked (a stream without stream_options.include_usage), unrouted (no token ids to predict with), approximate (the trust was approximate or none)."},
		[]string{"outcome", "worker"})
}

func (t *Telemetry) makeChangingMetrics(f promauto.Factory) {
	t.changing = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_changing_line_prompts_total",
		Help: "Finished requests whose prompt has the line that Claude Code changes with every request, by effect: dropped (the engine leaves the line out) or rendered (the engine cannot use its cache behind the line)."},
		[]string{"effect"})
	t.changingTokens = f.NewCounter(prometheus.CounterOpts{Name: "warmpath_changing_line_uncached_tokens_total",
		Help: "Prompt tokens without those expected to be cached, of prompts with a rendered changing line: at most this much was computed again because of the line."})
}

// Started counts a request as being served, and returns the number of the request.
func (t *Telemetry) Started() uint64 {
	t.inFlight.Inc()
	return t.ids.Add(1)
}

// Ended counts a request as no longer being served. Each call of Started is followed by a call of Ended, even if the
// request is refused.
func (t *Telemetry) Ended() { t.inFlight.Dec() }

// Finished counts a request that was routed, and keeps a copy of rec among the last decisions.
func (t *Telemetry) Finished(rec *Record) {
	t.ring.add(rec)
	t.requests.WithLabelValues(rec.Policy, rec.Worker, strconv.Itoa(rec.Status), rec.Branch).Inc()
	observe(t.routing, rec.RouteMS/1000, rec.TraceID)
	s := t.series(workerKey{rec.Worker, rec.Policy})
	observe(s.total, rec.TotalMS/1000, rec.TraceID)
	if rec.FirstTokenMS > 0 {
		observe(s.firstToken, rec.FirstTokenMS/1000, rec.TraceID)
	}
	s.prompt.Add(float64(rec.PromptTokens))
	s.matched.Add(float64(rec.MatchTokens))
	s.predicted.Add(float64(rec.PredictedTokens))
	s.atRisk.Add(float64(rec.AtRiskTokens))
	if rec.ChangingLine != "" {
		t.changing.WithLabelValues(rec.ChangingLine).Inc()
	}
	if rec.ChangingLine == LineRendered {
		t.changingTokens.Add(float64(max(rec.PromptTokens-rec.PredictedTokens, 0)))
	}
	if rec.Status == http.StatusOK {
		s.compare(rec)
	}
}

// observe adds a value to a histogram. trace is the id of the request's trace, "" if no trace is recorded. It becomes
// the exemplar of the value's bucket (https://prometheus.io/docs/specs/om/open_metrics_spec/#exemplars).
func observe(o prometheus.Observer, v float64, trace string) {
	if trace == "" {
		o.Observe(v)
		return
	}
	o.(prometheus.ExemplarObserver).ObserveWithExemplar(v, prometheus.Labels{"trace_id": trace})
}

// compare counts how the predicted number of cached tokens differs from the number that the engine reported.
func (s *workerSeries) compare(rec *Record) {
	if rec.ReportedTokens == nil {
		if rec.UsageUnasked && rec.OutputTokens == nil {
			s.unasked.Inc()
			return
		}
		s.unreported.Inc()
		return
	}
	s.reported.Add(float64(*rec.ReportedTokens))
	s.uncached.Add(float64(max(rec.PromptTokens-*rec.ReportedTokens, 0)))
	switch {
	case rec.PromptTokens == 0:
		s.unrouted.Inc()
		return
	case rec.Trust == "approximate" || rec.Trust == "none":
		s.approximate.Inc()
		return
	}
	d := rec.Claimed() - *rec.ReportedTokens
	s.difference.Observe(float64(d))
	switch {
	case d == 0:
		s.equal.Inc()
	case d > 0:
		s.over.Inc()
	default:
		s.under.Inc()
	}
}

// series returns the series of a worker and policy, and creates them if needed.
func (t *Telemetry) series(k workerKey) *workerSeries {
	if s, ok := t.perWorker.Load(k); ok {
		return s.(*workerSeries)
	}
	t.workers.Store(k.worker, struct{}{})
	kind := func(name string) prometheus.Counter { return t.tokens.WithLabelValues(name, k.policy, k.worker) }
	outcome := func(name string) prometheus.Counter { return t.compared.WithLabelValues(name, k.worker) }
	s, _ := t.perWorker.LoadOrStore(k, &workerSeries{
		firstToken: t.firstToken.WithLabelValues(k.policy, k.worker),
		total:      t.total.WithLabelValues(k.policy, k.worker),
		difference: t.difference.WithLabelValues(k.worker),
		prompt:     kind("prompt"), matched: kind("matched"), predicted: kind("predicted"), atRisk: kind("at_risk"),
		reported: kind("reported"), uncached: kind("uncached"),
		equal: outcome("equal"), over: outcome("over"), under: outcome("under"),
		unreported: outcome("unreported"), unasked: outcome("unasked"), approximate: outcome("approximate"), unrouted: outcome("unrouted"),
	})
	return s.(*workerSeries)
}

// Refused counts a request that was sent to no worker. reason is the code of the error, or another word such as
// headers.
func (t *Telemetry) Refused(reason string) { t.refused.WithLabelValues(reason).Inc() }

// FellBack counts a request that a fall-back of its model took.
func (t *Telemetry) FellBack(model, fallback, reason string) {
	t.fellBack.WithLabelValues(model, fallback, reason).Inc()
}

// Retried counts an attempt at worker that failed, after which the request goes to another worker. reason is the kind
// of failure.
func (t *Telemetry) Retried(worker, reason string) {
	t.workers.Store(worker, struct{}{})
	t.retries.WithLabelValues(worker, reason).Inc()
}

// Tokens counts a prompt by the source of its token ids (outcome), and observes how long the request waited for them.
// If there were no ids, missing is the reason; otherwise missing is "". trace is as in Queued.
func (t *Telemetry) Tokens(outcome, missing string, wait time.Duration, trace string) {
	t.tokenAsked.WithLabelValues(outcome, missing).Inc()
	observe(t.tokenWait, wait.Seconds(), trace)
}

// Panicked counts a panic that the gateway caught.
func (t *Telemetry) Panicked() { t.panics.Inc() }

// Reloaded counts a reload of the configuration.
func (t *Telemetry) Reloaded(err error) {
	if err != nil {
		t.reloads.WithLabelValues("error").Inc()
		return
	}
	t.reloads.WithLabelValues("ok").Inc()
}

// Last returns up to n of the last decisions, the newest first. If n is 0 or less, it returns all of them.
func (t *Telemetry) Last(n int) []Record { return t.ring.last(n) }

// Handler serves all metrics in the text format of Prometheus. It calls the functions of src at each scrape.
func (t *Telemetry) Handler(src Sources) http.Handler {
	scrape := prometheus.NewRegistry()
	scrape.MustRegister(newCollector(src))
	return t.forgetting(src, promhttp.HandlerFor(prometheus.Gatherers{t.registry, scrape}, promhttp.HandlerOpts{EnableOpenMetrics: true}))
}
