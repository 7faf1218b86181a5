// Package sim plays a workload against a fleet of modelled engines in virtual time. The production router
// (warmpath.Router with its index, policies and fleet) makes the decisions, and the simulator calls the router as the
// gateway does. A pass is one forward step of an engine for a batch of sequences. Two runs of the same configuration
// give exactly the same result, because a run has one goroutine, a virtual clock and seeded randomness.
//
//	cfg := sim.Config{Workload: w, Policy: policy.DefaultKVAware().Spec("kv_aware"), Groups: []sim.Group{{Count: 8, Profile: profile}}}
//	run, err := sim.Run(ctx, cfg, nil)
//
// docs/simulator.md lists what is modelled and what is not. [Config.Assumptions] returns the assumptions of one run for
// a report.
package sim
