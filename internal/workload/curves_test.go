package workload

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// publishedTraces has, by the name of a published curve, the format and the file of its trace. `make traces` fetches
// the files.
var publishedTraces = map[string][2]string{
	"mooncake_fast25":      {"mooncake", "toolagent_trace.jsonl"},
	"bailian_qwen_trace_a": {"qwen", "qwen_traceA_blksz_16.jsonl"},
}

// The file of published curves mixes results of two methods: one touches a prompt's blocks from the first to the last,
// the other from the last to the first. At a dozen or more cache sizes of each trace, the published rates of FIFO and
// LRU must agree with our result for one of the two methods, and the published optimum with ours.
func TestPublishedCurvesAreReproduced(t *testing.T) {
	var published struct {
		Traces map[string]struct {
			// Curve has the hit rates of FIFO, LRU and optimal, by cache size in blocks.
			Curve map[string][3]float64 `json:"curve"`
		} `json:"traces"`
	}
	data := testenv.Gunzip(t, testenv.Path(t, "traces/published_hit_curves_kvcache_blog.json.gz"))
	if err := json.Unmarshal(data, &published); err != nil {
		t.Fatal(err)
	}
	for name, trace := range publishedTraces {
		t.Run(name, func(t *testing.T) {
			format, file := trace[0], trace[1]
			path := testenv.Installed(t, "traces/"+file, "make traces")
			w, err := Load(format+":"+path, Options{Raw: true})
			if err != nil {
				t.Fatal(err)
			}
			var blocks []int
			for text := range published.Traces[name].Curve {
				n, err := strconv.Atoi(text)
				if err != nil {
					t.Fatal(err)
				}
				blocks = append(blocks, n)
			}
			slices.Sort(blocks)
			touched := newTouches(w, w.Block)
			for i := 0; i < len(blocks); i += max(len(blocks)/12, 1) {
				n := blocks[i]
				want := published.Traces[name].Curve[strconv.Itoa(n)]
				agree := func(what string, want float64, got ...float64) {
					if !slices.ContainsFunc(got, func(v float64) bool { return math.Abs(v-want) <= 0.001 }) {
						t.Errorf("%d blocks, %s: %.4f, published %.4f", n, what, got, want)
					}
				}
				both := func(move bool) []float64 {
					return []float64{
						touched.replay(newQueueCache(touched.unique, n, move, true)).SecondHalf,
						touched.replay(newQueueCache(touched.unique, n, move, false)).SecondHalf,
					}
				}
				agree("FIFO", want[0], both(false)...)
				agree("LRU", want[1], both(true)...)
				agree("optimal", want[2], touched.replay(newOptimalCache(touched, n)).SecondHalf)
			}
		})
	}
}
