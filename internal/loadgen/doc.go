// Package loadgen plays a workload against a live address and measures what a client sees: the time to the first token,
// between tokens and to the end, errors, cached tokens, and the worker that a router chose. It also fits the timing
// profile of an engine to measurements.
//
// Latencies count from the time at which a request was due, not from when it was sent: a server that makes the client
// wait shows its full latency. The package knows HTTP and the OpenAI dialects, and nothing of routing.
//
//	outcome, err := loadgen.Run(ctx, w, cfg) // report.WriteText(os.Stdout, outcome.Report)
package loadgen
