// Package workload is requests over time: readers of published trace formats, generators with published parameters,
// transformations and statistics. It knows prompts as content (segments of tokens, or text where a trace has it), and
// nothing of engines, routers or clocks: the simulator and the load generator play what it describes.
//
//	w, err := workload.Load("mooncake:conversation.jsonl.gz")
//	s := workload.Measure(w, workload.StatsOptions{Capacities: []int{1e6, 3e6}})
package workload
