// Package sim plays a workload against a fleet of modelled engines in virtual time. The production router decides:
// warmpath.Router with its index, policies and fleet, through the same calls as the gateway's. A run is repeatable bit
// for bit: it has one goroutine, one clock and seeded randomness.
//
//	cfg := sim.Config{Workload: w, Policy: policy.DefaultKVAware().Spec("kv_aware"), Groups: []sim.Group{{Count: 8, Profile: profile}}}
//	run, err := sim.Run(ctx, cfg, nil)
//
// What is modelled and what is not: docs/simulator.md, and [Config.Assumptions] for a report.
package sim
