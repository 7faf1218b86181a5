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
	// relearn is how long an endpoint of a worker is not asked after it turned out to be missing, or refused the client's
	// key. If the engine is restarted with other flags, this is noticed within a minute. A shorter time would waste more
	// calls.
	relearn = time.Minute
	// callsPerEngine bounds the calls under way to one engine. Late calls do not count. An engine's API server is one
	// Python process, which also sends the tokens of every answer. While the process computes the answer to one call, the
	// next call is on its way. A third call would only wait in the process.
	callsPerEngine = 2
	// A question of longQuestion bytes or more is long. A tokenizer reads one or two megabytes a second. So the answer to
	// a long question takes longer than leastWait, the time that a request with a short prompt waits. One call to each
	// engine is reserved for short questions.
	longQuestion = 32 << 10
	// callsPerService is the same bound for the tokenizer service, which has nothing else to do.
	callsPerService = 8
	// callTimeout ends a call, which then counts as a failure. No request waits longer than callTimeout. A longer timeout
	// would let a frozen engine's calls hold memory for longer. A prompt of a million tokens takes 2 to 4 s.
	callTimeout = 10 * time.Second
	// A call is late if it is older than stallFloor, and older than stallFactor times the expected time of the answer. An
	// engine with late calls seems frozen: see workerState.stalled. A busy engine may also take this long. The engine gets
	// questions again as soon as the late calls end.
	stallFloor  = 100 * time.Millisecond
	stallFactor = 4
	// maxRefusals bounds the refused API keys that are remembered for each worker: 1,000 keys take some 50 KB. If more
	// keys are refused, any one refusal is forgotten. Then the key of this refusal is tried sooner.
	maxRefusals = 1000
	// maxReach is how many workers are compared for one question. 32 workers are enough to find an idle worker in a
	// large fleet.
	maxReach = 32
)

// call is one call under way.
type call struct {
	client uint64 // hash of the client that asks: see workerStates.client
	began  time.Time
	late   time.Time // time from which on the call is late: see stallFloor
	bytes  int       // see question.bytes
}

// workerState is the state of one worker, learned by asking it. Its fields are guarded by workerStates.mu.
type workerState struct {
	failures  int       // number of failures in a row: errors, not slow answers
	failedFor uint64    // the client whose call was the first of these failures
	forAll    bool      // the failures count for all clients: calls of two clients failed, or one call ended with broke
	until     time.Time // if failures has reached Config.Failures, the worker is not asked before this time
	trying    bool      // one call is trying whether the worker answers again
	calls     []*call   // calls under way
	limit     int       // largest number of calls under way, without late calls
	// lastUntil is used for a worker that has declined a question and has not answered any. Until this time the worker is
	// assumed to be slow: see assumed.
	lastUntil time.Time
	mean      time.Duration         // mean time of answers, exponentially weighted; 0: no answer yet
	meanBytes float64               // mean size of the questions whose answers count in mean
	noRender  time.Time             // the endpoint render was missing: it is not asked before this time
	noAlone   time.Time             // an endpoint that renders another dialect than chats and completions was missing
	noTokens  time.Time             // all token endpoints were missing: the worker is not asked before this time
	v1Only    bool                  // the worker has SGLang's /v1/tokenize instead of /tokenize
	lastAsked uint64                // value of workerStates.asked at the worker's last call, to spread calls among equal workers
	refusals  map[refusal]time.Time // refused keys; a key is not tried again before its time
}

// refusal is a client whose API key an engine refused, at render or at every endpoint. A refusal does not concern other
// clients.
type refusal struct {
	client uint64 // see workerStates.client
	render bool   // the key was refused at render only
}

// ending is what the end of a call says about the worker.
type ending uint8

const (
	answered ending = iota
	declined        // the worker has no such endpoint, or refuses the prompt
	silent          // no evidence: the worker refused or limited one client, or the Source was closed
	faulted         // status 500 or a timeout: the worker's fault, or the fault of the client's prompt
	broke           // any other error
)

// stalled reports whether the worker seems frozen to a client. The worker seems frozen if a call of that client is
// late, or if calls of two other clients are late. Late calls of only one other client are not enough: that client's
// prompts may be the reason, such as an image that is slow to fetch.
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

// busy returns how many calls count against p's limit, and how many of these are long. Late calls do not count: if p is
// not stalled for a client, all of p's late calls belong to one other client.
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

// expected returns how long an answer to a question of this size, in bytes, should take. 0 means that the time is not
// known.
func (p *workerState) expected(bytes int) time.Duration {
	if p.mean == 0 || float64(bytes) <= p.meanBytes {
		return p.mean
	}
	return time.Duration(float64(p.mean) * float64(bytes) / p.meanBytes)
}

// expected returns how long the worker's answer to a question of this size, in bytes, should take. 0 means that the
// time is not known.
func (ps *workerStates) expected(url string, bytes int) time.Duration {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.all[url]; p != nil {
		return p.expected(bytes)
	}
	return 0
}

// admission says whether a question may be asked now, and if not, why. The values are sorted: the reason of a smaller
// value is likely to end sooner. If no worker may be asked, the smallest value of all workers counts.
type admission uint8

const (
	granted     admission = iota
	full                  // the limit of calls is reached
	stalled               // a call has been under way for too long: the worker seems frozen
	resting               // the worker failed, and is not asked for Config.Pause, or is question.not
	refusing              // the worker refuses the client's key
	unsupported           // the worker has no token endpoint
	noWorkers             // there are no workers
)

// workerStates holds the states of the workers by URL, and the questions that wait for their turn. It is safe for
// concurrent use.
type workerStates struct {
	failures int
	pause    time.Duration
	service  string                   // the service's URL
	loads    func() func(Worker) Load // see Source.Loads; the service has no load
	opened   atomic.Uint64
	seed     maphash.Seed // seed of the hashes that identify clients; it is random, so no client can construct a key with another client's hash

	mu    sync.Mutex
	all   map[string]*workerState // guarded by mu
	asked uint64                  // guarded by mu; number of calls booked so far
	line  []*question             // guarded by mu; questions that wait until a call can be booked: see arrange
	turns map[uint64]uint64       // guarded by mu; client in line → value of turn when the client was last served, or when it came into the line
	turn  uint64                  // guarded by mu; number of questions in line that were asked so far
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

// client returns the hash of an Authorization header. The hash identifies a client.
func (ps *workerStates) client(authorization string) uint64 {
	return maphash.String(ps.seed, authorization)
}

// refuses reports whether the worker refused the client's key lately. Such a key is not tried now.
func (p *workerState) refuses(client uint64, render bool, now time.Time) bool {
	until, ok := p.refusals[refusal{client, render}]
	return ok && now.Before(until)
}

// refuse records that the worker at url refuses a client's key, at render or at every endpoint.
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
			delete(p.refusals, other) // deletes any one of the refusals
		}
		if p.refusals == nil {
			p.refusals = map[refusal]time.Time{}
		}
		p.refusals[refusal{client, render}] = until
	})
}

// pick chooses the worker that should answer q soonest, and books a call to this worker. The choice is the worker with
// the smallest product of three factors: the expected time, the calls under way plus one, and the engine's requests
// plus one. Of workers with about equal products, pick takes the worker that was asked longest ago, so that all these
// workers are asked. The caller holds ps.mu.
func (ps *workerStates) pick(q *question, workers []Worker, now time.Time) (Worker, *call, admission) {
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

// usual returns how long answers to a question of this size, in bytes, should take. The result is the average of the
// workers that have answered, or 0 if no worker has answered.
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
// yet. If p has declined a question and never answered, p is assumed to be slow for Config.Pause. With the usual time,
// a worker that declines all questions would get as many questions as the other workers.
func (p *workerState) assumed(bytes int, usual time.Duration, now time.Time) time.Duration {
	switch {
	case p.mean > 0:
		return p.expected(bytes)
	case now.Before(p.lastUntil):
		return max(usual, stallFloor)
	}
	return usual
}

// rests reports whether p gets no questions of a client because calls to p failed. If all failed calls were of one
// client and ended with faulted, that client's prompts may be the reason. In this case p still gets the questions of
// other clients.
func (ps *workerStates) rests(p *workerState, client uint64, now time.Time) bool {
	return p.failures >= ps.failures && (p.trying || now.Before(p.until)) && (p.forAll || p.failedFor == client)
}

// failed records one more failure in a row.
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

// calm reports whether a question in the background would delay nothing at this worker. The worker is calm if no call
// to it is under way, and no request waits for its first token. A request without its first token counts because the
// engine may still have to tokenize the request's prompt.
func (p *workerState) calm(load Load) bool { return len(p.calls) == 0 && load.Waiting == 0 }

// book records a call to p. The caller holds ps.mu.
func (ps *workerStates) book(p *workerState, q *question, now time.Time) *call {
	c := &call{client: q.client, began: now, bytes: q.bytes(),
		late: now.Add(max(stallFloor, stallFactor*p.expected(q.bytes())))}
	p.calls = append(p.calls, c)
	p.trying = p.failures >= ps.failures
	return c
}

// Two workers whose costs differ by less than slack count as equal: the difference is noise, and the worker that was
// asked longest ago gets the question. jitter is the random part of an answer's time.
const (
	slack  = 0.1
	jitter = 2 * time.Millisecond
)

// take is pick for a single worker: it books a call for q to w, if w may be asked now.
func (ps *workerStates) take(q *question, w Worker, now time.Time) (*call, admission) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	_, c, v := ps.pick(q, []Worker{w}, now)
	return c, v
}

// prune forgets workers that have not been asked for a long time. It does so only when many more workers are known than
// are in use.
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

// done records the end of a call, and books calls for questions in line. Only calls that ended with answered count in
// the worker's mean time, because refusals come faster.
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

// hedgeAfter returns how long to wait for the worker at url before another worker is asked, too: three times the
// expected time, and at least 5 ms. If the worker has not answered any question yet, hedgeAfter returns a third of the
// request's wait, so that the second worker still has time to answer.
func (s *Source) hedgeAfter(url string, q *question) time.Duration {
	s.states.mu.Lock()
	defer s.states.mu.Unlock()
	if p := s.states.all[url]; p != nil && p.mean > 0 {
		return max(3*p.expected(q.bytes()), 5*time.Millisecond)
	}
	return s.patience(q.worth) / 3
}

// endpoints returns the endpoints of w to ask, in order. If render is left out because w refused or limited the client
// there, refused is errKey.
func (ps *workerStates) endpoints(w Worker, q *question, now time.Time) (all []endpoint, refused error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := ps.all[w.URL]
	switch {
	case convertible(q.dialect) && (w.Kind == SGLang || p != nil && (now.Before(p.noAlone) || now.Before(p.noRender))):
		return nil, nil
	case convertible(q.dialect) && p != nil && p.refuses(q.client, true, now):
		return nil, errKey
	case q.dialect == api.AnthropicMessages:
		return []endpoint{renderMessages}, nil
	case q.dialect == api.OpenAIResponses:
		return []endpoint{renderResponses}, nil
	case w.Kind == SGLang && p != nil && p.v1Only:
		return []endpoint{v1Tokenize, tokenize}, nil
	case q.dialect == api.SGLangGenerate && w.Kind != SGLang:
		return []endpoint{tokenize}, nil // no engine renders a body of /generate
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

// learn calls the function change with the state of the worker at url, if that worker is known. ps.mu is held during
// the call.
func (ps *workerStates) learn(url string, change func(*workerState)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.all[url]; p != nil {
		change(p)
	}
}
