package policy_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// TestManyMayUseAPolicyAtOnce finds data races, and panics when choices and ends of requests come in any order.
func TestManyMayUseAPolicyAtOnce(t *testing.T) {
	for _, s := range kinds.BuiltIn() {
		t.Run(s.Name, func(t *testing.T) {
			p := build(t, s)
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					for i := range 60 {
						q, c := field(8 + i%5)
						q.Now, q.Random, q.Model = int64(i)*1e9, uint64(g*1000+i), "m"
						q.Session = policy.Session{Key: fmt.Sprint("session ", (g+i)%7)}
						q.Prompt = policy.Prompt{Text: []byte(fmt.Sprint("prompt ", i%9, " goes on")), BlockSize: 16}
						for k := range 20 {
							q.Prompt.Keys = append(q.Prompt.Keys, block.Key(i%9*100+k))
							q.Prompt.Tokens = append(q.Prompt.Tokens, block.Token(i%9*100+k))
						}
						if s.NeedsTarget {
							q.Target = c[1].Worker.URL
						}
						p.Nominate(&q, nil)
						choice := p.Choose(&q, c)
						if choice.Index < 0 {
							t.Errorf("%s", choice.Branch)
							return
						}
						p.Routed(&q, &c[choice.Index])
						p.Finished(&policy.Finished{Holder: c[choice.Index].Holder, Model: "m", Outcome: fleet.OutcomeServed, RoutedAt: q.Now, FirstTokenAt: q.Now + 1e8, Now: q.Now + 1e9, OutputTokens: 10})
						if i%20 == 19 {
							p.Forget(fleet.Holder(g))
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
