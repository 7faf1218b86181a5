package gateway

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// The header fields of W3C Trace Context. The field baggage passes through as every other field of the client.
const (
	headerTraceParent = "Traceparent"
	headerTraceState  = "Tracestate"
)

// beginTrace begins the request's span. Attribute names are those of OpenTelemetry's conventions for HTTP and GenAI
// where they have one (https://opentelemetry.io/docs/specs/semconv/); the others begin with warmpath.
func (x *exchange) beginTrace(to *route) {
	if x.g.Tracer == nil {
		return
	}
	x.span = x.g.Tracer.Request(x.r.Header, x.r.Method+" "+to.path)
	x.prepared.span = x.span
	x.rec.TraceID = x.span.TraceID()
	if !x.span.Recorded() {
		return
	}
	x.span.Text("http.request.method", x.r.Method)
	x.span.Text("http.route", to.path)
	x.span.Text("url.path", shortened(x.r.URL.Path))
	x.span.Text("url.scheme", scheme(x.r))
	x.span.Text("network.protocol.version", protocolVersion(x.r))
	x.span.Text("user_agent.original", shortened(x.r.UserAgent()))
	x.span.Text("warmpath.request_id", x.rec.RequestID)
}

// scheme returns the scheme of a request's URL: the router's own connection decides.
func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// protocolVersion returns the version of HTTP as the conventions write it: 1.1 or 2.
func protocolVersion(r *http.Request) string {
	if r.ProtoMajor >= 2 {
		return strconv.Itoa(r.ProtoMajor)
	}
	return strconv.Itoa(r.ProtoMajor) + "." + strconv.Itoa(r.ProtoMinor)
}

// endTrace ends the request's span.
func (x *exchange) endTrace() {
	s, rec := x.span, &x.rec
	x.span = telemetry.Span{}
	if !s.Recorded() {
		return
	}
	if rec.Status != 0 {
		s.Int("http.response.status_code", rec.Status)
	}
	s.Text("gen_ai.operation.name", operation(x.dialect))
	s.Text("gen_ai.request.model", shortened(rec.Model))
	s.Text("warmpath.tenant", rec.Tenant)
	s.Text("warmpath.worker", rec.Worker)
	s.Text("warmpath.policy", rec.Policy)
	s.Text("warmpath.finish", rec.Finish)
	s.Int("warmpath.attempts", rec.Attempts)
	if rec.FirstTokenMS > 0 {
		s.Float("warmpath.first_token_ms", rec.FirstTokenMS)
	}
	if rec.Error != "" || rec.Status >= http.StatusInternalServerError {
		s.Fail(failure(rec), rec.Error)
	}
	s.End()
}

// failure returns the value of error.type: how the request ended, or its status.
func failure(rec *telemetry.Record) string {
	if rec.Finish != "" && rec.Finish != proxy.Success.String() {
		return rec.Finish
	}
	return strconv.Itoa(rec.Status)
}

// traceDecision ends the span of a decision with its facts.
func traceDecision(s telemetry.Span, d *warmpath.Decision, err error) {
	if !s.Recorded() {
		return
	}
	defer s.End()
	if err != nil {
		s.Fail("no_worker", err.Error())
		return
	}
	s.Text("warmpath.policy", d.Policy)
	s.Text("warmpath.branch", string(d.Branch))
	s.Text("warmpath.reason", d.Reason)
	s.Text("warmpath.worker", d.Worker.URL)
	s.Int("warmpath.rank", d.Rank)
	s.Text("warmpath.trust", d.Trust.String())
	s.Int("warmpath.candidates", len(d.Candidates))
	s.Int("warmpath.prompt_tokens", d.PromptTokens)
	s.Int("warmpath.match_tokens", d.MatchTokens)
	s.Int("warmpath.predicted_tokens", d.PredictedTokens)
	s.Int("warmpath.at_risk_tokens", d.AtRiskTokens)
	chosen := &d.Candidates[d.Chosen]
	s.Float("warmpath.score", chosen.Score)
	for i, name := range d.Terms {
		s.Float("warmpath.term."+name, chosen.Terms[i])
	}
	s.Int("warmpath.load.requests", int(chosen.Load.Requests))
	s.Float("warmpath.load.backlog_ms", milliseconds(chosen.Load.Backlog))
}

// callWorker begins the span of an attempt, and adds the fields of the trace to the attempt. If the request is in no
// trace of ours, the client's own fields pass through.
func (x *exchange) callWorker(worker string, engine string) telemetry.Span {
	if x.g.Tracer == nil {
		return telemetry.Span{}
	}
	s := x.span.Call(callName(x.dialect, x.rec.Model))
	if parent, state := s.Outgoing(); parent != "" {
		// tracestate is set also if it is empty: the client's belongs to its traceparent, which may not be valid.
		x.attempt.Set = append(x.attempt.Set, proxy.Field{Name: headerTraceParent, Value: parent}, proxy.Field{Name: headerTraceState, Value: state})
	}
	if !s.Recorded() {
		return s
	}
	s.Text("gen_ai.operation.name", operation(x.dialect))
	s.Text("gen_ai.provider.name", engine)
	s.Text("gen_ai.request.model", shortened(x.rec.Model))
	s.Text("http.request.method", x.attempt.Method)
	path, _, _ := strings.Cut(x.attempt.Path, "?") // a query may have a key
	s.Text("url.path", shortened(path))
	s.Int("warmpath.attempt", x.rec.Attempts)
	s.Text("warmpath.worker", worker)
	if u, err := url.Parse(worker); err == nil {
		s.Text("server.address", u.Hostname())
		if _, port, err := net.SplitHostPort(u.Host); err == nil {
			n, _ := strconv.Atoi(port)
			s.Int("server.port", n)
		}
	}
	return s
}

// traceTransfer begins the span of the transfer to the decode leg, which ends with its first token. It is seen only in
// a stream whose prefill leg has ended.
func (l *legs) traceTransfer() {
	if !l.pair.Stream || l.connector.Together() {
		return
	}
	s := l.x.span.Part("transfer")
	l.x.transfer = s
	if !s.Recorded() {
		return
	}
	s.Text("warmpath.connector", l.connector.Name())
	s.Text("warmpath.prefill_worker", l.pair.Prefill.URL)
	s.Text("warmpath.worker", l.pair.Decode.URL)
	s.Int("warmpath.transfer_tokens", l.d.Division.Tokens)
}

// endTransfer ends the span of a transfer, if there is one. r is nil at the first token; a leg that ended before it is
// a transfer that failed.
func (x *exchange) endTransfer(r *proxy.Result) {
	s := x.transfer
	x.transfer = telemetry.Span{}
	if !s.Recorded() {
		return
	}
	if r != nil && r.Class != proxy.Success {
		s.Fail(r.Class.String(), "")
	}
	s.End()
}

// endCall ends the span of an attempt with its result.
func (x *exchange) endCall(s telemetry.Span, r *proxy.Result) {
	if !s.Recorded() {
		return
	}
	if r.Status != 0 {
		s.Int("http.response.status_code", r.Status)
	}
	s.Text("warmpath.finish", r.Class.String())
	if u := &r.Usage; u.Seen {
		s.Int("gen_ai.usage.input_tokens", u.Prompt)
		s.Int("gen_ai.usage.output_tokens", u.Completion)
		if u.HasCached {
			s.Int("gen_ai.usage.cache_read.input_tokens", u.Cached)
		}
	}
	if !r.FirstTokenAt.IsZero() {
		s.Float("warmpath.first_token_ms", milliseconds(r.FirstTokenAt.Sub(r.Start)))
	}
	if r.Err != nil {
		s.Fail(r.Class.String(), redacted(api.CauseOf(r.Err).Error(), x.r))
	} else if r.Status >= http.StatusBadRequest {
		s.Fail(strconv.Itoa(r.Status), "")
	}
	s.End()
}

// callName returns the name of the span of an attempt: the operation and the model, as the conventions for GenAI say.
func callName(d api.Dialect, model string) string {
	if model == "" {
		return operation(d)
	}
	return operation(d) + " " + shortened(model)
}

// operation returns the value of gen_ai.operation.name. Endpoints that the conventions do not name have the name of
// their dialect.
func operation(d api.Dialect) string {
	switch d {
	case api.OpenAIChat, api.AnthropicMessages, api.OpenAIResponses:
		return "chat"
	case api.OpenAICompletions, api.SGLangGenerate:
		return "text_completion"
	case api.OpenAIEmbeddings:
		return "embeddings"
	}
	return d.String()
}
