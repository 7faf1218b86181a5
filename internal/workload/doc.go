// Package workload describes requests over time. It reads published trace formats, generates workloads from published
// parameters, transforms workloads and measures them. A segment is a run of tokens with an id: equal ids stand for
// equal tokens. A prompt is a list of segments, and also a text or token ids if the trace has them. If the trace has
// only lengths, a prompt has no segments. The simulator and the load generator play workloads; this package knows
// nothing of engines, routers and clocks.
//
//	w, err := workload.Load("mooncake:conversation.jsonl.gz", workload.Options{})
//	s := workload.Measure(w, workload.StatsOptions{Capacities: []int{1e6, 3e6}})
package workload
