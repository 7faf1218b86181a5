package warmpath_test

import (
	"testing"

	"github.com/warmpath/warmpath"
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
