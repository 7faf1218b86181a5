package queue

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// outcome is the result of a simulated overload for one tenant.
type outcome struct {
	served, refused, timedOut int
	waits                     []float64 // waits in seconds, of the requests that were served
	tokens                    int
}

func (o *outcome) quantile(p float64) float64 {
	if len(o.waits) == 0 {
		return math.NaN()
	}
	slices.Sort(o.waits)
	return o.waits[int(p*float64(len(o.waits)-1))]
}

// ends is a heap of the times at which slots become free.
type ends []int64

func (e ends) Len() int           { return len(e) }
func (e ends) Less(i, j int) bool { return e[i] < e[j] }
func (e ends) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)        { *e = append(*e, x.(int64)) }
func (e *ends) Pop() any          { last := (*e)[len(*e)-1]; *e = (*e)[:len(*e)-1]; return last }

// overload simulates ten minutes of 16 slots. A slot computes 2,000 tokens a second, and then answers for two seconds.
// Tenant heavy asks for 1.5 times the capacity, in prompts of 500 to 16,000 tokens. Tenant light asks for a twentieth
// of the capacity, in prompts of 500 tokens. Requests of light have priority 0, and requests of heavy have priority 1.
func overload(order string, seed uint64) map[string]*outcome {
	r := rand.New(rand.NewPCG(seed, 7))
	q := New(config(order))
	got := map[string]*outcome{"heavy": {}, "light": {}}
	const slots, end = 16, 600 * second
	service := func(tokens int) int64 { return int64(float64(tokens)/2000*float64(second)) + 2*second }
	busy := &ends{}
	next := map[string]int64{"heavy": 0, "light": 0}
	mean := map[string]float64{"heavy": 0.26, "light": 2.2} // seconds between two requests
	draw := func(tenant string) int64 { return int64(r.ExpFloat64() * mean[tenant] * float64(second)) }
	waiting := map[*Item]bool{}
	for {
		// The next event is the arrival of a request, or a slot that becomes free.
		tenant := "heavy"
		if next["light"] < next["heavy"] {
			tenant = "light"
		}
		now := next[tenant]
		arrival := true
		if len(*busy) > 0 && (*busy)[0] <= now {
			now, arrival = heap.Pop(busy).(int64), false
		}
		if now > end {
			return got
		}
		if arrival {
			tokens, priority := 500, 0
			if tenant == "heavy" {
				tokens, priority = int(500*math.Exp(r.Float64()*math.Log(32))), 1
			}
			next[tenant] = now + draw(tenant)
			it := &Item{Tenant: tenant, Tokens: tokens, Priority: priority, Arrived: now, Deadline: now + 30*second}
			shed, refused := q.Push(it, now)
			for _, s := range shed {
				got[s.Tenant].refused++
				delete(waiting, s)
			}
			if refused != nil {
				got[tenant].refused++
			} else {
				waiting[it] = true
			}
		}
		for it := range waiting { // remove requests that are past their deadline
			if it.Deadline <= now && q.Remove(it) {
				got[it.Tenant].timedOut++
				delete(waiting, it)
			}
		}
		for len(*busy) < slots {
			it := q.Pop()
			if it == nil {
				break
			}
			q.Served(it, now)
			delete(waiting, it)
			o := got[it.Tenant]
			o.served++
			o.tokens += it.Tokens
			o.waits = append(o.waits, time.Duration(now-it.Arrived).Seconds())
			heap.Push(busy, now+service(it.Tokens))
		}
	}
}

// Each order serves its own purpose better than first come, first served does. The figures are in docs/operate.md; -v
// prints them.
func TestOrdersDoWhatTheyAreFor(t *testing.T) {
	const seeds = 5
	served, lightWait, heavyWait, lightShare := map[string]float64{}, map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, order := range orders[1:] {
		for seed := range uint64(seeds) {
			got := overload(order, seed)
			l, h := got["light"], got["heavy"]
			served[order] += float64(l.served+h.served) / seeds
			lightWait[order] += l.quantile(0.9) / seeds
			heavyWait[order] += h.quantile(0.5) / seeds
			lightShare[order] += float64(l.served) / float64(l.served+l.refused+l.timedOut) / seeds
		}
		t.Logf("%-9s served %4.0f, light: %3.0f %% served, p90 wait %5.1f s; heavy: p50 wait %5.1f s", order, served[order], 100*lightShare[order], lightWait[order], heavyWait[order])
	}
	if lightWait[Fair] > lightWait[FCFS]/4 || lightShare[Fair] < 0.99 {
		t.Errorf("fair: the light tenant waits %.1f s and is served at %.0f %%; first come: %.1f s", lightWait[Fair], 100*lightShare[Fair], lightWait[FCFS])
	}
	if lightWait[Priority] > lightWait[FCFS]/4 || lightShare[Priority] < 0.99 {
		t.Errorf("priority: %.1f s and %.0f %%; first come: %.1f s", lightWait[Priority], 100*lightShare[Priority], lightWait[FCFS])
	}
	if heavyWait[Shortest] > heavyWait[FCFS]/2 || served[Shortest] < 1.02*served[FCFS] {
		t.Errorf("shortest: a median wait of %.1f s and %.0f served; first come: %.1f s and %.0f", heavyWait[Shortest], served[Shortest], heavyWait[FCFS], served[FCFS])
	}
}
