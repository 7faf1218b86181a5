// Package doctor examines workers: what an engine says of itself, what its event stream shows, and whether it uses a
// cached prefix. Each problem becomes a [Finding] that says what was seen, what was expected, and which flag of the
// engine or setting of Warmpath mends it.
//
// The doctor sends a worker nothing but questions and three short prompts with max_tokens 1, of which two have a common
// beginning. It uses discovery, the event subscriber and the token sources of the router, so it sees what the router
// would see. It does not know the configuration file or the command line.
//
//	report := doctor.Examine(ctx, doctor.Options{Targets: []discovery.Target{{URL: "http://gpu-1:8000"}}})
//	for _, finding := range report.Findings { … }
package doctor
