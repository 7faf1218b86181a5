package telemetry

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
)

// Without traces a request pays nothing for them.
func TestTracesThatAreOffCostNothing(t *testing.T) {
	h := http.Header{"Traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}
	var off *Tracer
	if n := testing.AllocsPerRun(100, func() {
		s := off.Request(h, "POST /v1/chat/completions")
		part, call := s.Part("decide"), s.Call("chat")
		part.Text("a", "b")
		part.Int("a", 1)
		part.Float("a", 1)
		part.End()
		call.Fail("a", "b")
		if parent, state := call.Outgoing(); parent != "" || state != "" || s.TraceID() != "" || s.Recorded() {
			t.Error("a span without a tracer is recorded")
		}
		call.End()
		s.End()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTracesAreOnOnlyIfAsked(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		t.Setenv(name, "")
	}
	log := slog.New(slog.DiscardHandler)
	on := func(c TracesConfig) bool {
		tracer, err := New(DefaultConfig()).NewTracer(c, "v", log)
		if err != nil {
			t.Fatal(err)
		}
		return tracer != nil
	}
	if on(TracesConfig{Sample: 1}) || !on(TracesConfig{Endpoint: "http://otel:4318"}) {
		t.Error("the endpoint does not decide")
	}
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4318")
	if !on(TracesConfig{Sample: 1}) {
		t.Error("OTEL_EXPORTER_OTLP_ENDPOINT does not count")
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if on(TracesConfig{Endpoint: "http://otel:4318"}) {
		t.Error("OTEL_SDK_DISABLED does not count")
	}
	t.Setenv("OTEL_SDK_DISABLED", "")
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
	if _, err := New(DefaultConfig()).NewTracer(TracesConfig{}, "v", log); err == nil || !strings.Contains(err.Error(), "OTEL_EXPORTER_OTLP_PROTOCOL") {
		t.Errorf("error %v", err)
	}
}

func TestAnEndpointOfTheEnvironmentIsCheckedAtTheStart(t *testing.T) {
	const forTraces, forAll = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"
	for _, name := range []string{"OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"} {
		t.Setenv(name, "")
	}
	for _, c := range []struct {
		file, traces, all string
		wrong, inForce    string // the variable that the error names, or the endpoint of the log
	}{
		{all: "otel:4317", wrong: forAll},
		{traces: "otel:4317", all: "http://otel:4318", wrong: forTraces},
		{all: "http://user:secret@otel:4318", inForce: "http://user:xxxxx@otel:4318"},
		{traces: " https://traces:4318/v1/traces ", all: "otel:4317", inForce: "https://traces:4318/v1/traces"},
		{file: "http://file:4318", all: "otel:4317", inForce: "http://file:4318"},
	} {
		t.Setenv(forTraces, c.traces)
		t.Setenv(forAll, c.all)
		var log strings.Builder
		tracer, err := New(DefaultConfig()).NewTracer(TracesConfig{Endpoint: c.file, Sample: 1}, "v", slog.New(slog.NewTextHandler(&log, nil)))
		if c.wrong != "" {
			if want := c.wrong + `: "otel:4317" is not a URL such as http://otel:4318`; err == nil || err.Error() != want {
				t.Errorf("%+v: error %v, not %s", c, err, want)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := tracer.Run(ended); err != nil {
			t.Fatal(err)
		}
		if want := `msg="traces are on" protocol=http/protobuf endpoint=` + c.inForce + " "; !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s: %s", want, log.String())
		}
	}
}

func TestASamplerOfTheEnvironmentIsCheckedAtTheStart(t *testing.T) {
	for _, name := range []string{"OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"} {
		t.Setenv(name, "")
	}
	for _, c := range []struct{ sampler, share, wrong string }{
		{sampler: "ratio", wrong: `OTEL_TRACES_SAMPLER: "ratio" is none of always_on, `},
		{sampler: "traceidratio", share: "1%", wrong: `OTEL_TRACES_SAMPLER_ARG: "1%" is not a share from 0 to 1`},
		{sampler: "parentbased_traceidratio", share: "2", wrong: `OTEL_TRACES_SAMPLER_ARG: "2"`},
		{sampler: "traceidratio", share: "NaN", wrong: `OTEL_TRACES_SAMPLER_ARG: "NaN"`},
		{sampler: " Parentbased_TraceIDRatio ", share: "0.1"},
		{sampler: "always_off", share: "unused"},
	} {
		t.Setenv("OTEL_TRACES_SAMPLER", c.sampler)
		t.Setenv("OTEL_TRACES_SAMPLER_ARG", c.share)
		_, err := New(DefaultConfig()).NewTracer(TracesConfig{Endpoint: "http://otel:4318"}, "v", slog.New(slog.DiscardHandler))
		if (err != nil) != (c.wrong != "") || err != nil && !strings.HasPrefix(err.Error(), c.wrong) {
			t.Errorf("%+v: error %v", c, err)
		}
	}
}

func TestWrongSettingsOfTracesAreNamed(t *testing.T) {
	err := Config{LogLevel: "info", LogFormat: "text", Traces: TracesConfig{Endpoint: "otel:4317", Protocol: "http/json", Sample: 2}}.Validate()
	for _, want := range []string{"traces.endpoint: ", "traces.protocol: ", "traces.sample: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
}

func TestTheErrorOfACollectorHasNoKey(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20the-key-of-all,x-team=a")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-api-key = other%2Dkey")
	var log bytes.Buffer
	tracer := &Tracer{log: slog.New(slog.NewTextHandler(&log, nil))}
	tracer.warn(errors.New("401 (body: authorization: Bearer the-key-of-all, x-api-key: other-key, other%2Dkey)"))
	text := log.String()
	if !strings.Contains(text, "401 (body: authorization: Bearer [redacted], x-api-key: [redacted], [redacted])") {
		t.Errorf("log: %s", text)
	}
}
