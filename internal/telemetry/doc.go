// Package telemetry has Warmpath's metrics, the last decisions and the logger: a Prometheus registry with names that
// begin with warmpath_, a bounded ring of decisions, and a slog.Logger. Other components pass their figures to this
// package: a Record for each request, and functions that each scrape calls (Sources). No other package imports
// Prometheus or OpenTelemetry.
//
//	t := telemetry.New(telemetry.DefaultConfig())
//	t.Finished(&record)             // once per request
//	http.Handle("/metrics", t.Handler(sources))
package telemetry
