package sim

import (
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// answer is an engine's report of its load, which has not arrived at the routers yet.
type answer struct {
	pool   *pool
	holder fleet.Holder
	said   fleet.Reported
}

func (w *world) report(a *answer) {
	w.freed = true // other routers may have freed room at this worker
	for _, v := range a.pool.views {
		v.fleet.Report(a.holder, a.said)
	}
}

// askEngines plans the first load report of each rank that reports nothing yet, as long as there are requests. The
// questions are spread over the interval, as a scraper spreads them.
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

// spread is the number of parts of the interval in which ranks are asked. Each rank is asked in one part.
const spread = 16

// askEngine reads r's gauges for every router. A dead engine does not answer.
func (w *world) askEngine(r *rank) {
	if !w.busy() {
		r.asked = false // no requests are left: the next request plans a report again
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
	late := said // this copy exists because the planned moment keeps a pointer to it
	w.agenda.plan(moment{at: w.now + w.cfg.MetricsLag, kind: atReport, with: &late})
}

// appendText writes a text for tokens. Equal tokens give equal text. A token becomes four characters, as in English.
func appendText(dst []byte, tokens []block.Token) []byte {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ."
	for _, t := range tokens {
		t = t*0x9e3779b1 + t>>15
		dst = append(dst, letters[t>>26], letters[t>>20&63], letters[t>>14&63], letters[t>>8&63])
	}
	return dst
}
