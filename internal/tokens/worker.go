package tokens

import (
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

const (
	// relearn is how long a worker without a token endpoint, or without render, is not asked there again. An engine
	// that was restarted with other flags is noticed within a minute. A shorter time would waste more calls.
	relearn = time.Minute
	// callsPerEngine bounds the calls under way to one engine: its API server is one Python process, which also sends
	// the tokens of every answer. One call computes while the next one travels; a third would only wait there.
	callsPerEngine = 2
	// longQuestion is the size in bytes from which a question is long. A tokenizer reads one or two megabytes a second,
	// so a long question takes longer than a short one waits (leastWait). One call to each engine is reserved for short
	// ones.
	longQuestion = 32 << 10
	// callsPerService bounds the calls under way to the tokenizer service, which has nothing else to do.
	callsPerService = 8
	// callTimeout ends a call, which then counts as a failure. No request waits so long. It bounds how long a frozen
	// engine gets no questions, and how long its calls hold memory. A prompt of a million tokens takes a second or two.
	callTimeout = 10 * time.Second
	// A call suggests that its engine is frozen when it is older than stallFloor and older than stallFactor times the
	// expected answer. A busy engine takes a few times as long as usual; it is asked again as soon as the call ends.
	stallFloor  = 100 * time.Millisecond
	stallFactor = 4
	// maxRefusals bounds the refused keys that are remembered for each worker: 1,000 take some 50 KB. When more keys
	// are refused, a refused key is tried again sooner.
	maxRefusals = 1000
	// maxReach is how many workers are compared for one question: enough to find an idle one in a large fleet.
	maxReach = 32
)

// call is one call under way.
type call struct {
	client uint64 // the client that asks: see workerStates.client
	began  time.Time
	late   time.Time // from this time on the engine seems frozen
	bytes  int       // of the question
}

// workerState is the state of one worker, learned by asking it. Its fields are guarded by workerStates.mu.
type workerState struct {
	failures  int       // in a row: errors, not slow answers
	failedFor uint64    // the client of the first of these failures
	forAll    bool      // the failures count for all clients: another client had one, or one was of kind broke
	until     time.Time // not asked before this time, while failures ≥ the limit
	trying    bool      // one call is trying whether the worker answers again
	calls     []*call   // under way
	limit     int       // of calls under way
	// lastUntil: until this time other workers are asked first, because this one refused a question and has not
	// answered one yet.
	lastUntil time.Time
	mean      time.Duration         // time of answers, exponentially weighted; 0 before the first
	meanBytes float64               // mean size of the questions whose answers count in mean
	noRender  time.Time             // render refused: do not ask before this time
	noTokens  time.Time             // no token endpoint at all: do not ask before this time
	v1Only    bool                  // SGLang's /v1/tokenize instead of /tokenize
	lastAsked uint64                // peers.asked at its last call, to spread calls among equals
	refusals  map[refusal]time.Time // refused keys, and the time before which they are not tried again
}

// refusal is a client with a key that an engine refused, at render or at every endpoint. Other clients are not
// concerned.
type refusal struct {
	client uint64 // see workerStates.client
	render bool   // refused at render only
}

// ending is the evidence about the worker from the end of a call.
type ending uint8

const (
	answered ending = iota
	declined        // the worker has no such endpoint, or refuses the prompt
	silent          // nothing: the worker refused one client's key, or the Source was closed
	faulted         // status 500 or a timeout: the worker's fault, or the fault of the client's prompt
	broke           // any other error
)

// stalled reports whether the worker seems frozen to a client: a call of that client is late, or calls of two other
// clients are. A late call of one other client is not enough: its prompt may be the reason, such as an image that is
// slow to fetch.
func (p *workerState) stalled(client uint64, now time.Time) bool {
	var late *call
	for _, c := range p.calls {
		switch {
		case !now.After(c.late):
		case c.client == client, late != nil && late.client != c.client:
			return true
		default:
			late = c
		}
	}
	return false
}

// busy returns how many calls count against p's limit, and how many of these are long. Late calls do not count: while p
// is not stalled for a client, all of p's late calls belong to one other client.
func (p *workerState) busy(now time.Time) (calls, long int) {
	for _, c := range p.calls {
		if now.After(c.late) {
			continue
		}
		calls++
		if c.bytes >= longQuestion {
			long++
		}
	}
	return calls, long
}

// expected returns how long an answer to a question of that size should take; 0 is not known.
func (p *workerState) expected(bytes int) time.Duration {
	if p.mean == 0 || float64(bytes) <= p.meanBytes {
		return p.mean
	}
	return time.Duration(float64(p.mean) * float64(bytes) / p.meanBytes)
}

// expected returns how long the worker's answer to a question of that size should take; 0 is not known.
func (ps *workerStates) expected(url string, bytes int) time.Duration {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.all[url]; p != nil {
		return p.expected(bytes)
	}
	return 0
}

// verdict says whether a question may be asked now. When no worker may be asked, the smallest verdict is reported: its
// reason may end soonest.
type verdict uint8

const (
	granted     verdict = iota
	full                // the limit of calls is reached
	stalled             // a call has been under way for too long: the worker seems frozen
	resting             // the worker failed and pauses
	refusing            // the worker refuses the client's key
	unsupported         // the worker has no token endpoint
	noWorkers           // there are no workers
)

// workerStates holds the states of the workers by URL, and the questions that wait for their turn. It is safe for
// concurrent use.
type workerStates struct {
	failures int
	pause    time.Duration
	service  string                   // the service's URL
	loads    func() func(Worker) Load // see Source.Loads; the service has no load
	opened   atomic.Uint64
	seed     maphash.Seed // seed for the hashes of clients: a client cannot construct a key with another client's hash

	mu    sync.Mutex
	all   map[string]*workerState // guarded by mu
	asked uint64                  // guarded by mu; calls booked so far
	line  []*question             // guarded by mu; questions that wait for a call to end: see arrange
	turns map[uint64]uint64       // guarded by mu; for each client in line, the value of turn when it was served or came
	turn  uint64                  // guarded by mu; questions in line that were asked so far
}

func (ps *workerStates) of(url string) *workerState {
	p := ps.all[url]
	if p == nil {
		p = &workerState{limit: callsPerEngine}
		if url == ps.service {
			p.limit = callsPerService
		}
		ps.all[url] = p
	}
	return p
}

// client returns the hash of an Authorization header: it identifies a client.
func (ps *workerStates) client(authorization string) uint64 {
	return maphash.String(ps.seed, authorization)
}

// refuses reports whether the worker refused the client's key lately.
func (p *workerState) refuses(client uint64, render bool, now time.Time) bool {
	until, ok := p.refusals[refusal{client, render}]
	return ok && now.Before(until)
}

// refuse records that url refuses a client's key, at render or at every endpoint.
func (ps *workerStates) refuse(url string, client uint64, render bool, why error, now time.Time) {
	until := now.Add(relearn)
	if errors.Is(why, errLimit) {
		until = now.Add(ps.pause)
	}
	ps.learn(url, func(p *workerState) {
		if len(p.refusals) >= maxRefusals {
			maps.DeleteFunc(p.refusals, func(_ refusal, until time.Time) bool { return !now.Before(until) })
		}
		for other := range p.refusals {
			if len(p.refusals) < maxRefusals {
				break
			}
			delete(p.refusals, other) // any
		}
		if p.refusals == nil {
			p.refusals = map[refusal]time.Time{}
		}
		p.refusals[refusal{client, render}] = until
	})
}

// pick chooses the worker that should answer q soonest, and books a call to it. That is the worker with the least
// product of expected time, calls under way and requests of the engine. Of workers that are about equal it takes the
// one that was asked longest ago, so that all are asked. The caller holds ps.mu.
func (ps *workerStates) pick(q *question, workers []Worker, now time.Time) (Worker, *call, verdict) {
	var (
		best  *workerState
		found Worker
		least float64
		seen  int
	)
	why, loadOf := noWorkers, ps.loads()
	usual := ps.usual(workers, q.bytes())
	for i := range workers {
		w := &workers[(int(ps.asked%uint64(len(workers)))+i)%len(workers)]
		p := ps.of(w.URL)
		var load Load
		if w.URL != ps.service {
			load = loadOf(*w)
		}
		calls, long := p.busy(now)
		blocked := granted
		switch {
		case now.Before(p.noTokens):
			blocked = unsupported
		case p.refuses(q.client, false, now):
			blocked = refusing
		case w.URL == q.not || ps.rests(p, q.client, now):
			blocked = resting
		case p.stalled(q.client, now):
			blocked = stalled
		case calls >= p.limit || q.long() && long >= p.limit-1 || q.worth == 0 && !p.calm(load) && !q.anyhow:
			blocked = full
		}
		if blocked != granted {
			why = min(why, blocked)
			continue
		}
		cost := float64(p.assumed(q.bytes(), usual, now)+jitter) * float64(1+len(p.calls)) * float64(1+max(load.Requests, 0))
		if best == nil || cost < least*(1-slack) || cost <= least*(1+slack) && p.lastAsked < best.lastAsked {
			best, found, least = p, *w, cost
		}
		if seen++; seen == maxReach {
			break
		}
	}
	if best == nil {
		return Worker{}, nil, why
	}
	ps.asked++
	best.lastAsked = ps.asked
	return found, ps.book(best, q, now), granted
}

// usual returns how long answers to a question of that size should take: the average of all workers that have answered,
// 0 when none has.
func (ps *workerStates) usual(workers []Worker, bytes int) time.Duration {
	var sum time.Duration
	known := 0
	for i := range workers[:min(len(workers), maxReach)] {
		if p := ps.all[workers[i].URL]; p != nil && p.mean > 0 {
			sum += p.expected(bytes)
			known++
		}
	}
	return sum / time.Duration(max(known, 1))
}

// assumed returns how long p's answer is assumed to take: the expected time, or the usual time if p has not answered
// yet. For Config.Pause after a refusal p is assumed to be slow: with the usual time, a worker that refuses all
// questions would get half of them.
func (p *workerState) assumed(bytes int, usual time.Duration, now time.Time) time.Duration {
	switch {
	case p.mean > 0:
		return p.expected(bytes)
	case now.Before(p.lastUntil):
		return max(usual, stallFloor)
	}
	return usual
}

// rests reports whether p gets no questions of a client because it failed. If only one client had failures, all of kind
// faulted, that client's prompts may be the reason: then other clients still ask p.
func (ps *workerStates) rests(p *workerState, client uint64, now time.Time) bool {
	return p.failures >= ps.failures && (p.trying || now.Before(p.until)) && (p.forAll || p.failedFor == client)
}

// failed books one more failure in a row.
func (ps *workerStates) failed(p *workerState, c *call, how ending, now time.Time) {
	if p.failures == 0 {
		p.failedFor, p.forAll = c.client, false
	}
	p.forAll = p.forAll || how == broke || p.failedFor != c.client
	if p.failures++; p.failures >= ps.failures {
		p.until = now.Add(ps.pause)
		if p.failures == ps.failures {
			ps.opened.Add(1)
		}
	}
}

// calm reports whether a question in the background would delay nothing: no other question is under way, and no request
// waits for its first token, because the engine has to tokenize its prompt too.
func (p *workerState) calm(load Load) bool { return len(p.calls) == 0 && load.Waiting == 0 }

// book records a call to p. The caller holds ps.mu.
func (ps *workerStates) book(p *workerState, q *question, now time.Time) *call {
	c := &call{client: q.client, began: now, bytes: q.bytes(),
		late: now.Add(max(stallFloor, stallFactor*p.expected(q.bytes())))}
	p.calls = append(p.calls, c)
	p.trying = p.failures >= ps.failures
	return c
}

// Two workers whose costs differ by less than slack count as equal: the difference is noise, and the one that was asked
// longest ago is asked. jitter is the random part of an answer's time.
const (
	slack  = 0.1
	jitter = 2 * time.Millisecond
)

// take books a call for q to w, if w may be asked now.
func (ps *workerStates) take(q *question, w Worker, now time.Time) (*call, verdict) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	_, c, v := ps.pick(q, []Worker{w}, now)
	return c, v
}

// prune forgets workers that were not asked for long, when many more are known than are in use.
func (ps *workerStates) prune(inUse int) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if len(ps.all) <= 4*inUse+64 {
		return
	}
	for url, p := range ps.all {
		if len(p.calls) == 0 && p.lastAsked+uint64(8*inUse+1024) < ps.asked {
			delete(ps.all, url)
		}
	}
}

// done records the end of a call, and gives its place to a question that waits. Only answers count for the expected
// time: refusals come at once.
func (ps *workerStates) done(url string, c *call, how ending, now time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[url]
	if p == nil {
		return
	}
	p.calls = slices.DeleteFunc(p.calls, func(other *call) bool { return other == c })
	p.trying = false
	switch took := now.Sub(c.began); {
	case how == silent:
	case how == declined:
		p.failures, p.lastUntil = 0, now.Add(ps.pause)
	case how == broke || how == faulted:
		ps.failed(p, c, how, now)
	case p.mean == 0:
		p.failures, p.mean, p.meanBytes = 0, took, float64(c.bytes)
	default:
		p.failures = 0
		p.mean += (took - p.mean) / 8
		p.meanBytes += (float64(c.bytes) - p.meanBytes) / 8
	}
	ps.serve(now)
}

// hedgeAfter returns how long to wait for url before asking another worker too: three times the expected time, and at
// least 5 ms. For a worker that has not answered yet it is a third of the request's wait: the second worker then has
// time to answer.
func (s *Source) hedgeAfter(url string, q *question) time.Duration {
	s.states.mu.Lock()
	defer s.states.mu.Unlock()
	if p := s.states.all[url]; p != nil && p.mean > 0 {
		return max(3*p.expected(q.bytes()), 5*time.Millisecond)
	}
	return s.patience(q.worth) / 3
}

// endpoints returns the endpoints of w to ask, in order. refused is errKey when render is left out because w refuses
// the client's key there.
func (ps *workerStates) endpoints(w Worker, q *question, now time.Time) (all []endpoint, refused error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[w.URL]
	switch {
	case w.Kind == SGLang && p != nil && p.v1Only:
		return []endpoint{v1Tokenize, tokenize}, nil
	case w.Kind == SGLang:
		return []endpoint{tokenize, v1Tokenize}, nil
	case p != nil && now.Before(p.noRender):
		return []endpoint{tokenize}, nil
	case p != nil && p.refuses(q.client, true, now):
		return []endpoint{tokenize}, errKey
	case q.dialect == api.OpenAIChat:
		return []endpoint{renderChat, tokenize}, nil
	}
	return []endpoint{renderCompletions, tokenize}, nil
}

// learn changes the state of url, if it is known.
func (ps *workerStates) learn(url string, change func(*workerState)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.all[url]; p != nil {
		change(p)
	}
}
