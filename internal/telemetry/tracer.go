package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// TracesConfig says where traces go. The environment variables of OpenTelemetry (OTEL_…) count, too; a setting of the
// file comes first.
type TracesConfig struct {
	// Endpoint is the URL of a collector that takes OTLP, such as http://otel:4318 for HTTP or http://otel:4317 for gRPC.
	// Empty: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT; without them there are no traces.
	Endpoint string `yaml:"endpoint"`
	// Protocol is http/protobuf or grpc. Empty: OTEL_EXPORTER_OTLP_TRACES_PROTOCOL or OTEL_EXPORTER_OTLP_PROTOCOL, else
	// http/protobuf.
	Protocol string `yaml:"protocol"`
	// Sample is the share of the traces that begin at the router and are recorded, 0 to 1. A request that comes with a
	// trace follows the decision of its caller. OTEL_TRACES_SAMPLER, if it is set, takes the place of this rule.
	Sample float64 `yaml:"sample"`
}

// The protocols, with the names that OTEL_EXPORTER_OTLP_PROTOCOL has for them.
const (
	protocolHTTP = "http/protobuf"
	protocolGRPC = "grpc"
)

// problems returns all problems of c. Each begins with the path of its setting.
func (c TracesConfig) problems() (found []error) {
	if c.Endpoint != "" {
		if err := checkEndpoint("traces.endpoint", c.Endpoint); err != nil {
			found = append(found, err)
		}
	}
	if c.Protocol != "" && c.Protocol != protocolHTTP && c.Protocol != protocolGRPC {
		found = append(found, fmt.Errorf("traces.protocol: %q is neither %s nor %s", c.Protocol, protocolHTTP, protocolGRPC))
	}
	if !(c.Sample >= 0 && c.Sample <= 1) {
		found = append(found, fmt.Errorf("traces.sample: %v is outside 0..1", c.Sample))
	}
	return found
}

// checkEndpoint returns an error that begins with name if endpoint is no URL of a collector. Without a scheme,
// OpenTelemetry would take a host for the scheme, and then have no host.
func checkEndpoint(name, endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%s: %q is not a URL such as http://otel:4318", name, endpoint)
	}
	return nil
}

// environment returns the endpoint that the environment names, and the name of its variable. Both are "" if it names
// none.
func environment() (name, endpoint string) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		if value := strings.TrimSpace(os.Getenv(name)); value != "" { // as OpenTelemetry reads it
			return name, value
		}
	}
	return "", ""
}

// samplers are the values of OTEL_TRACES_SAMPLER that OpenTelemetry for Go knows.
var samplers = []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}

// checkSampler returns an error if the environment names a sampler that does not exist, or a share that is none. With
// such a value OpenTelemetry would record all traces, or those that another rule chooses.
func checkSampler() error {
	name := strings.ToLower(strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER"))) // as OpenTelemetry reads it
	if name != "" && !slices.Contains(samplers, name) {
		return fmt.Errorf("OTEL_TRACES_SAMPLER: %q is none of %s", name, strings.Join(samplers, ", "))
	}
	text := strings.TrimSpace(os.Getenv("OTEL_TRACES_SAMPLER_ARG"))
	if text == "" || !strings.HasSuffix(name, "traceidratio") {
		return nil
	}
	if share, err := strconv.ParseFloat(text, 64); err != nil || !(share >= 0 && share <= 1) {
		return fmt.Errorf("OTEL_TRACES_SAMPLER_ARG: %q is not a share from 0 to 1", text)
	}
	return nil
}

// endpoint returns the endpoint in force, for the log.
func (c TracesConfig) endpoint() string {
	_, environment := environment()
	u, err := url.Parse(cmp.Or(c.Endpoint, environment))
	if err != nil || u.Host == "" { // OTEL_TRACES_EXPORTER=otlp alone
		return "the default of OpenTelemetry, at localhost"
	}
	return u.Redacted()
}

// on reports whether traces are asked for. OTEL_SDK_DISABLED and OTEL_TRACES_EXPORTER=none turn them off.
func (c TracesConfig) on() bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return false
	}
	_, environment := environment()
	return c.Endpoint != "" || environment != "" || os.Getenv("OTEL_TRACES_EXPORTER") == "otlp"
}

// protocol returns the protocol of the exporter.
func (c TracesConfig) protocol() string {
	return cmp.Or(c.Protocol, os.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL"), protocolHTTP)
}

// Tracer records spans and sends them to a collector. Spans wait for the collector in a bounded buffer: if it is full,
// spans are dropped. A nil *Tracer records nothing, and costs nothing. The methods are safe for concurrent use.
type Tracer struct {
	cfg     TracesConfig
	version string
	t       *Telemetry
	log     *slog.Logger
	tracer  atomic.Pointer[trace.Tracer] // nil before Run
	warned  atomic.Int64                 // when the last problem was logged, Unix nanoseconds
}

// NewTracer returns a tracer, or nil if no traces are asked for. It starts nothing: Run does. version is the router's
// version.
func (t *Telemetry) NewTracer(cfg TracesConfig, version string, log *slog.Logger) (*Tracer, error) {
	if !cfg.on() {
		return nil, nil
	}
	if p := cfg.protocol(); p != protocolHTTP && p != protocolGRPC {
		return nil, fmt.Errorf("OTEL_EXPORTER_OTLP_PROTOCOL: %q is neither %s nor %s", p, protocolHTTP, protocolGRPC)
	}
	if name, endpoint := environment(); cfg.Endpoint == "" && endpoint != "" {
		if err := checkEndpoint(name, endpoint); err != nil {
			return nil, err
		}
	}
	if err := checkSampler(); err != nil {
		return nil, err
	}
	for _, result := range []string{"sent", "failed"} {
		t.spans.WithLabelValues(result)
	}
	return &Tracer{cfg: cfg, version: version, t: t, log: log}, nil
}

// makeTraceMetrics makes the metric of spans.
func (t *Telemetry) makeTraceMetrics(f promauto.Factory) {
	t.spans = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_trace_spans_total",
		Help: "Spans of traces, by result: ended (recorded), sent (the collector has them), failed (the collector refused them or did not answer). What ended and neither was sent nor failed waits, or was dropped because the collector is too slow."},
		[]string{"result"})
}

// Run records spans until ctx ends. Then it sends the spans that wait, for at most two seconds.
func (t *Tracer) Run(ctx context.Context) error {
	quiet := context.WithoutCancel(ctx)
	exporter, err := t.exporter(quiet)
	if err != nil {
		return fmt.Errorf("set up traces: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(t.warn)) // the SDK has no other way to report errors
	about, err := resource.New(quiet, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "warmpath"), attribute.String("service.version", t.version)),
		resource.WithFromEnv()) // OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come last, so they win
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return fmt.Errorf("set up traces: %w", err)
	}
	options := []sdktrace.TracerProviderOption{sdktrace.WithBatcher(exporter), sdktrace.WithResource(about)}
	if os.Getenv("OTEL_TRACES_SAMPLER") == "" {
		options = append(options, sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(t.cfg.Sample))))
	}
	provider := sdktrace.NewTracerProvider(options...)
	tracer := provider.Tracer("github.com/warmpath/warmpath")
	t.tracer.Store(&tracer)
	t.log.Info("traces are on", "protocol", t.cfg.protocol(), "endpoint", t.cfg.endpoint(), "sample", t.cfg.Sample)
	<-ctx.Done()
	t.tracer.Store(nil)
	last, cancel := context.WithTimeout(quiet, lastSpans)
	defer cancel()
	if err := provider.Shutdown(last); err != nil {
		t.warn(err)
	}
	return nil
}

// lastSpans is how long the end of the process waits for the collector.
const lastSpans = 2 * time.Second

// exporter returns the client of the collector. It does not connect yet.
func (t *Tracer) exporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	var inner sdktrace.SpanExporter
	var err error
	if t.cfg.protocol() == protocolGRPC {
		var options []otlptracegrpc.Option
		if t.cfg.Endpoint != "" {
			options = append(options, otlptracegrpc.WithEndpointURL(t.cfg.Endpoint))
		}
		inner, err = otlptracegrpc.New(ctx, options...)
	} else {
		var options []otlptracehttp.Option
		if endpoint := t.cfg.Endpoint; endpoint != "" {
			if u, _ := url.Parse(endpoint); u != nil && strings.Trim(u.Path, "/") == "" {
				endpoint = u.JoinPath("/v1/traces").String() // the path of OTLP over HTTP, as for the environment variable
			}
			options = append(options, otlptracehttp.WithEndpointURL(endpoint))
		}
		inner, err = otlptracehttp.New(ctx, options...)
	}
	return &counting{SpanExporter: inner, t: t}, err
}

// counting is an exporter that counts spans.
type counting struct {
	sdktrace.SpanExporter
	t *Tracer
}

// ExportSpans sends the spans to the collector.
func (c *counting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	result := "sent"
	if err != nil {
		result = "failed"
	}
	c.t.t.spans.WithLabelValues(result).Add(float64(len(spans)))
	return err
}

// warn logs a problem of the collector, at most once a minute.
func (t *Tracer) warn(err error) {
	now, last := time.Now().UnixNano(), t.warned.Load()
	if now-last >= int64(time.Minute) && t.warned.CompareAndSwap(last, now) {
		t.log.Warn("traces are lost: the collector does not take them", "error", withoutHeaders(err.Error()))
	}
}

// withoutHeaders removes the values of OTEL_EXPORTER_OTLP_HEADERS, such as the collector's key, from an error: the
// error quotes the answer of the collector, which may repeat them.
func withoutHeaders(text string) string {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"} {
		for field := range strings.SplitSeq(os.Getenv(name), ",") {
			_, value, _ := strings.Cut(field, "=")
			values := []string{strings.TrimSpace(value)}
			if plain, err := url.PathUnescape(values[0]); err == nil {
				values = append(values, strings.Fields(plain)...) // the scheme and the key
			}
			for _, v := range values {
				if len(v) >= shortestSecret {
					text = strings.ReplaceAll(text, v, "[redacted]")
				}
			}
		}
	}
	return text
}

// shortestSecret is the least length of a value that withoutHeaders removes: Bearer and shorter words stay.
const shortestSecret = 7
