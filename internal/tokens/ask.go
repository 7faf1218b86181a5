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

// endpoint is the path of an engine's HTTP endpoint that returns token ids.
type endpoint string

const (
	renderChat        endpoint = "/v1/chat/completions/render"
	renderCompletions endpoint = "/v1/completions/render"
	renderMessages    endpoint = "/v1/messages/render"
	renderResponses   endpoint = "/v1/responses/render"
	tokenize          endpoint = "/tokenize"
	v1Tokenize        endpoint = "/v1/tokenize"
)

func (e endpoint) renders() bool { return e != tokenize && e != v1Tokenize }

// alone reports whether the endpoint is the only one that takes the body of its dialect.
func (e endpoint) alone() bool { return e == renderMessages || e == renderResponses }

const (
	// maxAnswer bounds an engine's answer in bytes: a million ids take 7 MB, and the kwargs_data of rendered images
	// come in addition.
	maxAnswer = 32 << 20
	// For a prompt without media, an answer may have at most idsPerByte ids for each byte of question.tokenize, plus
	// moreIDs for the text that a template adds. A byte usually makes at most one id, but a normalizer may expand a byte.
	// A worker whose answer has more ids is broken or hostile.
	idsPerByte, moreIDs = 8, 1 << 16
	// An answer may have bytesPerID bytes for each id that it may have, and at most maxAnswer bytes.
	bytesPerID = 16
)

var (
	errMissing = errors.New("no such endpoint")                // the next endpoint is asked; see statusError
	errKey     = errors.New("engine refuses the client's key") // the next endpoint is asked for this client
	errLimit   = errors.New("engine limits the client")        // status 429: treated as errKey, but only for Config.Pause
	errRefused = errors.New("engine refuses the prompt")       // other workers would refuse the prompt, too
)

// reply is the result of one call.
type reply struct {
	url   string
	found Found
	err   error
}

// question is what engines are asked: the ids of one prompt. It has copies of the client's request body, because a call
// may outlive the client's request.
type question struct {
	dialect       api.Dialect
	whole         []byte // the request's body, for render
	tokenize      []byte // the body for /tokenize
	authorization string
	client        uint64       // hash of authorization; it identifies the client
	mostIDs       int          // limit of the number of ids in the answer
	size          int64        // number of bytes booked in Source.memory
	users         atomic.Int32 // number of users of the fields whole and tokenize: see hold
	media         bool         // the prompt has media: only render names the images, and prompts with other images may have the same ids

	service []Worker      // the tokenizer service, asked before workers; empty or one element
	workers []Worker      // workers that may be asked
	not     string        // URL of a worker that failed and must not be asked
	worth   time.Duration // time that the answer is expected to save (see Source.worth); guarded by workerStates.mu; 0: no request waits for the answer
	// guarded by workerStates.mu; the question's round in the line: see arrange
	behind  int
	anyhow  bool          // the question is asked even if no request waits and every engine has other work
	granted chan grant    // capacity 1; receives the grant that ends the wait in the line
	wanted  chan struct{} // capacity 1; signals that a request waits for the answer now
}

// fill sets q's fields for the prompt p. It does not replace q as a whole, because other requests may already wait for
// q's answer.
func (s *Source) fill(q *question, p *Prompt, service, workers []Worker) {
	q.dialect, q.authorization, q.media = p.Request.Dialect, p.Authorization, p.Request.Multimodal
	q.client = s.states.client(p.Authorization)
	q.whole, q.tokenize = bytes.Clone(p.Request.Body()), tokenizeBody(p.Request, p.Kind)
	q.service, q.workers = service, slices.Clone(workers)
	q.mostIDs = idsPerByte*len(q.tokenize) + moreIDs
	if p.Request.Multimodal { // an image takes thousands of ids, but its URL takes only a few bytes
		q.mostIDs = maxAnswer
	}
}

// bytes returns the length of the body for /tokenize. The expected time of the answer depends on this length.
func (q *question) bytes() int { return len(q.tokenize) }

func (q *question) long() bool { return q.bytes() >= longQuestion }

// ask asks the service or one worker. If this call fails, or is slow while a request waits, ask asks one more worker. A
// worker's refusal of the prompt ends the question. ask returns the first answer with ids. ctx bounds the wait until a
// call can begin.
func (s *Source) ask(ctx context.Context, f *flight) Found {
	q := f.question
	s.states.prune(len(q.workers) + 1)
	first := s.acquire(ctx, f)
	if first.admission != granted {
		return Found{Outcome: first.admission.outcome()}
	}
	replies := make(chan reply, 2) // capacity for both calls: a late reply never blocks its goroutine
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
			// An engine may accept a prompt that the service refuses.
			case errors.Is(r.err, errRefused) && !s.isService(r.url):
				return Found{Outcome: Refused}
			case errors.Is(r.err, errKey), errors.Is(r.err, errLimit):
				outcome = Refused // this worker refused the client's key; another worker may accept it
			case errors.Is(r.err, errMissing):
				outcome = Unsupported
			}
			if hedged {
				continue
			}
			hedged, q.not = true, first.worker.URL
			second := s.another(q)
			if second.admission == full && pending == 0 {
				second = s.inLine(ctx, q)
			}
			if second.admission == granted {
				s.start(second, q, replies)
				pending++
			}
		case <-hedge.C:
			if hedged || !s.flights.watched(f) {
				continue
			}
			q.not = first.worker.URL
			if second := s.another(q); second.admission == granted {
				s.hedged.Add(1)
				s.start(second, q, replies)
				pending++
			}
			hedged = true
		}
	}
	return Found{Outcome: outcome}
}

// another books a call for q without waiting. It never books a call to the worker q.not.
func (s *Source) another(q *question) grant {
	s.states.mu.Lock()
	defer s.states.mu.Unlock()
	return s.states.grant(q, time.Now())
}

// outcome returns the outcome of a question that was not asked; v is the reason.
func (v admission) outcome() Outcome {
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

// start makes the granted call in its own goroutine. The goroutine ends with callTimeout or Close, and Close waits for
// it. If another worker answers first, this call is not cancelled: the engine computes the answer anyway, and the
// answer's time is used to predict the engine's next answers.
func (s *Source) start(g grant, q *question, replies chan<- reply) {
	s.asked.Add(1)
	q.hold()
	s.calls.Go(func() {
		defer s.drop(q)
		ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
		defer cancel()
		found, err := s.call(ctx, g.worker, q)
		s.states.done(g.worker.URL, g.call, s.endingOf(err), time.Now())
		replies <- reply{g.worker.URL, found, err}
	})
}

// endingOf returns the ending of a call with this error. The ending says whether the worker is at fault.
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

// dialing reports whether err means that no connection could be made. Then the prompt cannot be the reason of the
// error.
func dialing(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// call asks w's endpoints in order, until one of them exists and accepts the client's key.
func (s *Source) call(ctx context.Context, w Worker, q *question) (Found, error) {
	endpoints, refused := s.states.endpoints(w, q, time.Now())
	for _, e := range endpoints {
		if q.media && !e.renders() {
			return Found{}, cmp.Or(refused, errMissing) // the endpoints are missing for this prompt only; other prompts may use them
		}
		found, err := s.post(ctx, w, e, q)
		switch {
		case errors.Is(err, errKey), errors.Is(err, errLimit):
			refused = err
			s.states.refuse(w.URL, q.client, e.renders(), err, time.Now())
		case errors.Is(err, errMissing) && e.alone():
			s.states.learn(w.URL, func(p *workerState) { p.noAlone = time.Now().Add(relearn) })
		case errors.Is(err, errMissing):
			if e.renders() {
				s.states.learn(w.URL, func(p *workerState) { p.noRender = time.Now().Add(relearn) })
			}
		default:
			if err == nil && e == v1Tokenize {
				s.states.learn(w.URL, func(p *workerState) { p.v1Only = true })
			}
			return found, err
		}
	}
	if convertible(q.dialect) { // other dialects may have endpoints
		return Found{}, cmp.Or(refused, errMissing)
	}
	if refused != nil { // other clients may be able to use the endpoints that refuse this client's key
		s.states.refuse(w.URL, q.client, false, refused, time.Now())
		return Found{}, refused
	}
	s.states.learn(w.URL, func(p *workerState) { p.noTokens = time.Now().Add(relearn) })
	return Found{}, errMissing
}

// post asks w at one endpoint for the ids of q, and decodes the answer. It makes one call; the caller tries other
// endpoints.
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
	if q.authorization != "" && !s.isService(w.URL) { // only engines may get the client's key
		req.Header.Set("Authorization", q.authorization)
	}
	resp, err := s.clientOf(w).Do(req)
	if err != nil {
		return Found{}, fmt.Errorf("ask %s for tokens: %w", w.URL, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // if this reads the body to its end, the connection can be reused
		err := statusError(resp.StatusCode, e, said)
		if s.isService(w.URL) { // the service got no client's key
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
	errFault  = errors.New("the engine answered 500") // engines also answer 500 when a prompt breaks their own code
)

// statusError returns the error for a status: a missing endpoint, a refused prompt, a refused key, a limit, or a
// failing engine. An engine also answers 404 if it does not know the model, but then with an error object. vLLM without
// --enable-scale-out answers render with 403 for every key; the message names the flag
// (entrypoints/scale_out/factories.py).
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

// serviceError changes an error of statusError for the tokenizer service. The service gets no client's key, so status
// 401, 403 or 429 concerns all clients.
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
