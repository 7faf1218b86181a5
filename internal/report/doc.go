// Package report holds the result of playing a workload, simulated or measured, and shows it: as a table, as JSON and as
// one HTML page that needs nothing else. The simulator and the load generator fill the same types, so that what was
// predicted and what was measured can be laid side by side.
//
// It knows nothing of routers, engines or traces: whoever plays a workload tells a [Recorder] what happened.
//
//	rec := report.NewRecorder(report.Options{Workers: 8})
//	rec.Finish(&report.Answer{...}) // for each request
//	run := rec.Run(setup)
//	err := report.WriteHTML(w, &report.Report{Kind: report.Simulated, Runs: []*report.Run{run}})
package report
