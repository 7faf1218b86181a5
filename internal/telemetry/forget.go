package telemetry

import (
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// keepGone is how long the series of a worker are kept after the worker left. It is longer than several scrapes at any
// usual interval, so that the worker's last requests are still scraped. If it were longer, a fleet whose workers come
// and go would have too many series.
const keepGone = 15 * time.Minute

// forgetGone removes the series of the workers that left at least keepGone ago. Each scrape calls it. present has the
// workers of the fleet.
func (t *Telemetry) forgetGone(present []Worker, now time.Time) {
	t.goneMu.Lock()
	defer t.goneMu.Unlock()
	t.workers.Range(func(key, _ any) bool {
		worker := key.(string)
		since, gone := t.gone[worker]
		switch {
		case slices.ContainsFunc(present, func(w Worker) bool { return w.URL == worker }):
			delete(t.gone, worker)
		case !gone:
			t.gone[worker] = now
		case now.Sub(since) >= keepGone:
			delete(t.gone, worker)
			t.forget(worker)
		}
		return true
	})
}

// forget removes all series of a worker. A request that ends during this call may create a series again. Later scrapes
// then treat the worker as one that has just left, and remove the series after keepGone.
func (t *Telemetry) forget(worker string) {
	t.workers.Delete(worker)
	t.perWorker.Range(func(key, _ any) bool {
		if key.(workerKey).worker == worker {
			t.perWorker.Delete(key)
		}
		return true
	})
	labels := prometheus.Labels{"worker": worker}
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{t.requests, t.retries, t.firstToken, t.total, t.tokens, t.difference, t.compared} {
		v.DeletePartialMatch(labels)
	}
}

// forgetting returns a handler that removes the series of workers that left, and then calls next.
func (t *Telemetry) forgetting(src Sources, next http.Handler) http.Handler {
	if src.Workers == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.forgetGone(src.Workers(), time.Now())
		next.ServeHTTP(w, r)
	})
}
