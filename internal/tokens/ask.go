package tokens

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// endpoint is a path that gives token ids.
type endpoint string

const (
	renderChat        endpoint = "/v1/chat/completions/render"
	renderCompletions endpoint = "/v1/completions/render"
	tokenize          endpoint = "/tokenize"
	v1Tokenize        endpoint = "/v1/tokenize"
)

func (e endpoint) renders() bool { return e == renderChat || e == renderCompletions }

const (
	// maxAnswer bounds an engine's answer in bytes: a million ids take 7 MB, a rendered image's kwargs_data some more.
	maxAnswer = 32 << 20
	// An answer has at most idsPerByte ids for each byte of its question, and moreIDs for what a template adds. A byte is an
	// id at most, but for what a normalizer expands. A worker that answers more is broken, or means to fill the cache.
	idsPerByte, moreIDs = 8, 1 << 16
	// bytesPerID is what an id takes in an answer, with what else stands there.
	bytesPerID = 16
)

var (
	errMissing = errors.New("no such endpoint")                // 404, 405, 501: ask by the next way
	errKey     = errors.New("engine refuses the client's key") // 401, 403: ask by the next way for this client
	errLimit   = errors.New("engine limits the client")        // 429: as errKey, for a shorter time
	errRefused = errors.New("engine refuses the prompt")       // any other 4xx: no other worker would take it either
)

// reply is the end of one call.
type reply struct {
	url   string
	found Found
	err   error
}

// question is what calls send. It is a copy: a call may outlive its request by a moment, and the request's buffer is
// used again.
type question struct {
	dialect       api.Dialect
	whole         []byte // the request's body, for render
	tokenize      []byte // the body for /tokenize
	authorization string
	client        uint64       // a hash of authorization
	mostIDs       int          // of its answer
	size          int64        // bytes booked in Source.room
	users         atomic.Int32 // that hold whole and tokenize
	media         bool         // ids alone do not tell two prompts apart: only render says what stands at their placeholders

	service []Worker      // asked before workers; one or none
	workers []Worker      // that may be asked
	not     string        // but not this one: it failed
	worth   time.Duration // guarded by peers.mu; 0: nobody waits for the answer
	behind  int           // guarded by peers.mu; how many of its client's questions in the line come before it
	anyhow  bool          // asked though nobody waits and no engine is calm
	granted chan grant    // has room for one: what the question gets that waits in the line
	wanted  chan struct{} // has room for one: somebody waits for the answer now
}

// fill makes q the question that p asks. Requests that wait for its answer may hold q already.
func (s *Source) fill(q *question, p *Prompt, service, workers []Worker) {
	q.dialect, q.authorization, q.media = p.Request.Dialect, p.Authorization, p.Request.Multimodal
	q.client = s.peers.client(p.Authorization)
	q.whole, q.tokenize = bytes.Clone(p.Request.Body()), tokenizeBody(p.Request, p.Kind)
	q.service, q.workers = service, slices.Clone(workers)
	q.mostIDs = idsPerByte*len(q.tokenize) + moreIDs
	if p.Request.Multimodal { // an image takes thousands, and its URL a few bytes
		q.mostIDs = maxAnswer
	}
}

// bytes is the question's size, for what its answer should take.
func (q *question) bytes() int { return len(q.tokenize) }

func (q *question) long() bool { return q.bytes() >= longQuestion }

// ask asks the service or one worker and, when it is slow while somebody waits, or fails, one worker more, and returns
// the first answer. ctx bounds the wait for a turn.
func (s *Source) ask(ctx context.Context, f *flight) Found {
	q := f.question
	s.peers.prune(len(q.workers) + 1)
	first := s.acquire(ctx, f)
	if first.verdict != granted {
		return Found{Outcome: first.verdict.outcome()}
	}
	replies := make(chan reply, 2) // room for both: a late one never blocks its goroutine
	s.start(first, q, replies)
	hedge := time.NewTimer(s.hedgeAfter(first.worker.URL, q))
	defer hedge.Stop()
	outcome, hedged := Failed, false
	for pending := 1; pending > 0; {
		select {
		case r := <-replies:
			pending--
			switch {
			case r.err == nil:
				return r.found
			case errors.Is(r.err, errRefused) && !s.isService(r.url): // a service may lack what the engine has
				return Found{Outcome: Refused}
			case errors.Is(r.err, errKey), errors.Is(r.err, errLimit):
				outcome = Refused // by this worker; another may take the key
			case errors.Is(r.err, errMissing):
				outcome = Unsupported
			}
			if hedged {
				continue
			}
			hedged, q.not = true, first.worker.URL
			second := s.another(q)
			if second.verdict == full && pending == 0 {
				second = s.inLine(ctx, q)
			}
			if second.verdict == granted {
				s.start(second, q, replies)
				pending++
			}
		case <-hedge.C:
			if hedged || !s.flights.watched(f) {
				continue
			}
			q.not = first.worker.URL
			if second := s.another(q); second.verdict == granted {
				s.hedged.Add(1)
				s.start(second, q, replies)
				pending++
			}
			hedged = true
		}
	}
	return Found{Outcome: outcome}
}

// another books a call for q without a wait.
func (s *Source) another(q *question) grant {
	s.peers.mu.Lock()
	defer s.peers.mu.Unlock()
	return s.peers.grant(q, time.Now())
}

// outcome is what a question that was not asked came to.
func (v verdict) outcome() Outcome {
	switch v {
	case full, stalled:
		return Limited
	case refusing:
		return Refused
	case unsupported:
		return Unsupported
	}
	return NoWorker
}

// start makes the call that was granted, in a goroutine that ends with callTimeout or Close, which waits for it. It is
// not cancelled when another worker answers first: its engine goes on with it anyhow, and how long it takes tells what
// is to be expected of that engine.
func (s *Source) start(g grant, q *question, replies chan<- reply) {
	s.asked.Add(1)
	q.hold()
	s.calls.Go(func() {
		defer s.drop(q)
		ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
		defer cancel()
		found, err := s.call(ctx, g.worker, q)
		s.peers.done(g.worker.URL, g.call, s.endingOf(err), time.Now())
		replies <- reply{g.worker.URL, found, err}
	})
}

// endingOf returns what the end of a call says of its worker.
func (s *Source) endingOf(err error) ending {
	switch {
	case err == nil:
		return answered
	case s.ctx.Err() != nil, errors.Is(err, errKey), errors.Is(err, errLimit):
		return silent
	case errors.Is(err, errRefused), errors.Is(err, errMissing):
		return declined
	case errors.Is(err, errFault), errors.Is(err, context.DeadlineExceeded) && !dialing(err):
		return faulted
	}
	return broke
}

// dialing reports whether no connection came about: no prompt can be the reason.
func dialing(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// call asks w by each of its endpoints until one exists that takes the client's key.
func (s *Source) call(ctx context.Context, w Worker, q *question) (Found, error) {
	endpoints, refused := s.peers.endpoints(w, q, time.Now())
	for _, e := range endpoints {
		if q.media && !e.renders() {
			return Found{}, cmp.Or(refused, errMissing) // for this prompt, not for others
		}
		found, err := s.post(ctx, w, e, q)
		switch {
		case errors.Is(err, errKey), errors.Is(err, errLimit):
			refused = err
			s.peers.refuse(w.URL, q.client, e.renders(), err, time.Now())
		case errors.Is(err, errMissing):
			if e.renders() {
				s.peers.learn(w.URL, func(p *peer) { p.noRender = time.Now().Add(relearn) })
			}
		default:
			if err == nil && e == v1Tokenize {
				s.peers.learn(w.URL, func(p *peer) { p.v1Only = true })
			}
			return found, err
		}
	}
	if refused != nil { // of the endpoints that refuse the key it is not known whether others may use them
		s.peers.refuse(w.URL, q.client, false, refused, time.Now())
		return Found{}, refused
	}
	s.peers.learn(w.URL, func(p *peer) { p.noTokens = time.Now().Add(relearn) })
	return Found{}, errMissing
}

// post makes one call.
func (s *Source) post(ctx context.Context, w Worker, e endpoint, q *question) (Found, error) {
	body := q.tokenize
	if e.renders() {
		body = q.whole
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+string(e), bytes.NewReader(body))
	if err != nil {
		return Found{}, fmt.Errorf("ask %s for tokens: %w", w.URL, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if q.authorization != "" && !s.isService(w.URL) { // the client's key is for the engine
		req.Header.Set("Authorization", q.authorization)
	}
	resp, err := s.clientOf(w).Do(req)
	if err != nil {
		return Found{}, fmt.Errorf("ask %s for tokens: %w", w.URL, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // whole, so that the connection can be used again
		err := statusError(resp.StatusCode, e, said)
		if s.isService(w.URL) { // it was sent no client's key
			err = serviceError(err)
		}
		return Found{}, fmt.Errorf("ask %s%s: status %d: %w", w.URL, e, resp.StatusCode, err)
	}
	data, err := readAll(resp, bytesPerID*min(maxAnswer/bytesPerID, q.mostIDs))
	if err != nil {
		return Found{}, fmt.Errorf("read tokens from %s: %w", w.URL, err)
	}
	decode, outcome := decodeTokenize, Tokenize
	if e.renders() {
		decode, outcome = decodeRender, Render
	}
	if s.isService(w.URL) {
		outcome = Service
	}
	a, err := decode(data)
	if err != nil {
		return Found{}, fmt.Errorf("decode tokens from %s%s: %w", w.URL, e, err)
	}
	if len(a.tokens) > q.mostIDs {
		return Found{}, fmt.Errorf("%s%s: %d ids are more than the prompt can have", w.URL, e, len(a.tokens))
	}
	return Found{Tokens: a.tokens, Features: a.features, Outcome: outcome, By: w.URL}, nil
}

var (
	errStatus = errors.New("unexpected status")
	errFault  = errors.New("the engine answered 500") // what engines answer when a prompt breaks their own code, too
)

// statusError tells a missing endpoint from a refused prompt, from a refused key, and from a failing engine. An engine
// that does not know the model says 404 as well, but in its own error shape. vLLM answers render with 403, whatever the
// key, when it was started without --enable-scale-out, which its message names (entrypoints/scale_out/factories.py).
func statusError(status int, e endpoint, said []byte) error {
	switch {
	case status == http.StatusNotFound && bytes.Contains(said, []byte(`"error"`)):
		return errRefused
	case status == http.StatusNotFound, status == http.StatusMethodNotAllowed, status == http.StatusNotImplemented,
		status == http.StatusForbidden && e.renders() && bytes.Contains(said, []byte("scale-out")):
		return errMissing
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return errKey
	case status == http.StatusTooManyRequests:
		return errLimit
	case status == http.StatusInternalServerError:
		return errFault
	case status == http.StatusRequestTimeout:
		return errStatus
	case status >= 400 && status < 500:
		return errRefused
	}
	return errStatus
}

// serviceError is statusError's of a service, where a refusal is not one client's.
func serviceError(err error) error {
	switch {
	case errors.Is(err, errKey):
		return errMissing
	case errors.Is(err, errLimit):
		return errStatus
	}
	return err
}

func readAll(resp *http.Response, most int) ([]byte, error) {
	if resp.ContentLength > int64(most) {
		return nil, fmt.Errorf("answer of %d bytes is beyond %d", resp.ContentLength, most)
	}
	var buf bytes.Buffer
	if resp.ContentLength > 0 {
		buf.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, int64(most)+1))
	if err != nil {
		return nil, err
	}
	if n > int64(most) {
		return nil, fmt.Errorf("answer is beyond %d bytes", most)
	}
	return buf.Bytes(), nil
}
