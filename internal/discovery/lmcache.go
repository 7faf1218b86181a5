package discovery

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

const (
	// maxLookup is the longest time that a request waits for a lookup, as in vllm-router by barrahome, the router from
	// which lmcache_aware comes. An engine computes about 5,000 tokens in this time.
	maxLookup = 200 * time.Millisecond
	// lookupRest is the time without lookups after a failed lookup. After this time one request does a lookup again. Until
	// its answer comes, the other requests do no lookup. So a controller that does not answer delays the first maxLookups
	// requests, then about one request a second. A controller that answers slowly, but within maxLookup, delays every
	// request.
	lookupRest = time.Second
	// maxLookups bounds the lookups under way. At 10 ms for a lookup, 32 lookups serve 3,200 requests a second. Further
	// requests do no lookup.
	maxLookups = 32
	// keptPolls is the number of polls that may fail before the router forgets the last good answer. A poll asks the
	// controller about its workers.
	keptPolls = 3
	// maxWorkersAnswer bounds the answer of a poll in bytes. A worker's row in it has about 200 bytes.
	maxWorkersAnswer = 8 << 20
	// maxLookupAnswer bounds the answer of a lookup in bytes: 1,000 instances with 256 bytes each. A request waits until
	// the answer is decoded, and maxLookup does not count this time: it is a few milliseconds for 256 KiB.
	maxLookupAnswer = 256 << 10
)

// LMCacheConfig says how one LMCache controller is asked.
type LMCacheConfig struct {
	URL          string            // the controller's HTTP address
	APIKey       string            // the API key, sent as a bearer token; "" sends none
	PollInterval time.Duration     // the time between two questions about the occupancy of all caches
	Timeout      time.Duration     // the time limit of one question; a lookup has at most 200 ms
	Lookup       bool              // also ask about the prompt of each request
	Workers      map[string]string // the URLs of workers, by the controller's names of instances; other workers are found by address
}

// LMCache asks one LMCache controller. Run is called once; the other methods may be called from any goroutine.
type LMCache struct {
	config LMCacheConfig
	fleet  *fleet.Fleet
	client *http.Client
	log    *slog.Logger

	polled atomic.Pointer[lmcachePoll]
	known  atomic.Pointer[lmcacheView]
	// resting counts from this time on the monotonic clock, so changes of the wall clock have no effect
	born    time.Time
	resting atomic.Int64 // no lookup before this time, in nanoseconds after born; 0: the last lookup did not fail
	lookups atomic.Int32 // lookups under way
	polling lmcacheAnswers
	looking lmcacheAnswers
}

// lmcacheAnswers remembers whether the last question of a kind was answered, so that only changes are logged.
type lmcacheAnswers struct{ silent atomic.Bool }

// lmcachePoll is an answer of the controller about its workers. An instance is the LMCache engine of one worker.
type lmcachePoll struct {
	at        time.Time
	instances []lmcacheInstance
}

// lmcacheView is a poll whose instances are assigned to workers of the fleet.
type lmcacheView struct {
	poll       *lmcachePoll
	generation uint64                    // generation of the fleet's snapshot from which the view was made
	byInstance map[string]fleet.WorkerID // instances whose worker is in the fleet
	external   []fleet.Cached            // facts from the poll, ordered by worker
}

// NewLMCacheClient returns the HTTP client that asks controllers, over n; nil means the machine's network.
func NewLMCacheClient(n network.Network) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: network.Of(n).Dial, MaxIdleConnsPerHost: 64,
		IdleConnTimeout: 4 * time.Second, DisableCompression: true}}
}

// NewLMCache returns a client for the controller that c describes. It starts nothing. When Run ends, it closes the idle
// connections of client.
func NewLMCache(c LMCacheConfig, f *fleet.Fleet, client *http.Client, log *slog.Logger) *LMCache {
	return &LMCache{config: c, fleet: f, client: client, log: log, born: time.Now()}
}

// Run polls until ctx ends, and then returns nil.
func (c *LMCache) Run(ctx context.Context) error {
	defer c.client.CloseIdleConnections()
	for {
		if err := c.poll(ctx); ctx.Err() == nil {
			c.report(&c.polling, "its workers", err)
		}
		select {
		case <-time.After(c.config.PollInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// report logs that the controller stopped answering questions of a kind, or answers again.
func (c *LMCache) report(a *lmcacheAnswers, what string, err error) {
	switch was := a.silent.Swap(err != nil); {
	case err != nil && !was:
		c.log.Warn("the LMCache controller does not answer: lmcache_aware falls back", "controller", c.config.URL, "asked", what, "error", err)
	case err == nil && was:
		c.log.Info("the LMCache controller answers", "controller", c.config.URL, "asked", what)
	}
}

func (c *LMCache) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	answer, err := c.ask(ctx, http.MethodGet, "/controller/workers", nil, maxWorkersAnswer)
	if err != nil {
		return err
	}
	instances, err := decodeWorkers(answer)
	if err != nil {
		return err
	}
	c.polled.Store(&lmcachePoll{time.Now(), instances})
	return nil
}

// Cached returns the controller's facts about workers in the fleet, ordered by worker. The facts are the number of
// cached chunks in the last poll, and, if prompts are looked up, the number of this prompt's tokens that are cached. If
// the controller does not answer in time, if a lookup failed less than lookupRest ago, or if maxLookups lookups are
// under way, the cached tokens are missing. The caller must not change the result.
func (c *LMCache) Cached(ctx context.Context, prompt []block.Token) []fleet.Cached {
	v := c.view()
	if !c.config.Lookup || len(prompt) == 0 {
		return v.external
	}
	defer c.lookups.Add(-1)
	if c.lookups.Add(1) > maxLookups {
		return v.external
	}
	rest, now := c.resting.Load(), int64(time.Since(c.born))
	next := now + int64(lookupRest)
	if rest != 0 && (now < rest || !c.resting.CompareAndSwap(rest, next)) {
		return v.external // no lookup now: lookupRest is not over, or another request does the first lookup after it
	}
	found, err := c.lookup(ctx, prompt)
	switch {
	case err == nil:
		c.report(&c.looking, "a prompt", nil)
		if rest != 0 {
			c.resting.CompareAndSwap(next, 0)
		}
		return v.with(found)
	case ctx.Err() != nil: // the client left: this says nothing about the controller, and the next request may try it
		if rest != 0 {
			c.resting.CompareAndSwap(next, rest)
		}
	default:
		c.resting.Store(int64(time.Since(c.born) + lookupRest))
		c.report(&c.looking, "a prompt", err)
	}
	return v.external
}

func (c *LMCache) lookup(ctx context.Context, prompt []block.Token) ([]lmcacheHit, error) {
	ctx, cancel := context.WithTimeout(ctx, min(c.config.Timeout, maxLookup))
	defer cancel()
	body := append(make([]byte, 0, 16+7*len(prompt)), `{"tokens":[`...)
	for i, t := range prompt {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendUint(body, uint64(t), 10)
	}
	answer, err := c.ask(ctx, http.MethodPost, "/lookup", append(body, "]}"...), maxLookupAnswer)
	if err != nil {
		return nil, err
	}
	return decodeLookup(answer)
}

// ask sends one request and returns the answer's body, at most limit bytes.
func (c *LMCache) ask(ctx context.Context, method, path string, body []byte, limit int) ([]byte, error) {
	url := strings.TrimRight(c.config.URL, "/") + path
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("ask the controller for %s: %w", path, err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.config.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.config.APIKey)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the controller: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the answer of %s: %w", path, err)
	case resp.StatusCode != http.StatusOK:
		if key := c.config.APIKey; key != "" {
			answer = bytes.ReplaceAll(answer, []byte(key), []byte("[redacted]")) // the answer may repeat the key
		}
		return nil, fmt.Errorf("%s answered %d: %.200q", path, resp.StatusCode, answer)
	case len(answer) > limit:
		return nil, fmt.Errorf("%s answered more than %d KiB", path, limit>>10)
	}
	return answer, nil
}

// view returns the last poll, with its instances assigned to workers of the present fleet.
func (c *LMCache) view() *lmcacheView {
	p, snap := c.polled.Load(), c.fleet.Snapshot()
	if p != nil && time.Since(p.at) > keptPolls*c.config.PollInterval+c.config.Timeout {
		p = nil
	}
	if v := c.known.Load(); v != nil && v.poll == p && v.generation == snap.Generation() {
		return v
	}
	v := c.place(p, snap)
	c.known.Store(v)
	return v
}

// place finds the worker of each instance. The configured map decides first. For other instances, place takes the
// worker at the address from which the instance registered, if exactly one worker has this address.
func (c *LMCache) place(p *lmcachePoll, snap *fleet.Snapshot) *lmcacheView {
	v := &lmcacheView{poll: p, generation: snap.Generation(), byInstance: map[string]fleet.WorkerID{}}
	byURL, byHost := map[string]fleet.WorkerID{}, map[string]fleet.WorkerID{}
	for _, w := range snap.Workers() {
		byURL[w.URL] = w.ID
		host := hostOf(w.URL)
		if _, twice := byHost[host]; twice {
			// Several workers have this address, so the instance is assigned to none.
			byHost[host] = fleet.NoWorker
			continue
		}
		byHost[host] = w.ID
	}
	for instance, url := range c.config.Workers {
		if id, ok := byURL[trimBase(url)]; ok {
			v.byInstance[instance] = id
		}
	}
	if p == nil {
		return v
	}
	for _, in := range p.instances {
		id, ok := v.byInstance[in.id]
		if _, mapped := c.config.Workers[in.id]; !ok && !mapped {
			if id, ok = byHost[in.ip]; ok && id != fleet.NoWorker {
				v.byInstance[in.id] = id
			}
		}
		if ok && id != fleet.NoWorker {
			v.note(fleet.Cached{Worker: id, Keys: in.keys})
		}
	}
	return v
}

// note adds facts about a worker. If several instances or ranks belong to a worker, the largest numbers count.
func (v *lmcacheView) note(e fleet.Cached) {
	at, ok := slices.BinarySearchFunc(v.external, e.Worker, func(e fleet.Cached, id fleet.WorkerID) int { return cmp.Compare(e.Worker, id) })
	if !ok {
		v.external = slices.Insert(v.external, at, e)
		return
	}
	old := &v.external[at]
	old.Tokens, old.Keys = max(old.Tokens, e.Tokens), max(old.Keys, e.Keys)
}

// with returns the facts of v, with found added: found is the result of a lookup.
func (v *lmcacheView) with(found []lmcacheHit) []fleet.Cached {
	merged := lmcacheView{external: slices.Clone(v.external)}
	for _, f := range found {
		if id, ok := v.byInstance[f.instance]; ok {
			merged.note(fleet.Cached{Worker: id, Tokens: f.tokens})
		}
	}
	return merged.external
}

// trimBase returns a worker's URL in the form that the fleet uses.
func trimBase(url string) string {
	return strings.TrimSuffix(strings.TrimRight(url, "/"), "/v1")
}

func hostOf(url string) string {
	_, place, _ := strings.Cut(url, "://")
	place, _, _ = strings.Cut(place, "/")
	if end := strings.LastIndexByte(place, ']'); end >= 0 {
		return strings.TrimPrefix(place[:end], "[")
	}
	host, _, _ := strings.Cut(place, ":")
	return host
}
