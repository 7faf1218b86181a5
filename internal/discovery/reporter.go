package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// ReportsConfig are the settings for questions to engines about their load.
type ReportsConfig struct {
	// Interval is the time between two questions to a worker, plus or minus 10 %. Default 1 s. The router counts its
	// own requests without reports, and requests of other routers take seconds, so shorter intervals gain little. 0
	// turns off reports and the detection of frozen workers.
	Interval time.Duration `yaml:"interval"`
	// Timeout is the time limit of one question. Default 1 s: a later answer is of no use. An engine that does not
	// answer is asked less often, but about every 30 s at least. Such an engine still gets requests.
	Timeout time.Duration `yaml:"timeout"`
}

// DefaultReportsConfig asks every worker once a second.
func DefaultReportsConfig() ReportsConfig {
	return ReportsConfig{Interval: time.Second, Timeout: time.Second}
}

// Validate returns all problems of c, each beginning with the name of its field.
func (c ReportsConfig) Validate() error {
	var problems []error
	if c.Interval < 0 || c.Interval > 0 && c.Interval < minInterval {
		problems = append(problems, fmt.Errorf("interval: %v is below %v; 0 turns reports off", c.Interval, minInterval))
	}
	if c.Timeout <= 0 {
		problems = append(problems, fmt.Errorf("timeout: %v is not positive", c.Timeout))
	}
	return errors.Join(problems...)
}

const (
	minInterval = 50 * time.Millisecond // an answer costs an engine's API process a few milliseconds
	maxInterval = 30 * time.Second      // longest pause between questions to an engine that does not answer
	// expiry is the time between two searches for lost requests: see fleet.Fleet.Expire.
	expiry = 30 * time.Second
)

// Reporter asks the engines for their load and reports it to the fleet. Run is called once; the other methods may be
// called from any goroutine.
type Reporter struct {
	fleet   *fleet.Fleet
	client  *http.Client
	config  ReportsConfig
	targets func(url string) Target
	log     *slog.Logger

	mu     sync.Mutex // guards counts
	counts map[string]*ReportCounts
}

// ReportCounts counts the questions to one worker since it joined the fleet.
type ReportCounts struct {
	Answered, Failed atomic.Uint64
	failing          atomic.Bool // the last question had no answer, except questions to a suspect
	took             answerTimes
}

// NewReporter returns a reporter for the workers of f. It starts nothing. targets returns the target of the worker at a
// URL; the reporter needs the target's key. A nil client means the client of [NewClient].
func NewReporter(f *fleet.Fleet, c ReportsConfig, targets func(url string) Target, client *http.Client, log *slog.Logger) *Reporter {
	if client == nil {
		client = NewClient(nil, nil)
	}
	return &Reporter{fleet: f, client: client, config: c, targets: targets, log: log, counts: map[string]*ReportCounts{}}
}

// Counts returns the counts of the worker at url; nil if the reporter does not watch the worker.
func (r *Reporter) Counts(url string) *ReportCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.counts[url]
}

func (r *Reporter) countsOf(url string) *ReportCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.counts[url]
	if c == nil {
		c = &ReportCounts{}
		r.counts[url] = c
	}
	return c
}

// Run asks for reports, and looks for lost requests and frozen workers, until ctx ends. It then returns nil.
func (r *Reporter) Run(ctx context.Context) error {
	var asking sync.WaitGroup
	defer asking.Wait()
	if r.config.Interval > 0 {
		asking.Go(func() { r.guard(ctx) }) // ends with ctx
	}
	asked := map[fleet.WorkerID]context.CancelFunc{}
	defer func() {
		for _, stop := range asked {
			stop()
		}
	}()
	lost := time.NewTicker(expiry)
	defer lost.Stop()
	for {
		snap := r.fleet.Snapshot()
		if r.config.Interval > 0 {
			r.follow(ctx, snap, asked, &asking)
		}
		select {
		case <-snap.Superseded():
		case now := <-lost.C:
			if n := r.fleet.Expire(now.UnixNano()); n > 0 {
				r.log.Error("requests were lost without giving back their load: please report this", "requests", n)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// follow starts a goroutine for each new worker of snap, and stops the goroutines of workers that left.
func (r *Reporter) follow(ctx context.Context, snap *fleet.Snapshot, asked map[fleet.WorkerID]context.CancelFunc, asking *sync.WaitGroup) {
	present := map[fleet.WorkerID]bool{}
	for _, w := range snap.Workers() {
		present[w.ID] = true
		if asked[w.ID] != nil || len(w.Holders) == 0 {
			continue
		}
		wctx, stop := context.WithCancel(ctx)
		asked[w.ID] = stop
		asking.Go(func() { r.watch(wctx, w) }) // ends with wctx; Run waits
	}
	for id, stop := range asked {
		if !present[id] {
			stop()
			delete(asked, id)
		}
	}
}

// watch asks one worker until ctx ends.
func (r *Reporter) watch(ctx context.Context, w *fleet.Worker) {
	counts := &ReportCounts{} // the counts of an earlier worker at the URL may still be there
	r.mu.Lock()
	r.counts[w.URL] = counts
	r.mu.Unlock()
	defer func() {
		// If the worker left the fleet, its counts are not needed. Otherwise ctx ended because this process stops.
		if r.fleet.Snapshot().ByID(w.ID) == nil {
			r.mu.Lock()
			if r.counts[w.URL] == counts { // not those of the next worker at the URL
				delete(r.counts, w.URL)
			}
			r.mu.Unlock()
		}
	}()
	// The first wait is random, so that workers are not all asked at the same moment.
	wait := time.Duration(rand.Int64N(int64(r.config.Interval)))
	for {
		if r.pause(ctx, w.ID, wait) {
			wait = r.config.Interval // errors of the earlier process may have made the wait longer
		}
		if ctx.Err() != nil {
			return
		}
		err := r.ask(ctx, w.URL, w.ID)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errNotAsked):
			wait = r.config.Interval
		case err != nil:
			counts.fail(err, r.log, w.URL, r.suspected(w.ID))
			wait = min(max(2*wait, r.config.Interval), max(maxInterval, r.config.Interval))
		default:
			counts.answer(r.log, w.URL)
			wait = r.config.Interval
		}
		wait += time.Duration((rand.Float64() - 0.5) / 5 * float64(wait))
	}
}

// pause waits for the time wait. If ctx ends, pause returns earlier. If another process is found behind the worker's
// URL, pause returns earlier, and another is true.
func (r *Reporter) pause(ctx context.Context, id fleet.WorkerID, wait time.Duration) (another bool) {
	over := time.NewTimer(wait)
	defer over.Stop()
	snap := r.fleet.Snapshot()
	before := snap.ByID(id)
	for {
		if now := snap.ByID(id); before != nil && now != nil && now.Incarnation != before.Incarnation {
			return true
		}
		select {
		case <-over.C:
			return false
		case <-ctx.Done():
			return false
		case <-snap.Superseded():
			snap = r.fleet.Snapshot()
		}
	}
}

// errNotAsked means that no question was sent, because the worker is unhealthy, or because its engine does not report
// its load.
var errNotAsked = errors.New("not asked")

// ask asks the worker at url once, and reports the answer to the fleet. It looks up the worker each time, because a
// probe may have changed the worker's ranks, and a reload may have changed its key.
func (r *Reporter) ask(ctx context.Context, url string, id fleet.WorkerID) error {
	a := asker{client: r.client, target: Target{URL: url}, timeout: r.config.Timeout}
	if r.targets != nil {
		a.target.APIKey = r.targets(url).APIKey
	}
	w := r.fleet.Snapshot().ByID(id)
	if w == nil || !w.Healthy || w.Facts.Engine != fleet.EngineVLLM && w.Facts.Engine != fleet.EngineSGLang {
		return errNotAsked
	}
	asked, suspect := time.Now(), r.suspected(id)
	found, signs, err := a.loadOf(ctx, w.Facts.Engine)
	switch {
	case refused(err):
		r.fleet.Refused(id)
		return err
	case err == nil || errors.Is(err, errNoLoad):
		r.fleet.Answered(id, signs)
		// SGLang answers only after its scheduler has answered. A suspect, a worker that seems to be frozen, answers
		// only when it is no longer frozen. The times of such answers do not show how slow the API server is.
		if w.Facts.Engine == fleet.EngineVLLM && !suspect {
			r.countsOf(url).took.add(time.Since(asked))
		}
	}
	if err != nil {
		return err
	}
	now := time.Now().UnixNano()
	reported := 0
	for rank, l := range found {
		h, ok := w.Rank(rank)
		// An engine with one rank may give this rank another number.
		if !ok && len(w.Holders) == 1 && len(found) == 1 {
			h, ok = w.Holders[0], true
		}
		if ok {
			l.At = now
			r.fleet.Report(h, l)
			reported++
		}
	}
	if reported == 0 {
		return fmt.Errorf("%w: of none of its ranks", errNoLoad)
	}
	return nil
}

func (c *ReportCounts) answer(log *slog.Logger, url string) {
	c.Answered.Add(1)
	if c.failing.Swap(false) {
		log.Info("worker reports its load again", "worker", url)
	}
}

// suspected reports whether a worker seems to be frozen.
func (r *Reporter) suspected(id fleet.WorkerID) bool {
	snap := r.fleet.Snapshot()
	w := snap.ByID(id)
	return w != nil && len(w.Holders) > 0 && snap.Suspected(w.Holders[0])
}

// fail counts a question without an answer, and logs the first of several in a row. It does not log a question to a
// suspect: the log line says how the router goes on choosing this worker, but a frozen worker gets no requests.
func (c *ReportCounts) fail(err error, log *slog.Logger, url string, suspect bool) {
	c.Failed.Add(1)
	if suspect {
		return
	}
	if !c.failing.Swap(true) {
		log.Warn("worker does not report its load: the router uses only its own counts", "worker", url, "error", err)
	}
}
