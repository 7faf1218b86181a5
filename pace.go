package warmpath

import (
	"math"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
)

// pace is how long answers take for the work in them: a running mean of the quotient, where 1 is fleet.DefaultTiming of
// an answer that has the engine to itself. Any number of goroutines use it without a lock; a lost update costs nothing.
// The zero value knows nothing.
type pace struct{ mean atomic.Uint64 }

const (
	paceEvery = 8  // answers of a model after which its usual pace is looked at again
	compared  = 31 // workers whose median it is
	paceOver  = 16 // answers that the mean is over: a few of a long queue do not decide
	// believable is how many times longer a worker's answers may take than the others' while all of its ranks are
	// believed: engines of one model on different devices, with different queues, differ by less.
	believable = 4
	// firstRanks of a worker get requests until one of them has ended: a machine has eight devices.
	firstRanks = 8
)

func (p *pace) load() float64 { return math.Float64frombits(p.mean.Load()) }

func (p *pace) learn(quotient float64) {
	mean := p.load()
	if mean == 0 {
		mean = quotient
	}
	p.mean.Store(math.Float64bits(mean + (quotient-mean)/paceOver))
}

// pacesFor returns the pace of each worker, by id, with room for one of this id.
func (r *Router) pacesFor(id fleet.WorkerID) []*pace {
	if all := *r.paces.Load(); int(id) < len(all) {
		return all
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := *r.paces.Load()
	if int(id) < len(all) {
		return all
	}
	longer := make([]*pace, max(2*len(all), int(id)+1))
	copy(longer, all)
	for i := len(all); i < len(longer); i++ {
		longer[i] = &pace{}
	}
	r.paces.Store(&longer)
	return longer
}

// learnPace learns from the end of d at now.
func (d *Decision) learnPace(o fleet.Outcome, now int64) {
	const least = 10 // milliseconds of any answer that are not its tokens
	t := &fleet.DefaultTiming
	output := float64(d.reservation.Output())
	took := float64(now-d.Now) / 1e6
	work := least + t.Prompt(max(d.PromptTokens-d.PredictedTokens, 0), d.PromptTokens) + t.Base*output
	own := d.router.pacesFor(d.Worker.ID)[d.Worker.ID]
	quotient := took / work
	if o != fleet.OutcomeServed {
		if quotient > own.load() { // it has taken that long, and was not over
			own.learn(quotient)
		}
		return
	}
	own.learn(quotient)
	s := d.router.scout(d.Model)
	if n := s.answers.Add(1); n%paceEvery == 0 {
		s.usual.Store(math.Float64bits(d.router.usualPace(d.Model, n/paceEvery)))
	}
}

// usualPace returns the median over the workers that serve a model, whatever each one's share of the answers is: the
// answers of one that draws most requests are most of all answers. Of more than compared workers it looks at others each
// turn.
func (r *Router) usualPace(model string, turn uint64) float64 {
	pool, ok := r.fleet.Snapshot().Pool(model)
	if !ok {
		return 0
	}
	all := *r.paces.Load()
	var sorted [compared]float64
	n := 0
	for i := range min(len(pool.Workers), compared) {
		id := int(pool.Workers[(turn*compared+uint64(i))%uint64(len(pool.Workers))].ID)
		if id >= len(all) || all[id].load() == 0 {
			continue
		}
		at := n
		for x := all[id].load(); at > 0 && sorted[at-1] > x; at-- {
			sorted[at] = sorted[at-1]
		}
		sorted[at] = all[id].load()
		n++
	}
	if n < 2 {
		return 0 // nothing to compare with
	}
	return sorted[(n-1)/2]
}

// believed returns how many ranks of w get requests, the first ones, where answers of the model usually have that pace.
// Ranks that one device serves would else get as many requests as there are of them: whoever numbers more ranks is idle
// at more places. As its answers then take longer, fewer of its ranks are believed, at least one.
func (r *Router) believed(w *fleet.Worker, usual float64) int {
	if len(w.Holders) < 2 {
		return 1
	}
	own := 0.0
	if all := *r.paces.Load(); int(w.ID) < len(all) {
		own = all[w.ID].load()
	}
	switch {
	case own == 0:
		return min(len(w.Holders), firstRanks)
	case usual == 0 || own <= believable*usual:
		return len(w.Holders)
	}
	return max(int(float64(len(w.Holders))*believable*usual/own), 1)
}
