package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/workload"
)

// fullCacheChats returns 40 conversations of 5 turns each. Each conversation begins with one of 4 system prompts of
// about 4,000 tokens. Two caches of 65,536 tokens each are too small for all conversations. If random is false, each
// client cycles through its conversations, which is the worst order for an LRU cache. If random is true, each client
// draws its next conversation at random.
func fullCacheChats(seed uint64, clients int, random bool) *workload.Workload {
	r := rand.New(rand.NewPCG(seed, 1))
	segments := uint64(1)
	content := func(tokens int) workload.Segment {
		segments++
		return workload.Segment{ID: segments, Tokens: tokens}
	}
	about := func(n int) int { return n*7/10 + r.IntN(n*6/10) }
	var systems [4]workload.Segment
	for i := range systems {
		systems[i] = content(about(4000))
	}
	const talks, turns = 40, 5
	var said [talks][]workload.Segment
	var left [talks]int
	for i := range said {
		said[i], left[i] = []workload.Segment{systems[i%len(systems)]}, turns
	}
	own := make([][]int, clients)
	for i, talk := range r.Perm(talks) {
		own[i%clients] = append(own[i%clients], talk)
	}
	w := &workload.Workload{Name: "chats over full caches"}
	for client := range own {
		after := -1
		for at := 0; len(own[client]) > 0; {
			k := at % len(own[client])
			if random {
				k = r.IntN(len(own[client]))
			}
			talk := own[client][k]
			said[talk] = append(said[talk], content(about(620)))
			output := 40 + r.IntN(48)
			answer := content(output)
			input := 0
			for _, s := range said[talk] {
				input += s.Tokens
			}
			id := len(w.Requests)
			w.Requests = append(w.Requests, workload.Request{
				ID: id, Session: talk, Input: input, Output: output, After: after, OutputSegment: answer.ID,
				Segments: append([]workload.Segment(nil), said[talk]...),
			})
			said[talk] = append(said[talk], answer)
			after = id
			if left[talk]--; left[talk] == 0 {
				own[client] = append(own[client][:k:k], own[client][k+1:]...)
			} else {
				at++
			}
		}
	}
	return w
}

// fullCacheQuestions returns 240 prompts. Each prompt is one of 60 prefixes of 3,000 tokens and a short question. Two
// caches of 65,536 tokens each cannot hold all prefixes. The first prefix is drawn about three times as often as the
// last.
func fullCacheQuestions(seed uint64, clients int) *workload.Workload {
	r := rand.New(rand.NewPCG(seed, 1))
	const prefixes, prefix, questions = 60, 3000, 240
	draw := rand.NewZipf(r, 1.1, prefixes/2, prefixes-1)
	w := &workload.Workload{Name: "questions over full caches"}
	for id := range questions {
		question, after := 40+r.IntN(41), id-clients
		w.Requests = append(w.Requests, workload.Request{
			ID: id, Session: id, Input: prefix + question, Output: 32, After: max(after, -1),
			Segments: []workload.Segment{{ID: 1 + draw.Uint64(), Tokens: prefix}, {ID: uint64(1000 + id), Tokens: question}},
		})
	}
	return w
}

// smallEngine returns a profile with about the speed of vLLM with a tiny model on two CPU cores.
func smallEngine() engine.Profile {
	p := engine.Profiles()[0]
	p.Name, p.KVTokens, p.BlockSize, p.MaxSequences, p.MaxBatchTokens, p.MaxModelLen = "small", 65536, 16, 16, 2048, 32768
	p.Timing = engine.Linear{Base: 7, Token: 0.05, Attention: 2e-6, Sequence: 0.5, Context: 1e-4}
	return p
}

// In these workloads prompts evict each other's blocks. The test has two claims about means over several seeds. A
// router rarely predicts more cached tokens than the engine finds when it schedules the request. The default policy has
// at most 0.5 percentage points fewer hits than policies that prefer matches to load. The goal is that at most 1 % of
// the predictions are too high (docs/design/0018-at-risk.md). The questions of 16 clients miss this goal, so their
// bound is higher.
func TestFullCachesArePredictedAndKept(t *testing.T) {
	if testing.Short() {
		t.Skip("ten seeds of three policies under nine loads take some seconds")
	}
	type load struct {
		name  string
		above float64 // largest allowed share of predictions that are too high, in %
		work  func(seed uint64) *workload.Workload
	}
	var loads []load
	for _, clients := range []int{2, 6, 16} {
		for _, random := range []bool{true, false} {
			loads = append(loads, load{fmt.Sprintf("talks, %d clients, at random %v", clients, random), 1,
				func(seed uint64) *workload.Workload { return fullCacheChats(seed, clients, random) }})
		}
		above := 1.0
		if clients == 16 {
			above = 2
		}
		loads = append(loads, load{fmt.Sprintf("questions, %d clients", clients), above,
			func(seed uint64) *workload.Workload { return fullCacheQuestions(seed, clients) }})
	}
	const seeds = 10
	for _, l := range loads {
		hits := map[string]float64{}
		for _, policy := range []string{"cache_aware", "kv_aware", "marginal"} {
			above, hit := 0.0, 0.0
			for seed := uint64(1); seed <= seeds; seed++ {
				r := run(t, config(l.work(seed), policy, func(c *Config) {
					c.Seed, c.Lag, c.Hop = seed, 5*time.Millisecond, time.Millisecond
					c.Groups = []Group{{Count: 2, Profile: smallEngine()}}
				}))
				above += 100 * float64(r.PredictedAbove) / float64(r.Requests.Answered) / seeds
				hit += 100 * r.HitRate / seeds
			}
			t.Logf("%s, %s: %.2f %% hits, %.2f %% of the predictions are above what was cached", l.name, policy, hit, above)
			// cache_aware only estimates the cached tokens, so no bound applies to this policy.
			if above > l.above && policy != "cache_aware" {
				t.Errorf("%s, %s: %.2f %% of the predictions are above what was cached", l.name, policy, above)
			}
			hits[policy] = hit
		}
		if best := max(hits["cache_aware"], hits["kv_aware"]); hits["marginal"] < best-.5 {
			t.Errorf("%s: marginal finds %.2f %% in caches, the best peer %.2f", l.name, hits["marginal"], best)
		}
	}
}
