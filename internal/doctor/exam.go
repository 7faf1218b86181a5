package doctor

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/tokens"
)

// exam is the examination of one worker. One goroutine uses it.
type exam struct {
	Worker
	options  *Options
	target   discovery.Target
	client   *http.Client
	findings []Finding
	report   *discovery.Report // nil: the worker could not be probed
}

func newExam(o *Options, t discovery.Target) *exam {
	t.URL = strings.TrimSuffix(strings.TrimRight(t.URL, "/"), "/v1") // as discovery reads it
	return &exam{Worker: Worker{URL: t.URL}, options: o, target: t, client: discovery.NewClient(o.Network, t.Peers())}
}

func (e *exam) find(check string, s Severity, seen, expected, fix string) {
	e.findings = append(e.findings, Finding{e.URL, check, s, seen, expected, fix})
}

func (e *exam) tell(format string, args ...any) {
	e.options.Progress(e.URL + ": " + fmt.Sprintf(format, args...))
}

// run examines the worker: first its answers, then its events while it computes three prompts.
func (e *exam) run(ctx context.Context) {
	defer e.client.CloseIdleConnections()
	e.tell("asking")
	r, err := discovery.Probe(ctx, e.client, e.target)
	if err != nil {
		e.find("reachable", Error, err.Error(), "an engine that answers GET /v1/models", unreachableFix(err))
		return
	}
	e.learn(r)
	e.health(ctx)
	before, metrics := e.counters(ctx)
	switch legs := r.Facts.Transfer.LegsOnly; {
	case r.CachingOff && legs && r.Facts.Role == fleet.RoleDecode:
		e.find("prefix_cache", Note, "the decode engine has no prefix cache, as SGLang's decode engines usually have none", "nothing else",
			"nothing: the prefill workers have the caches of prompts")
	case r.CachingOff:
		e.find("prefix_cache", Error, "the engine says that its prefix cache is off", "a prefix cache", cachingFix(r.Facts.Engine))
	}
	e.surface()
	e.transfers()

	streams := e.listen(ctx)
	defer streams.stop()
	e.await(ctx, streams, "connections", streams.settled)
	plan := e.plan(ctx)
	sent := !r.Facts.Transfer.LegsOnly && plan.send(ctx, e, streams)
	if sent && !r.CachingOff && len(streams.all) > 0 {
		e.await(ctx, streams, "events of the prompts", streams.complete)
	}
	streams.stop()
	e.judgeStreams(streams, plan, sent)
	if r.Facts.Transfer.LegsOnly {
		e.find("prompt", Note, "the engine serves only parts of requests (--disaggregation-mode), so no prompts were sent", "nothing else",
			"nothing; to examine cache and events, start the engine once without --disaggregation-mode")
	}
	if sent {
		after, _ := e.counters(ctx)
		e.judgeCaching(plan, after-before, metrics)
	}
}

// learn copies the facts of the probe.
func (e *exam) learn(r *discovery.Report) {
	e.report = r
	f := &r.Facts
	e.Engine, e.Version, e.BlockSize, e.Ranks = f.Engine.String(), f.Version, f.BlockSize, max(f.Ranks, 1)
	for _, m := range f.Models {
		e.Models = append(e.Models, m.ID)
		if m.ID == f.BaseModel() {
			e.Root, e.MaxModelLen = m.Root, m.MaxModelLen
		}
	}
}

func unreachableFix(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "Warmpath gateway"):
		return "name the engines, not a router: --worker URL of each engine"
	case strings.Contains(text, "api_key"):
		return "write the engine's key into a file (workers: [{url: URL, api_key: KEY}]) and run warmpath doctor --config FILE"
	case strings.Contains(text, "lists no model"), strings.Contains(text, " 404 "):
		return "check the URL and its path: it must be the engine's base URL, without /v1; or name the model: --worker URL,model=NAME"
	}
	return "start the engine, or correct the URL: curl URL/v1/models must answer from this machine (name, port, firewall, --host 0.0.0.0)"
}

func (e *exam) health(ctx context.Context) {
	err := e.ask(ctx, 10*time.Second, http.MethodGet, "/health", nil, nil)
	if discovery.NotServed(err) {
		return // a proxy in front of the engine; the router accepts such a worker, too
	}
	if err != nil {
		e.find("health", Error, err.Error(), "GET /health answers 200", "read the engine's log: the router sends no requests to a worker whose /health fails")
	}
}

// surface examines what the probe learned about the questions that the worker answers.
func (e *exam) surface() {
	f := &e.report.Facts
	if f.Engine == fleet.EngineSGLang && !f.ReportsCachedTokens {
		e.find("cached_tokens", Warning, "the engine runs without enable_cache_report", "usage.prompt_tokens_details.cached_tokens in answers",
			"start SGLang with --enable-cache-report; without it the router cannot compare its predictions with the engine")
	}
	if !f.CanTokenize {
		e.find("tokenize", Warning, "POST /tokenize gives no ids", "token ids of a prompt",
			"give the router the model's files: --model-path NAME=DIR; without files and without /tokenize, prompts are matched by their text only")
	}
	if f.BlockSize > 0 && f.BlockSize < 8 {
		e.find("block_size", Note, fmt.Sprintf("the engine's blocks have %d tokens", f.BlockSize), "16 tokens or more",
			"start SGLang with --page-size 16 or more: larger pages cause fewer events")
	}
}

// ask sends a question to the worker. read gets the body of an answer with status 200; nil ignores it.
func (e *exam) ask(ctx context.Context, limit time.Duration, method, path string, in any, read func(io.Reader) error) error {
	q := discovery.Question{Method: method, Path: path, Body: in, Timeout: limit, Read: read}
	if f := &e.report.Facts; f.Ranks > 1 { // all prompts go to one rank, because each rank has a cache of its own
		q.Header = http.Header{"X-Data-Parallel-Rank": {fmt.Sprint(f.FirstRank)}}
	}
	return discovery.Ask(ctx, e.client, e.target, q)
}

func (e *exam) authorization() string {
	if e.target.APIKey == "" {
		return ""
	}
	return "Bearer " + e.target.APIKey
}

// kind returns the kind of the worker's engine for questions about token ids.
func (e *exam) kind() tokens.Kind {
	if e.report.Facts.Engine == fleet.EngineSGLang {
		return tokens.SGLang
	}
	return tokens.VLLM
}
