package warmpath_test

import (
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/kvindex"
)

func TestKVCountsBlocksThatRequestsShareOnce(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p := prompt(1, 512)
	first := w.route(warmpath.Request{Tokens: p})
	d := w.explain(warmpath.Request{Tokens: append(p[:256:256], prompt(2, 256)...), Policy: "kv"})
	for i := range d.Candidates {
		want := 0
		if d.Candidates[i].Holder == first.Holder {
			want = 256
		}
		if got := d.Candidates[i].Active; got != want {
			t.Errorf("%d tokens are active on holder %d, want %d", got, d.Candidates[i].Holder, want)
		}
	}
}

func TestALowerScoreNamesTheTermThatMadeIt(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p := prompt(1, 512)
	w.store(0, p, kvindex.Stored{})
	w.route(warmpath.Request{Tokens: prompt(2, 6400), Target: "a"})
	for policy, want := range map[string]string{
		"kv":                   "lower score, most by decode: 432 against 32",
		"lmetric":              "lower score, most by tokens: 6416 against 512",
		"precise_prefix_cache": "lower score, most by match: 0 against 2.906",
		"kv_aware":             "lower score",
	} {
		d := w.explain(warmpath.Request{Tokens: p, Policy: policy})
		for i := range d.Candidates {
			if i != d.Chosen && d.Why(i) != want {
				t.Errorf("%s: %s", policy, d.Why(i))
			}
		}
	}
}
