package sim

import (
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// answer is a load report of an engine on its way to the routers.
type answer struct {
	pool   *pool
	holder fleet.Holder
	said   fleet.Reported
}

func (w *world) report(a *answer) {
	w.freed = true // the report may show less load by other routers, so there may be room for waiting requests
	for _, v := range a.pool.views {
		v.fleet.Report(a.holder, a.said)
	}
}

// askEngines plans the first load report of each rank for which no report is planned. Reports of different ranks are
// spread over the interval, as a scraper spreads its requests.
func (w *world) askEngines() {
	if w.cfg.Metrics < 0 || w.asking == len(w.ranks) {
		return
	}
	for i, r := range w.ranks {
		if r.asked {
			continue
		}
		r.asked = true
		offset := w.cfg.Metrics * time.Duration(i%spread) / spread
		w.agenda.plan(moment{at: w.now + offset, kind: atMetrics, a: int32(i)})
	}
	w.asking = len(w.ranks)
}

// spread is the number of equal parts into which askEngines divides the interval. Each rank reports at the start of one
// part.
const spread = 16

// askEngine reads r's load gauges for every router and plans the next reading. A dead engine does not answer.
func (w *world) askEngine(r *rank) {
	if !w.busy() {
		r.asked = false // no requests are left; the next request calls askEngines again
		w.asking--
		return
	}
	w.agenda.plan(moment{at: w.now + w.cfg.Metrics, kind: atMetrics, a: int32(r.index)})
	if r.dead {
		return
	}
	running, waiting, kv := r.engine.Load()
	said := answer{r.pool, r.holder, fleet.Reported{At: epoch + int64(w.now), Running: int64(running), Waiting: int64(waiting), KVUsed: kv}}
	if w.cfg.MetricsLag == 0 {
		w.report(&said)
		return
	}
	late := said // the planned moment keeps a pointer to this copy; with no lag, said needs no allocation
	w.agenda.plan(moment{at: w.now + w.cfg.MetricsLag, kind: atReport, with: &late})
}

// appendText appends a made-up text for tokens to dst. Equal tokens give equal text. A token becomes four characters,
// about the mean length of a token in English.
func appendText(dst []byte, tokens []block.Token) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."
	for _, t := range tokens {
		t = t*0x9e3779b1 + t>>15
		dst = append(dst, letters[t>>26], letters[t>>20&63], letters[t>>14&63], letters[t>>8&63])
	}
	return dst
}
