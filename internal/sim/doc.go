// Package sim plays a workload against a fleet of modelled engines in virtual time. The router that decides is the production
// one: warmpath.Router with its index, policies and fleet, driven through the same doors as the gateway drives it. A run is
// repeatable bit for bit: one goroutine, one clock, seeded randomness.
//
//	cfg := sim.Config{Workload: w, Policy: policy.KVAware(), Groups: []sim.Group{{Count: 8, Profile: profile}}}
//	run, err := sim.Run(ctx, cfg, nil)
//
// What is modelled and what is not: docs/simulator.md, and [Config.Assumptions] for a report.
package sim
