// Package report holds the simulated or measured result of playing a workload. It writes the result as a table, as JSON
// and as one HTML page without other files. The simulator and the load generator fill the same types, so that simulated
// and measured results can be compared.
//
// The package knows nothing of routers, engines or traces: the player of a workload reports events to a [Recorder].
//
//	rec := report.NewRecorder(report.Options{Workers: 8})
//	rec.Finish(&report.Answer{...}) // for each answered request
//	run := rec.Run(setup)
//	err := report.WriteHTML(w, &report.Report{Kind: report.Simulated, Runs: []*report.Run{run}})
package report
