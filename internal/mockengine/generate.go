package mockengine

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/internal/engine"
)

// deadMessage is vLLM's error message when its EngineCore has died.
const deadMessage = "EngineCore encountered an issue. See stack trace (above) for the root cause."

// run is one HTTP generation request under way. It has one part for each choice of each prompt. A prompt has as many
// choices as the request's field n.
type run struct {
	*generation
	life    *life
	rank    *rank
	kept    []chatMessage // of a response that is kept: the conversation up to the answer
	number  int           // number of the next event of a streamed response
	id      string
	created int64
	parts   []part
	signal  chan struct{}
	failed  atomic.Pointer[string] // why the request ends with an error; nil: it does not
	aborted chan struct{}          // closed when the request is aborted by its id
}

// part is one choice of one prompt: a sequence that the engine computes.
type part struct {
	answer   answer
	request  engine.Request
	progress progress
	sent     int // number of tokens sent to the client so far
}

func (p *part) done() bool { return int(p.progress.tokens.Load()) == len(p.answer.tokens) }

// generate serves chat/completions and completions.
func (l *life) generate(w http.ResponseWriter, r *http.Request) {
	chat := strings.HasPrefix(r.URL.Path, "/v1/chat/")
	l.withBody(w, r, func(body *fastjson.Value) {
		g, err := l.readGeneration(body, chat, r.Header.Get("X-Data-Parallel-Rank"))
		if err != nil {
			l.refuseDecode(body)
			l.refuseRequest(w, err)
			return
		}
		if chat {
			g.form = formChat
		}
		if id := r.Header.Get("X-Request-Id"); id != "" && l.cfg.Kind == VLLM {
			g.requestID = id
		}
		l.answer(w, r, g, nil)
	})
}

func (l *life) refuseRequest(w http.ResponseWriter, err error) {
	if errors.Is(err, errModel) {
		l.refuse(w, http.StatusNotFound, strings.ToUpper(err.Error()[:1])+err.Error()[1:]+".")
		return
	}
	l.refuse(w, http.StatusBadRequest, err.Error())
}

// answer computes g and writes the response. kept is the conversation before the answer, if the response is to be kept.
func (l *life) answer(w http.ResponseWriter, r *http.Request, g *generation, kept []chatMessage) {
	if l.isDead() {
		l.refuse(w, http.StatusInternalServerError, deadMessage)
		return
	}
	if l.asleep.Load() { // real engines crash or never answer
		l.refuse(w, http.StatusInternalServerError, "the engine is asleep")
		return
	}
	if l.server.faults.hits(errorShare) {
		l.refuse(w, http.StatusInternalServerError, "Internal server error (a fault of the mock engine)")
		return
	}
	if status := l.transferFault(g); status != 0 {
		l.refuse(w, status, "a fault of the mock engine")
		return
	}
	if excess := g.excess(l.ranks[0].engine.MaxModelLen()); excess != "" {
		l.releaseRefused(g)
		l.refuse(w, http.StatusBadRequest, excess)
		return
	}
	if problem := l.refusesBootstrap(g); problem != "" {
		l.refuse(w, http.StatusBadRequest, problem)
		return
	}
	x := l.newRun(g)
	x.kept = kept
	x.rank = l.chooseRank(l.bootstrapRank(g))
	l.requests.Add(1)
	l.active.Add(1)
	defer l.active.Add(-1)
	l.abortable.add(x)
	defer l.abortable.remove(x)
	ready, leave := x.enterRooms(r)
	defer leave()
	if !ready {
		x.writeFailure(w, r)
		return
	}
	requests := make([]*engine.Request, len(x.parts))
	for i := range x.parts {
		requests[i] = &x.parts[i].request
	}
	if err := x.rank.submit(requests); err != nil {
		l.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	// If the client leaves early, remove the sequences from the engine, as engines do for aborted requests.
	defer func() {
		for i := range x.parts {
			if !x.parts[i].progress.moving.Load() { // otherwise the transfer does so at its end
				x.rank.cancel(requests[i : i+1])
			}
		}
	}()
	x.startTransfers(r)
	if g.stream {
		x.writeStream(w, r)
	} else {
		x.writeWhole(w, r)
	}
}

// maxTokens bounds the memory of one HTTP request: 8 Mi tokens of prompts and answers take 32 MiB.
const maxTokens = 8 << 20

// excess returns vLLM's error message if a prompt leaves no room for an answer, an error message of the mock engine if
// the whole request is too large, and otherwise "".
func (g *generation) excess(longest int) string {
	total := 0
	for i := range g.prompts {
		n := len(g.prompts[i].tokens)
		if n >= longest {
			return fmt.Sprintf("This model's maximum context length is %d tokens. However, your request has %d input tokens. "+
				"Please reduce the length of the input messages.", longest, n)
		}
		answer := g.options.limit
		if !g.options.ignoreEnd && !g.options.greedy && answer > g.options.length {
			answer = g.options.length + 1
		}
		total += (n + min(answer, longest-n)) * g.choices
	}
	if total > maxTokens {
		return fmt.Sprintf("The request asks for %d tokens over all prompts and choices; the mock engine's limit is %d.",
			total, maxTokens)
	}
	return ""
}

// newRun makes all answers of the request. The engine model decides when the tokens of an answer are sent.
func (l *life) newRun(g *generation) *run {
	x := &run{generation: g, life: l, created: time.Now().Unix(), signal: make(chan struct{}, 1), aborted: make(chan struct{})}
	x.id = g.form.prefix() + l.newID()
	if g.requestID != "" && l.cfg.Kind == VLLM {
		x.id = g.form.prefix() + g.requestID
	}
	if g.requestID != "" && l.cfg.Kind == SGLang {
		x.id = g.requestID
	}
	x.parts = make([]part, len(g.prompts)*g.choices)
	for i := range x.parts {
		p := &x.parts[i]
		prompt := &g.prompts[i/g.choices]
		options := g.options
		options.limit = max(1, min(options.limit, l.ranks[0].engine.MaxModelLen()-len(prompt.tokens)))
		p.answer = answerTo(prompt.tokens, i%g.choices, &options)
		p.progress.signal, p.progress.lasts = x.signal, !g.stream
		p.request = engine.Request{
			Prompt:   prompt.tokens,
			Output:   p.answer.tokens,
			Features: prompt.features,
			Fresh:    g.fresh,
			Announce: g.announce,
			Owner:    &p.progress,
		}
		p.progress.adapter = g.path
		p.request.Scope.LoRA, p.request.Scope.Salt, p.request.Scope.Extra = g.lora, g.salt, g.extra
		x.prepareTransfer(i)
		x.prepareBootstrap(i)
	}
	return x
}

// newID returns 32 hexadecimal digits that no other request of this life has.
func (l *life) newID() string {
	id := splitmix(l.salt<<32 ^ l.next.Add(1))
	return hex64(id.next()) + hex64(id.next())
}

// chooseRank returns the rank that the request names. If the request names no rank, it returns the rank with the fewest
// requests. If several ranks have the fewest requests, they take turns.
func (l *life) chooseRank(asked int) *rank {
	if asked >= 0 {
		return l.ranks[asked]
	}
	if len(l.ranks) == 1 {
		return l.ranks[0]
	}
	first := int(l.turns.Add(1) % uint64(len(l.ranks)))
	var best *rank
	least := 0
	for i := range l.ranks {
		r := l.ranks[(first+i)%len(l.ranks)]
		s := r.stats()
		if n := s.Running + s.Waiting; best == nil || n < least {
			best, least = r, n
		}
	}
	return best
}

// wait blocks until more tokens are generated (or the sequence has ended, if the answer is not streamed), the engine is
// killed, or the client is gone. more reports whether there are more tokens. alive is false if the client is gone or
// the life has ended.
func (x *run) wait(r *http.Request) (more, alive bool) {
	select {
	case <-x.signal:
		return x.failed.Load() == nil, true
	case <-x.life.dead:
		return false, true
	case <-x.aborted:
		x.cut()
		return true, true
	case <-r.Context().Done():
		return false, false
	}
}

// delayFirst waits for the time Faults.FirstToken. It returns false if the request's context ends first: the client is
// gone, or the mock engine stops or restarts.
func (x *run) delayFirst(r *http.Request) bool {
	f, _ := x.life.server.faults.get()
	if f.FirstToken <= 0 {
		return true
	}
	timer := time.NewTimer(f.FirstToken)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.Context().Done():
		return false
	}
}

// writeWhole waits until all choices are complete, and sends the answer in one piece.
func (x *run) writeWhole(w http.ResponseWriter, r *http.Request) {
	for i := range x.parts {
		for !x.parts[i].done() {
			more, alive := x.wait(r)
			if !alive {
				panic(http.ErrAbortHandler)
			}
			if !more {
				x.life.refuse(w, http.StatusInternalServerError, x.problem())
				return
			}
		}
	}
	if !x.delayFirst(r) || !x.life.server.faults.hold(r.Context(), frozen) {
		panic(http.ErrAbortHandler)
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	*buf = x.appendWhole((*buf)[:0])
	x.complete()
	// The whole answer must be sent before a planned death; without a length its last chunk would follow this handler.
	w.Header().Set("Content-Length", strconv.Itoa(len(*buf)))
	writeBytes(w, http.StatusOK, "application/json", *buf)
	if x.life.legOf(x.generation) == Prefill {
		_ = http.NewResponseController(w).Flush()
		x.life.dies(afterPrefill)
	}
}

// complete notes that the answer is complete.
func (x *run) complete() {
	x.keep()
	if told := x.life.cfg.Answered; told != nil {
		told(x.requestID)
	}
}

// writeStream sends one chunk for each token, but only two chunks for a tool call. It writes all chunks that are ready
// together, and then flushes.
func (x *run) writeStream(w http.ResponseWriter, r *http.Request) {
	cutAt := -1
	if x.life.server.faults.hits(cutShare) {
		cutAt = 1 + x.life.server.faults.below(max(1, len(x.parts[0].answer.tokens)-1))
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	begun := false
	flush := http.NewResponseController(w)
	for left := len(x.parts); left > 0; {
		more, alive := x.wait(r)
		switch {
		case !alive:
			panic(http.ErrAbortHandler)
		case !more:
			x.dieInStream(w, begun)
			return
		}
		out := (*buf)[:0]
		if !begun {
			if !x.delayFirst(r) {
				panic(http.ErrAbortHandler)
			}
			beginStream(w)
			out = x.appendOpening(out)
			begun = true
		}
		cut := false
		for i := range x.parts {
			p := &x.parts[i]
			ready := int(p.progress.tokens.Load())
			if cutAt >= 0 && i == 0 && ready >= cutAt {
				ready, cut = max(cutAt, p.sent), true
			}
			for ; p.sent < ready; p.sent++ {
				out = x.appendChunk(out, i, p.sent)
				if p.sent == len(p.answer.tokens)-1 {
					left--
				}
			}
		}
		if left == 0 && !cut {
			out = x.appendClosing(out)
			x.complete()
		}
		*buf = out
		if !x.life.server.faults.hold(r.Context(), frozen) {
			panic(http.ErrAbortHandler)
		}
		_, err := w.Write(out)
		if err == nil {
			err = flush.Flush()
		}
		if cut || err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// writeFailure ends a request that failed before the engine got it.
func (x *run) writeFailure(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler)
	case x.isAborted() && x.stream:
		x.writeStream(w, r)
	case x.isAborted():
		x.writeWhole(w, r)
	case x.stream:
		x.dieInStream(w, false)
	default:
		x.life.refuse(w, http.StatusInternalServerError, x.problem())
	}
}

// problem says why the engine does not go on.
func (x *run) problem() string {
	if problem := x.failed.Load(); problem != nil {
		return *problem
	}
	return deadMessage
}

func beginStream(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
}

// dieInStream ends a stream as vLLM's API server does when its EngineCore dies: it sends an error event and [DONE], and
// then ends the response normally. If the stream has not begun, the answer is 500.
func (x *run) dieInStream(w http.ResponseWriter, begun bool) {
	if !begun && x.failed.Load() == nil {
		x.life.refuse(w, http.StatusInternalServerError, deadMessage)
		return
	}
	if !begun { // vLLM sends the head of a stream before it computes anything
		beginStream(w)
	}
	out := append([]byte("data: "), errorBody(nil, http.StatusInternalServerError, x.problem())...)
	out = append(out, "\n\ndata: [DONE]\n\n"...)
	_, _ = w.Write(out)
}

// buffers pools response buffers. Large buffers are not returned to the pool.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 4096); return &b }}

func putBuffer(b *[]byte) {
	if cap(*b) <= 64<<10 {
		buffers.Put(b)
	}
}
