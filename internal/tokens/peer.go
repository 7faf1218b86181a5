package tokens

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// relearn is how long a worker that has no token endpoint, or no render, is taken at its word. An engine restarted with
// other flags is noticed within a minute; asking more often would cost a wasted call per request.
const relearn = time.Minute

// peer is what we learned of one worker by asking it. Its fields are guarded by peers.mu.
type peer struct {
	failures  int           // in a row
	until     time.Time     // left alone until then, while failures ≥ the limit
	trying    bool          // one call is trying whether it is back
	pending   int           // calls now
	mean      time.Duration // of answers, exponentially weighted; 0 before the first
	noRender  time.Time     // render refused: do not ask before then
	noTokens  time.Time     // no token endpoint at all: do not ask before then
	v1Only    bool          // SGLang's /v1/tokenize instead of /tokenize
	lastAsked uint64        // the turn of its last call, to spread calls among equals
}

// peers keeps the peers by URL. It is safe for concurrent use.
type peers struct {
	failures int
	pause    time.Duration
	opened   atomic.Uint64

	mu   sync.Mutex
	all  map[string]*peer // guarded by mu
	turn uint64           // guarded by mu
}

// pick takes the worker that should answer soonest: the least (mean time × calls pending), the longest unasked among
// equals, so that no worker is asked always. not is a URL to leave out. ok is false when nobody may be asked, and then
// unsupported says that it is because no worker has a token endpoint.
func (ps *peers) pick(workers []Worker, not string, now time.Time) (w Worker, ok, unsupported bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	unsupported = true
	var best *peer
	for _, candidate := range workers {
		p := ps.all[candidate.URL]
		if p == nil {
			p = &peer{}
			ps.all[candidate.URL] = p
		}
		if now.Before(p.noTokens) {
			continue
		}
		unsupported = false
		if candidate.URL == not || p.failures >= ps.failures && (p.trying || now.Before(p.until)) {
			continue
		}
		if best == nil || p.before(best) {
			best, w = p, candidate
		}
	}
	if best == nil {
		return Worker{}, false, unsupported && len(workers) > 0
	}
	ps.turn++
	best.lastAsked = ps.turn
	best.pending++
	best.trying = best.failures >= ps.failures
	return w, true, false
}

// slack is how much slower a worker may answer and still count as equal: below it, differences are noise and turns decide.
const slack = 2 * time.Millisecond

func (p *peer) before(q *peer) bool {
	a, b := p.mean*time.Duration(1+p.pending), q.mean*time.Duration(1+q.pending)
	if a < b-slack || b < a-slack {
		return a < b
	}
	return p.lastAsked < q.lastAsked
}

// prune forgets workers that have long gone, once there are many more than are in use.
func (ps *peers) prune(inUse int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if len(ps.all) <= 4*inUse+64 {
		return
	}
	for url, p := range ps.all {
		if p.pending == 0 && p.lastAsked+uint64(8*inUse+1024) < ps.turn {
			delete(ps.all, url)
		}
	}
}

// done books the end of a call that pick allowed. failed: no usable answer came in time.
func (ps *peers) done(url string, took time.Duration, failed bool, now time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[url]
	if p == nil {
		return
	}
	p.pending--
	p.trying = false
	if !failed {
		p.failures = 0
		if p.mean == 0 {
			p.mean = took
		}
		p.mean += (took - p.mean) / 8
		return
	}
	if p.failures++; p.failures >= ps.failures {
		p.until = now.Add(ps.pause)
		if p.failures == ps.failures {
			ps.opened.Add(1)
		}
	}
}

// hedgeAfter is how long to wait for url before asking another worker too: thrice its usual time, within 5 ms (an
// answer's jitter) and a third of the budget (so that the second has time to answer).
func (ps *peers) hedgeAfter(url string, budget time.Duration) time.Duration {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	wait := budget / 3
	if p := ps.all[url]; p != nil && p.mean > 0 {
		wait = min(wait, max(3*p.mean, 5*time.Millisecond))
	}
	return wait
}

// endpoints returns where url's token ids are to be asked for, in order.
func (ps *peers) endpoints(w Worker, d api.Dialect, now time.Time) []endpoint {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[w.URL]
	switch {
	case w.Kind == SGLang && p != nil && p.v1Only:
		return []endpoint{v1Tokenize, tokenize}
	case w.Kind == SGLang:
		return []endpoint{tokenize, v1Tokenize}
	case p != nil && now.Before(p.noRender):
		return []endpoint{tokenize}
	case d == api.OpenAIChat:
		return []endpoint{renderChat, tokenize}
	}
	return []endpoint{renderCompletions, tokenize}
}

// learn books that an endpoint of url does not exist, or (for /v1/tokenize) that it is the one.
func (ps *peers) learn(url string, change func(*peer)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.all[url]; p != nil {
		change(p)
	}
}
