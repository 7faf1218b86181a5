// Package loadgen plays a workload against a live address and measures what a client sees: time to first token, between
// tokens, to the end, errors, cached tokens, and where a router sent each request. It also fits the timing profile of an
// engine from measurements.
//
// Latencies count from the moment at which a request was meant to be sent, not from when it could be: a slow server cannot
// hide behind a client that waits for it. The package knows HTTP and the OpenAI dialects; it knows nothing of routing.
//
//	outcome, err := loadgen.Run(ctx, w, cfg) // report.WriteText(os.Stdout, outcome.Report)
package loadgen
