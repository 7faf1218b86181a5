// Package workload describes requests over time. It reads published trace formats, generates workloads from published
// parameters, transforms workloads and measures them. A prompt is content: segments of tokens, or text if a trace has
// text. The package knows nothing of engines, routers and clocks. The simulator and the load generator play a workload.
//
//	w, err := workload.Load("mooncake:conversation.jsonl.gz")
//	s := workload.Measure(w, workload.StatsOptions{Capacities: []int{1e6, 3e6}})
package workload
