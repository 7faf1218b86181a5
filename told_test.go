package warmpath_test

import (
	"testing"

	"github.com/warmpath/warmpath"
)

// If all peers together tell of too many requests, a peer with more than its share loses its oldest ones, and no other.
func TestAPeerWithMoreThanItsShareLosesRequestsWhenAllTellOfTooMany(t *testing.T) {
	const all, share, more = 1 << 19, 1 << 11, 10
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p, pl := heard(t, w, prompt(1, 64))
	small := w.router.NewPeer()
	add := func(p *warmpath.Peer, from, to uint64) {
		for pl.ID = from; pl.ID <= to; pl.ID++ {
			p.Add(pl, second)
		}
	}
	add(p, 1, share+more)
	if p.Len() != share+more || p.Forgotten() != 0 {
		t.Fatalf("with room, %d requests and %d forgotten", p.Len(), p.Forgotten())
	}
	w.router.OthersTell(all)
	add(small, 1, more)
	add(p, share+more+1, share+more+1)
	if p.Len() != share || p.Forgotten() != more+1 || p.Has(more+1) || !p.Has(more+2) || !p.Has(share+more+1) {
		t.Errorf("%d requests, %d forgotten; the oldest is there: %v", p.Len(), p.Forgotten(), p.Has(more+1))
	}
	if small.Len() != more || small.Forgotten() != 0 {
		t.Errorf("a peer below its share has %d requests, and %d are forgotten", small.Len(), small.Forgotten())
	}
	w.router.OthersTell(-all)
	add(p, 2*share, 2*share+more)
	if p.Len() != share+more+1 {
		t.Errorf("with room again, %d requests", p.Len())
	}
	p.Close(second)
	small.Close(second)
	w.router.OthersTell(all - share - more) // ended requests do not count
	add(p, 1, share+more)
	if p.Len() != share+more {
		t.Errorf("%d requests after all ended", p.Len())
	}
}
