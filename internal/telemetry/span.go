package telemetry

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Span is one part of a request in a trace. The zero Span belongs to no trace, and its methods do nothing. A Span
// belongs to the goroutine of its request.
type Span struct {
	span trace.Span      // nil if the span is not recorded
	ctx  context.Context // the trace; nil if the request is in no trace
	t    *Tracer
	// facts are the span's attributes, which End sets all at once; nil if the span is not recorded.
	facts *[]attribute.KeyValue
}

// The kinds of a span, as OpenTelemetry defines them: work of the router itself, an answered request, and a call.
const (
	internal = trace.SpanKindInternal
	server   = trace.SpanKindServer
	client   = trace.SpanKindClient
)

// w3c reads and writes the fields traceparent and tracestate (https://www.w3.org/TR/trace-context/).
var w3c propagation.TraceContext

// Request begins the span of a request. If h has a trace, the span is a part of it.
func (t *Tracer) Request(h http.Header, name string) Span {
	if t == nil {
		return Span{}
	}
	tracer := t.tracer.Load()
	if tracer == nil {
		return Span{}
	}
	ctx := context.Background()
	if parent := h["Traceparent"]; len(parent) == 1 { // several fields are not valid
		// Several fields tracestate are one list, as Trace Context says [RFC 9110 §5.3].
		ctx = w3c.Extract(ctx, propagation.MapCarrier{"traceparent": parent[0], "tracestate": strings.Join(h["Tracestate"], ",")})
	}
	return t.begin(ctx, *tracer, name, server)
}

func (t *Tracer) begin(ctx context.Context, tracer trace.Tracer, name string, kind trace.SpanKind) Span {
	ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(kind))
	if !span.IsRecording() {
		return Span{ctx: ctx, t: t}
	}
	facts := make([]attribute.KeyValue, 0, usualFacts)
	return Span{span: span, ctx: ctx, t: t, facts: &facts}
}

// usualFacts is about the greatest number of attributes of a span.
const usualFacts = 24

// add adds an attribute.
func (s Span) add(fact attribute.KeyValue) { *s.facts = append(*s.facts, fact) }

// Part begins the span of a step within s.
func (s Span) Part(name string) Span { return s.child(name, internal) }

// Call begins the span of a call to a worker within s.
func (s Span) Call(name string) Span { return s.child(name, client) }

// child begins a span only in a trace that is recorded.
func (s Span) child(name string, kind trace.SpanKind) Span {
	if s.span == nil {
		return Span{ctx: s.ctx, t: s.t}
	}
	tracer := s.t.tracer.Load()
	if tracer == nil {
		return Span{ctx: s.ctx, t: s.t}
	}
	return s.t.begin(s.ctx, *tracer, name, kind)
}

// Recorded reports whether the span is recorded. Facts that cost something are only needed then.
func (s Span) Recorded() bool { return s.span != nil }

// TraceID returns the id of a recorded trace, 32 hex digits; "" if it is not recorded.
func (s Span) TraceID() string {
	if s.span == nil {
		return ""
	}
	return s.span.SpanContext().TraceID().String()
}

// Outgoing returns the values of traceparent and tracestate for a call within the span; both are "" if the request is
// in no trace.
func (s Span) Outgoing() (parent, state string) {
	if s.ctx == nil {
		return "", ""
	}
	fields := propagation.MapCarrier{}
	w3c.Inject(s.ctx, fields)
	return fields["traceparent"], fields["tracestate"]
}

// Text sets an attribute.
func (s Span) Text(key, value string) {
	if s.span != nil && value != "" {
		s.add(attribute.String(key, value))
	}
}

// Int sets an attribute.
func (s Span) Int(key string, value int) {
	if s.span != nil {
		s.add(attribute.Int(key, value))
	}
}

// Float sets an attribute.
func (s Span) Float(key string, value float64) {
	if s.span != nil {
		s.add(attribute.Float64(key, value))
	}
}

// Fail marks the span as failed. kind is one word, and text may be empty.
func (s Span) Fail(kind, text string) {
	if s.span != nil {
		s.add(attribute.String("error.type", kind))
		s.span.SetStatus(codes.Error, text)
	}
}

// End ends the span.
func (s Span) End() {
	if s.span != nil {
		s.span.SetAttributes(*s.facts...)
		s.span.End()
		s.t.t.spans.WithLabelValues("ended").Inc()
	}
}
