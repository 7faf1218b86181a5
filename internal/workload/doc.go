// Package workload describes requests over time. It reads published trace formats, generates workloads from published
// parameters, transforms them and measures them. A prompt is content: segments of tokens, or text where a trace has it.
// The package knows nothing of engines, routers and clocks; the simulator and the load generator play a workload.
//
//	w, err := workload.Load("mooncake:conversation.jsonl.gz")
//	s := workload.Measure(w, workload.StatsOptions{Capacities: []int{1e6, 3e6}})
package workload
