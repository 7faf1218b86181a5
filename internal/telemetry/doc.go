// Package telemetry is where Warmpath counts and remembers what it did: a Prometheus registry whose names begin with
// warmpath_, a bounded ring of the last decisions, and the logger. It knows no other component: whoever has something
// to show hands in a plain value (a Record per request) or a function that is called at scrape time (Sources).
// Prometheus is imported here and nowhere else.
//
//	t := telemetry.New(telemetry.DefaultConfig())
//	t.Finished(&record)             // once per request
//	http.Handle("/metrics", t.Handler(sources))
package telemetry
