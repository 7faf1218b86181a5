package main

import (
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/workload"
)

// set is a workload with the rates at which four workers of each profile are busy, and still answer.
type set struct {
	name  string
	parts []part            // workloads that are merged
	rates map[string]string // by profile
}

// part is a trace of a set.
type part struct {
	spec  string  // the word TRACES stands for the folder of the traces
	limit int     // number of requests of a run; 0: all
	speed float64 // how much faster the requests arrive than they were recorded; 0: as recorded
}

const (
	large = "qwen3-32b"
	small = "llama-3.1-8b"
)

const (
	conversations = "mooncake:TRACES/mooncake_conversation.jsonl.gz"
	code          = "azure:TRACES/azure2023_code.csv.gz"
)

var sets = []set{
	{"conversation", []part{{spec: conversations, limit: 1000}}, map[string]string{large: "0.5", small: "1"}},
	{"azure code", []part{{spec: code, limit: 2500}}, map[string]string{large: "2", small: "4"}},
	{"mixed", []part{{conversations, 300, 1}, {code, 900, 4}}, map[string]string{large: "0.35", small: "0.7"}},
	{"toolagent", []part{{spec: "mooncake:TRACES/mooncake_toolagent_head1000.jsonl.gz"}}, map[string]string{large: "0.4", small: "0.8"}},
	{"azure conv", []part{{spec: "azure:TRACES/azure2023_conv.csv.gz", limit: 2000}}, map[string]string{large: "4", small: "12"}},
	{"miniswe", []part{{spec: "agent:TRACES/lmcache_agent_miniswe.jsonl.gz"}}, map[string]string{large: "1", small: "1"}},
	{"magagent", []part{{spec: "agent:TRACES/lmcache_agent_magagent.jsonl.gz"}}, map[string]string{large: "1", small: "1"}},
}

// load returns the workload of the run with this seed. The run with seed 2 begins where the run with seed 1 ends.
func (s *set) load(traces string, seed uint64) (*workload.Workload, error) {
	var all []*workload.Workload
	for _, p := range s.parts {
		spec := strings.ReplaceAll(p.spec, "TRACES", traces)
		w, err := workload.Load(spec, workload.Options{Seed: seed, Limit: p.limit * int(seed)})
		if err != nil {
			return nil, err
		}
		if p.limit > 0 {
			w.Requests = slices.Delete(w.Requests, 0, max(len(w.Requests)-p.limit, 0))
		}
		began := w.Requests[0].Arrival
		for k := range w.Requests {
			r := &w.Requests[k]
			r.ID, r.Arrival = k, r.Arrival-began
			if p.speed > 0 {
				r.Arrival = time.Duration(float64(r.Arrival) / p.speed)
			}
		}
		all = append(all, w)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return workload.Merge(all...)
}
