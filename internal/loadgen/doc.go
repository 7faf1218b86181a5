// Package loadgen plays a workload against a live address and measures the same as a client would: the times to the
// first token, between tokens and to the end; errors; cached tokens; and the worker that a router chose. The package
// also fits the timing profile of an engine to measurements.
//
// The latency of a request counts from the time at which the request was due, not from the time at which it was sent.
// So if a slow server delays the sending, the delay is part of the latency. The package knows HTTP and the OpenAI
// dialects, but nothing of routing.
//
//	outcome, err := loadgen.Run(ctx, w, cfg) // report.WriteText(os.Stdout, outcome.Report)
package loadgen
