package workload

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// The published curves are of traces that are too large to lie in ../shared. Who has one puts it, or a link to it, into the
// folder that WARMPATH_TRACES names, or into ../shared/traces.
var publishedTraces = map[string]struct {
	format string
	files  []string
}{
	"mooncake_fast25":      {"mooncake", []string{"mooncake_trace.jsonl", "toolagent_trace.jsonl", "mooncake_toolagent.jsonl.gz"}},
	"bailian_qwen_trace_a": {"qwen", []string{"qwen_traceA_blksz_16.jsonl", "qwen_traceA.jsonl.gz"}},
}

func findTrace(names []string) (string, bool) {
	folders := []string{os.Getenv("WARMPATH_TRACES"), "../../../shared/traces"}
	if shared := os.Getenv("WARMPATH_SHARED"); shared != "" {
		folders = append(folders, filepath.Join(shared, "traces"))
	}
	for _, folder := range folders {
		for _, name := range names {
			path := filepath.Join(folder, name)
			if _, err := os.Stat(path); folder != "" && err == nil {
				return path, true
			}
		}
	}
	return "", false
}

// The file joins two computations: at some capacities prompts are touched from their first block to their last, at others
// from their last to their first. Each point must agree with one of them.
func TestPublishedCurvesAreReproduced(t *testing.T) {
	var published struct {
		Traces map[string]struct {
			Curve map[string][3]float64 `json:"curve"` // FIFO, LRU, optimal by blocks
		} `json:"traces"`
	}
	data := testenv.Gunzip(t, testenv.Path(t, "traces/published_hit_curves_kvcache_blog.json.gz"))
	if err := json.Unmarshal(data, &published); err != nil {
		t.Fatal(err)
	}
	for name, trace := range publishedTraces {
		t.Run(name, func(t *testing.T) {
			path, ok := findTrace(trace.files)
			if !ok {
				t.Skipf("skipped: none of %v is in WARMPATH_TRACES or ../shared/traces", trace.files)
			}
			w, err := LoadWith(trace.format+":"+path, Options{Raw: true})
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
