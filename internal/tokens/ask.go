package tokens

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
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

// maxAnswer bounds an engine's answer in bytes: a million ids take 7 MB, a rendered image's kwargs_data some more.
const maxAnswer = 32 << 20

var (
	errMissing = errors.New("no such endpoint")          // 403, 404, 405, 501: ask by the next way
	errRefused = errors.New("engine refuses the prompt") // any other 4xx: no other worker would take it either
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
	media         bool // ids alone do not tell two prompts apart: only render says what stands at their placeholders

	service []Worker      // asked before workers; one or none
	workers []Worker      // that may be asked
	not     string        // but not this one: it failed
	worth   time.Duration // guarded by peers.mu; its place in the line; 0: nobody waits for the answer
	anyhow  bool          // asked though nobody waits and no engine is calm
	turn    chan grant    // has room for one: what the question gets that waits in the line
	wanted  chan struct{} // has room for one: somebody waits for the answer now
}

// fill makes the question that p asks. Who waits for the question may hold it already.
func (q *question) fill(p *Prompt, service, workers []Worker) {
	q.dialect, q.authorization, q.media = p.Request.Dialect, p.Authorization, p.Request.Multimodal
	q.whole, q.tokenize = bytes.Clone(p.Request.Body()), tokenizeBody(p.Request, p.Kind)
	q.service, q.workers = service, slices.Clone(workers)
}

// bytes is the question's size, for what its answer should take.
func (q *question) bytes() int { return len(q.tokenize) }

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
	s.calls.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, callTimeout)
		defer cancel()
		found, err := s.call(ctx, g.worker, q)
		failed := err != nil && !errors.Is(err, errRefused) && !errors.Is(err, errMissing) && s.ctx.Err() == nil
		s.peers.done(g.worker.URL, g.call, failed, time.Now())
		replies <- reply{g.worker.URL, found, err}
	})
}

// call asks w by each of its endpoints until one exists.
func (s *Source) call(ctx context.Context, w Worker, q *question) (Found, error) {
	for _, e := range s.peers.endpoints(w, q.dialect, time.Now()) {
		if q.media && !e.renders() {
			return Found{}, errMissing // for this prompt, not for others
		}
		found, err := s.post(ctx, w, e, q)
		if !errors.Is(err, errMissing) {
			if err == nil && e == v1Tokenize {
				s.peers.learn(w.URL, func(p *peer) { p.v1Only = true })
			}
			return found, err
		}
		if e.renders() {
			s.peers.learn(w.URL, func(p *peer) { p.noRender = time.Now().Add(relearn) })
		}
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
		return Found{}, fmt.Errorf("ask %s%s: status %d: %w", w.URL, e, resp.StatusCode, err)
	}
	data, err := readAll(resp)
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
	return Found{Tokens: a.tokens, Features: a.features, Outcome: outcome}, nil
}

var errStatus = errors.New("unexpected status")

// statusError tells a missing endpoint from a refused prompt and from a failing engine. An engine that does not know
// the model says 404 as well, but in its own error shape.
func statusError(status int, e endpoint, said []byte) error {
	switch {
	case status == http.StatusNotFound && bytes.Contains(said, []byte(`"error"`)):
		return errRefused
	case status == http.StatusForbidden, status == http.StatusNotFound, status == http.StatusMethodNotAllowed,
		status == http.StatusNotImplemented, status == http.StatusUnauthorized && e.renders():
		return errMissing
	case status == http.StatusTooManyRequests || status == http.StatusRequestTimeout:
		return errStatus
	case status >= 400 && status < 500:
		return errRefused
	}
	return errStatus
}

func readAll(resp *http.Response) ([]byte, error) {
	if resp.ContentLength > maxAnswer {
		return nil, fmt.Errorf("answer of %d bytes is beyond %d", resp.ContentLength, maxAnswer)
	}
	var buf bytes.Buffer
	if resp.ContentLength > 0 {
		buf.Grow(int(resp.ContentLength) + bytes.MinRead)
	}
	n, err := buf.ReadFrom(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if n > maxAnswer {
		return nil, fmt.Errorf("answer is beyond %d bytes", maxAnswer)
	}
	return buf.Bytes(), nil
}
