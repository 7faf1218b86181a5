package warmpath_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// crier tells peers of other routers at once what happens to the requests of one router.
type crier struct {
	peers []*warmpath.Peer
	now   *int64
	told  warmpath.Placement
	heard []string // what was told, in order
}

func (c *crier) Placed(d *warmpath.Decision) {
	d.Placement(&c.told)
	c.heard = append(c.heard, fmt.Sprintf("placed %d", d.ID()))
	for _, p := range c.peers {
		if !p.Add(&c.told, *c.now) {
			panic("a peer does not know " + c.told.URL)
		}
	}
}

func (c *crier) PrefillCompleted(id uint64) {
	c.heard = append(c.heard, fmt.Sprintf("completed %d", id))
	for _, p := range c.peers {
		p.PrefillCompleted(id, *c.now)
	}
}

func (c *crier) Freed(id uint64, e warmpath.Ending) {
	c.heard = append(c.heard, fmt.Sprintf("freed %d %+v", id, e))
	for _, p := range c.peers {
		p.Free(id, e, *c.now)
	}
}

// replicas returns n worlds with the same workers, each of which hears at once of the requests of the others.
func replicas(t testing.TB, n int, now *int64, options func() warmpath.Options, workers ...fleet.Facts) ([]*world, []*crier) {
	var worlds []*world
	var criers []*crier
	for range n {
		c := &crier{now: now}
		o := options()
		o.Observer = c
		worlds, criers = append(worlds, newWorld(t, o, workers...)), append(criers, c)
	}
	for i, c := range criers {
		for j, w := range worlds {
			if i != j {
				c.peers = append(c.peers, w.router.NewPeer())
			}
		}
	}
	return worlds, criers
}

// play sends the same requests to each of the worlds in turn, and returns the chosen workers. The time stands still, so
// that nothing is learned from it: each router would learn from its own requests only.
func play(t *testing.T, worlds []*world, now *int64, name string) (chosen []string) {
	random := rand.New(rand.NewPCG(1, 2))
	var open []*warmpath.Decision
	computed := map[*warmpath.Decision]bool{}
	for i := range 300 {
		text := random.IntN(12)
		req := warmpath.Request{
			Model: "llama", Policy: name, Tokens: prompt(text, 64+16*random.IntN(40)), Now: *now, Random: random.Uint64(),
			Session: policy.Session{Key: fmt.Sprint(text), Source: "x-session"}, Tenant: fmt.Sprint(text % 3), Whole: random.IntN(4) == 0,
		}
		if text%2 == 0 {
			req.Text = story(fmt.Sprint(text), 200+random.IntN(2000))
		}
		if name == "direct" {
			req.Target = []string{"a", "b", "c", "d"}[random.IntN(4)]
		}
		w := worlds[i%len(worlds)]
		d, err := w.router.Route(context.Background(), &req)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		chosen = append(chosen, fmt.Sprintf("%d %s %s", i, d.Worker.URL, d.Branch))
		open = append(open, d)
		if random.IntN(2) == 0 {
			for at := range open { // engines compute prompts in order
				if open[at].Holder == d.Holder && !computed[open[at]] {
					open[at].FirstToken(*now)
					computed[open[at]] = true
					break
				}
			}
		}
		for len(open) > 0 && random.IntN(8) < 3+len(open)/8 {
			at := random.IntN(len(open))
			if random.IntN(6) == 0 {
				open[at].Unsent()
			}
			open[at].Done(fleet.OutcomeServed, *now)
			delete(computed, open[at])
			open[at].Recycle()
			open = append(open[:at], open[at+1:]...)
		}
	}
	for _, d := range open {
		d.Done(fleet.OutcomeServed, *now)
	}
	return chosen
}

func TestRoutersThatTellEachOtherPlaceAsOne(t *testing.T) {
	for _, kind := range warmpath.PolicyKinds() {
		if kind.Defaults().Validate() != nil {
			continue // it needs settings
		}
		t.Run(kind.Name, func(t *testing.T) {
			options := func() warmpath.Options { return warmpath.Options{Policy: kind.Defaults().Spec(kind.Name)} }
			var now int64 = 1_000_000 * second
			one := newWorld(t, options(), vllm(), vllm(), vllm(), vllm())
			want := play(t, []*world{one}, &now, kind.Name)
			now = 1_000_000 * second
			three, criers := replicas(t, 3, &now, options, vllm(), vllm(), vllm(), vllm())
			got := play(t, three, &now, kind.Name)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("three routers place otherwise than one (-one +three):\n%s", diff)
			}
			for i, c := range criers {
				for _, p := range c.peers {
					if n := p.Len(); n != 0 {
						t.Errorf("a peer still has %d requests of router %d", n, i)
					}
				}
				for h := range fleet.Holder(4) {
					l := three[i].fleet.Snapshot().Load(h)
					l.Processed, l.Turns, l.Peers.Processed = 0, 0, 0
					if l != (fleet.Load{}) {
						t.Errorf("router %d has load left on holder %d: %+v", i, h, l)
					}
				}
			}
		})
	}
}
