package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/tokens"
)

// The values of Config.StreamRecovery.
const (
	RecoverExact = "exact"
	RecoverValid = "valid"
	RecoverOff   = "off"
)

const (
	// maxRecovered bounds the memory for the ids of one stream: a longer answer is not recovered. 256 Ki ids are longer
	// than the answers of today's models.
	maxRecovered = 256 << 10
	// maxEvent bounds the memory for one event that arrives in parts. The first event has the ids of the prompt.
	maxEvent = 8 << 20
	// maxStepsBack is how many chunks a continuation goes back at most. Almost always 0 to 3 are enough; a stop string of
	// some hundred characters needs some tens.
	maxStepsBack = 64
	// detokenizeTime bounds the question for the text of ids. A healthy engine answers in some milliseconds.
	detokenizeTime = 5 * time.Second
)

// recovery lets a stream survive its worker. It is the writer of the proxy's attempts for one request: it remembers the
// token ids that the worker reports, hides them from the client, and holds back an error event. If the worker dies, the
// exchange continues the stream at another worker from the ids, and recovery turns the other worker's events into
// events of the first stream (docs/design/0043).
//
// A recovery belongs to the request's goroutine, except movable and heard.
type recovery struct {
	x       *exchange
	chat    bool
	engine  fleet.Engine // of the first worker
	version string       // of the first worker's engine
	remove  bool         // the engine leaves out lists of ids that were not asked for; otherwise it sends null
	movable atomic.Bool  // the stream can continue at another worker now
	heard   atomic.Int64 // when the worker's last piece came, in Unix nanoseconds; 0 while the piece is passed on
	broken  string       // why the stream cannot be recovered any more; "": it can
	raw     bool         // the answer is no event stream: it is passed on as it is
	begun   bool         // the client got a part of the answer
	failed  []byte       // the error event, which the client gets if the stream cannot be recovered
	pending []byte       // the beginning of an event
	out     []byte       // scratch: what is written to the client
	first   time.Time    // when the first token came
	base    int          // number of tokens that came from earlier workers
	tries   int          // number of continuations
	header  http.Header  // the header of a continuation, which the client does not get
	piece   api.Piece    // scratch
	like    api.Piece    // an event with text of the first worker
	sample  []byte       // the memory of like
	head    []byte       // the first event
	id, at  []byte       // the id and the time of creation of the stream, as JSON
	prompt  []uint32     // the ids of the prompt
	ids     []uint32     // the generated ids
	ends    []int        // for each chunk: the number of ids up to its end
	text    []byte       // the text that the client has
	skip    []byte       // text of the client that the continuation still repeats
	again   continuation // how the continuation under way is asked for
	unable  string       // why the worker that was asked last could not continue the stream
	lost    string       // the worker that was lost last
	cause   string       // how it was lost
	parsing parsing
	worker  *fleet.Worker // the worker that continues a parsed stream

	finished, usage, done bool // the client has a finish_reason, the usage, [DONE]
}

// continuation is how a continuation is asked for.
type continuation uint8

const (
	none  continuation = iota
	whole              // no text came yet: the same request again
	byIDs              // a completion of the ids
)

// arm prepares for the recovery of the stream that d's worker is about to send. The attempt is complete otherwise.
func (x *exchange) arm(d *warmpath.Decision) {
	x.recovery = nil
	if x.unrecoverable(d.Worker) != "" {
		return
	}
	version := d.Worker.Facts.Version
	r := &recovery{x: x, chat: x.dialect == api.OpenAIChat, engine: d.Worker.Facts.Engine, version: version}
	r.remove = r.engine != fleet.EngineVLLM || !tokens.SendsNulls(version)
	r.parsing.on = r.chat && usesParser(&x.prepared.read)
	x.recovery = r
	a := &x.attempt
	a.Writer = r
	a.Body = api.AppendEdited(nil, a.Body, api.Edit{Name: "return_token_ids", Value: []byte("true")})
}

// send sends the attempt. The attempt continues a stream, or its stream may be continued later.
func (x *exchange) send(ctx context.Context, d *warmpath.Decision) proxy.Result {
	if r := x.recovery; r == nil || r.again == none {
		x.arm(d)
	} else if why := x.prepareRecovery(ctx, d.Worker); why != "" {
		r.unable = why
		return proxy.Result{Class: proxy.Abandoned, Err: api.WorkerBroke(errors.New(d.Worker.URL + " cannot continue the stream: " + why))}
	}
	return x.ask(ctx, x.g.roster(d.Worker.ID))
}

// prepareRecovery fills in the continuation at w, and records the time that this takes. why is "" if w can continue the
// stream.
func (x *exchange) prepareRecovery(ctx context.Context, w *fleet.Worker) (why string) {
	r := x.recovery
	span := x.span.Part("recover")
	defer span.End()
	why = r.prepare(ctx, w)
	span.Text("warmpath.lost", r.lost)
	span.Text("warmpath.cause", r.cause)
	span.Text("warmpath.worker", w.URL)
	span.Int("warmpath.tokens", r.base)
	if why != "" {
		span.Fail(why, "")
	}
	return why
}

// unrecoverable returns why a stream of the worker cannot be recovered, "" if it can. The reasons are labels of a
// metric.
func (x *exchange) unrecoverable(w *fleet.Worker) string {
	p := &x.prepared.read
	mode := x.g.cfg.StreamRecovery
	switch {
	case mode == RecoverOff || mode == "":
		return "off"
	case !p.Stream || x.dialect != api.OpenAIChat && x.dialect != api.OpenAICompletions:
		return "endpoint"
	case w.Facts.Engine == fleet.EngineSGLang && x.dialect == api.OpenAICompletions:
		// SGLang sends text that may be the beginning of a stop string, and looks for stop strings in its own answer only.
		if given(p, "stop") || given(p, "stop_regex") {
			return "fields"
		}
	case w.Facts.Engine != fleet.EngineVLLM:
		return "engine" // SGLang's streaming chat has no ids (0.5.23 refuses return_token_ids)
	case p.N > 1 || p.Prompts > 1 || p.Multimodal || p.MixedScopes:
		return "choices"
	case p.Form != api.PromptMessages && p.Form != api.PromptText && (x.dialect != api.OpenAICompletions || p.Form != api.PromptIDs):
		return "prompt"
	case len(x.serving()) < 2:
		return "no_worker"
	}
	return readRecoverable(p, mode)
}

// readRecoverable returns which of a request's fields stands against a recovery, "" if none does. The rules are
// measured: see docs/design/0043.
func readRecoverable(p *api.Request, mode string) string {
	greedy, seeded, parsed := false, false, usesParser(p)
	for name, value := range p.Members {
		zero := string(value) == "null"
		switch string(name) {
		case "temperature":
			t, err := strconv.ParseFloat(string(value), 64)
			greedy = err == nil && t == 0
		case "seed":
			seeded = !zero
		case "presence_penalty", "frequency_penalty": // they count generated tokens only, so a continuation forgets them
			if t, err := strconv.ParseFloat(string(value), 64); !zero && (err != nil || t != 0) {
				return "penalty"
			}
		case "n", "best_of":
			if !zero && string(value) != "1" {
				return "choices"
			}
		case "tools":
		case "functions":
			if !zero && string(value) != "[]" {
				return "tools"
			}
		case "tool_choice": // any other choice is a grammar
			if !zero && string(value) != `"none"` && string(value) != `"auto"` {
				return "tools"
			}
		case "stop", "include_stop_str_in_output": // the engine makes no events of ids up to a stop string
			if parsed && !zero && string(value) != "[]" && string(value) != "false" {
				return "tools"
			}
		case "response_format":
			if !zero && !plainFormat(value) {
				return "guided"
			}
		case "logprobs", "top_logprobs", "echo", "suffix", "return_token_ids":
			if !zero && string(value) != "false" && string(value) != "0" && string(value) != `""` {
				return "fields"
			}
		case "stream_options":
			for option := range members(value) {
				if option != "include_usage" {
					return "fields"
				}
			}
		default:
			if strings.HasPrefix(string(name), "guided_") || string(name) == "structured_outputs" {
				return "guided"
			}
			if _, known := recoverable[string(name)]; !known && !zero {
				return "fields"
			}
		}
	}
	if !greedy && (mode != RecoverValid || seeded) {
		return "sampling"
	}
	return ""
}

// members returns the members of an object.
func members(object []byte) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	_ = json.Unmarshal(object, &m) // the body was read, so it is valid; another type has no members
	return m
}

func plainFormat(value []byte) bool {
	m := members(value)
	return len(m) == 1 && string(m["type"]) == `"text"`
}

// recoverable has the fields of a request that stand in no way of a recovery. The value says whether a continuation
// gets the field, too: the other fields make the prompt, or concern only the first worker.
var recoverable = map[string]bool{
	"model": true, "stream": true, "user": true, "priority": true, "cache_salt": true, "top_p": true, "top_k": true, "min_p": true,
	"repetition_penalty": true, "logit_bias": true, "stop": true, "stop_token_ids": true, "ignore_eos": true,
	"include_stop_str_in_output": true, "skip_special_tokens": true, "spaces_between_special_tokens": true, "metadata": true,
	"messages": false, "prompt": false, "max_tokens": false, "max_completion_tokens": false, "min_tokens": false,
	"chat_template": false, "chat_template_kwargs": false, "add_generation_prompt": false, "add_special_tokens": false,
	"documents": false, "session_id": false, "session_params": false, "user_id": false, "prompt_cache_key": false,
	"request_id": false, "parallel_tool_calls": false, "service_tier": false, "store": false,
}

// copied are the fields of readRecoverable that a continuation gets, too.
var copied = map[string]bool{"temperature": true, "seed": true, "stream_options": true, "presence_penalty": true, "frequency_penalty": true}

// Header is part of http.ResponseWriter.
func (r *recovery) Header() http.Header {
	if r.again != none {
		return r.header
	}
	return r.x.w.Header()
}

// WriteHeader is part of http.ResponseWriter.
func (r *recovery) WriteHeader(status int) {
	if r.again != none {
		return
	}
	r.raw = !strings.HasPrefix(r.x.w.Header().Get("Content-Type"), "text/event-stream") || r.x.w.Header().Get("Content-Length") != ""
	r.begun = true
	r.x.w.WriteHeader(status)
}

// Unwrap lets http.ResponseController find the client's writer.
func (r *recovery) Unwrap() http.ResponseWriter { return r.x.w }

// Write takes a part of the answer from the proxy.
func (r *recovery) Write(b []byte) (int, error) {
	if r.raw {
		return r.x.w.Write(b)
	}
	r.heard.Store(0) // a client that reads slowly is no silence of the worker
	defer func() { r.heard.Store(time.Now().UnixNano()) }()
	r.out = r.out[:0]
	rest := b
	if len(r.pending) > 0 {
		r.pending = append(r.pending, b...)
		rest = r.pending
	}
	for {
		end := bytes.Index(rest, []byte("\n\n"))
		if end < 0 {
			break
		}
		r.event(rest[:end+2])
		rest = rest[end+2:]
	}
	if len(r.parsing.waiting) > 0 && !r.parsing.stuck {
		r.parseWaiting(nil, nil)
	}
	r.pending = append(r.pending[:0], rest...)
	if len(r.pending) > maxEvent || bytes.IndexByte(r.pending, '\r') >= 0 {
		r.giveUp("format")
		r.out = append(r.out, r.pending...)
		r.pending = r.pending[:0]
	}
	r.movable.Store(r.broken == "" && r.begun && !r.done && len(r.failed) == 0)
	if len(r.out) > 0 {
		if _, err := r.x.w.Write(r.out); err != nil {
			return 0, err
		}
	}
	switch { // an error ends the attempt, so that the worker does not compute the rest
	case r.broken == diverged:
		return 0, errDiverged
	case r.parsing.stuck:
		return 0, errStuck
	}
	return len(b), nil
}

func (r *recovery) giveUp(why string) {
	if r.broken == "" {
		r.broken = why
		r.movable.Store(false)
	}
}

// event takes one event with its empty line, and appends to r.out what the client gets.
func (r *recovery) event(event []byte) {
	payload, is := bytes.CutPrefix(event[:len(event)-2], []byte("data: "))
	switch {
	case r.parsing.stuck:
		return
	case !is:
		r.out = append(r.out, event...) // a comment keeps the client from timing out
		return
	case string(payload) == "[DONE]":
		r.done = len(r.failed) == 0 // after an error event vLLM sends [DONE], too
		if r.done {
			r.out = append(r.out, event...)
		}
		return
	case !r.piece.Read(payload):
		r.giveUp("format")
		r.out = append(r.out, event...)
		return
	case r.piece.Failed:
		r.failed = append(r.failed[:0], event...)
		return
	}
	if r.again == none {
		r.pass(payload)
	} else {
		r.translate(payload)
	}
}

// pass takes an event of the first worker.
func (r *recovery) pass(payload []byte) {
	c := &r.piece
	if r.id == nil {
		r.id, r.at = bytes.Clone(c.ID), bytes.Clone(c.Created)
	}
	before := len(r.out)
	r.out = append(r.out, "data: "...)
	from := len(r.out)
	r.out = c.AppendWithoutIDs(r.out, r.remove)
	if len(r.head) == 0 {
		r.head = bytes.Clone(r.out[from:])
	}
	r.sampled(r.out[from:])
	r.out = append(r.out, "\n\n"...)
	if r.silent() {
		r.out = r.out[:before]
	}
	if len(c.Prompt) > 0 && len(r.prompt) == 0 {
		r.prompt = slices.Clone(c.Prompt)
	}
	r.note(c.Text)
}

// sampled keeps the event in r.piece, without its ids, as the pattern of the events of a continuation.
func (r *recovery) sampled(event []byte) {
	c := &r.piece
	if fits := c.HasText || r.parsing.on && len(c.Delta) > 0; len(r.sample) == 0 && fits && !c.Role && c.Finish == nil && c.Usage == nil {
		r.sample = bytes.Clone(event)
		r.like.Read(r.sample)
	}
}

// note remembers the ids of the event in r.piece. text is the part of its text that the client gets.
func (r *recovery) note(text []byte) {
	c := &r.piece
	if c.Other && r.again != byIDs && r.mayParse() {
		r.parsing.on = true
	}
	switch {
	case c.Other && !r.parsing.on:
		r.giveUp("reasoning")
	case len(text) > 0 && len(c.IDs) == 0 && len(r.ids) == 0,
		r.parsing.on && len(c.IDs) == 0 && !c.Role && c.Finish == nil && c.Usage == nil:
		r.giveUp("ids")
	case len(r.ids)+len(c.IDs) > maxRecovered:
		r.giveUp("length")
	}
	r.finished = r.finished || c.Finish != nil
	r.usage = r.usage || c.Usage != nil
	if r.broken != "" {
		return
	}
	r.text = append(r.text, text...)
	if len(c.IDs) > 0 {
		r.ids = append(r.ids, c.IDs...)
		r.ends = append(r.ends, len(r.ids))
	}
	if r.parsing.on && r.again != byIDs && len(c.IDs) > 0 {
		r.noteParsed(c.Delta)
	}
	if r.first.IsZero() && len(r.ids) > 0 {
		r.first = time.Now()
	}
}

// translate turns an event of a continuation into an event of the first stream.
func (r *recovery) translate(payload []byte) {
	c := &r.piece
	if c.Usage != nil {
		r.usage = true
		edits := append(r.named(), api.Edit{Name: "usage", Value: r.rebased(c.Usage)})
		if r.chat {
			edits = append(edits, api.Edit{Name: "object", Value: []byte(`"chat.completion.chunk"`)})
		}
		r.emit(api.AppendEdited(nil, payload, edits...))
		return
	}
	if r.again == whole {
		if r.note(c.Text); r.chat && c.Role && len(c.Text) == 0 && c.Finish == nil {
			if len(r.prompt) == 0 {
				r.prompt = slices.Clone(c.Prompt)
			}
			return // the client has the role
		}
		if len(r.prompt) == 0 {
			r.prompt = slices.Clone(c.Prompt)
		}
		event := api.AppendEdited(nil, c.AppendWithoutIDs(nil, r.remove), r.named()...)
		r.sampled(event)
		if !r.silent() {
			r.emit(event)
		}
		return
	}
	if r.parsing.on {
		r.parse()
		return
	}
	text := c.Text
	n := min(len(text), len(r.skip))
	if string(text[:n]) != string(r.skip[:n]) || c.Finish != nil && n < len(r.skip) {
		// The worker repeats another text than the client has: a tie between two tokens went the other way.
		r.diverged()
		return
	}
	r.skip, text = r.skip[n:], text[n:]
	r.note(text)
	if len(text) > 0 || c.Finish != nil {
		r.emit(r.like.AppendLike(nil, string(text), c))
	}
}

// named returns the edits that give an event the id and the time of the stream.
func (r *recovery) named() (edits []api.Edit) {
	if r.id != nil {
		edits = append(edits, api.Edit{Name: "id", Value: r.id})
	}
	if r.at != nil {
		edits = append(edits, api.Edit{Name: "created", Value: r.at})
	}
	return edits
}

func (r *recovery) diverged() {
	r.giveUp(diverged)
	if len(r.failed) == 0 {
		r.failed = r.x.dialect.AppendErrorEvent(nil, api.WorkerBroke(errDiverged))
	}
}

// diverged is the reason if a continuation repeats another text than the client has.
const diverged = "diverged"

var errDiverged = errors.New("the other worker continued with another text")

func (r *recovery) emit(event []byte) {
	if len(r.failed) == 0 {
		r.out = append(append(append(r.out, "data: "...), event...), "\n\n"...)
	}
}

// rebased returns the usage of a continuation as the usage of the whole answer: the ids that were given to the other
// worker as a part of its prompt are a part of the answer.
func (r *recovery) rebased(usage []byte) []byte {
	m := members(usage)
	count := func(key string, change int) api.Edit {
		n, _ := strconv.Atoi(string(m[key]))
		return api.Edit{Name: key, Value: strconv.AppendInt(nil, int64(n+change), 10)}
	}
	return api.AppendEdited(nil, usage, count("prompt_tokens", -r.base), count("completion_tokens", r.base))
}

// recover decides what becomes of a stream after an attempt. w is the attempt's worker. more: another worker is asked.
// ended: the request ends with last, and the client's stream has its end. Otherwise the stream is not a recovered one.
func (x *exchange) recover(ctx context.Context, w *fleet.Worker, last *proxy.Result) (more, ended bool) {
	r := x.recovery
	if r == nil || r.raw || !r.begun {
		if r == nil && last.FirstByte && lostStream(last) && x.prepared.read.Stream {
			x.g.Telemetry.Recovered("refused", x.unrecoverable(w))
		}
		return false, false
	}
	last.FirstByte = true
	if !r.first.IsZero() {
		last.FirstTokenAt = r.first
	}
	if r.again != none && last.Usage.Seen {
		last.Usage.Prompt -= r.base
		last.Usage.Completion += r.base
	}
	if last.Class == proxy.Success && len(r.failed) == 0 {
		if !r.done && r.finished && r.broken == "" {
			r.complete() // the worker ended the answer cleanly without [DONE]
		}
		if r.again != none {
			x.g.Telemetry.Recovered("recovered", r.cause)
			x.g.Log.Info("stream continued at another worker", "id", x.rec.ID, "lost", r.lost, "cause", r.cause, "worker", w.URL, "tokens", r.base)
		}
		return false, r.again != none
	}
	if r.parsing.stuck && ctx.Err() == nil {
		r.parsing.stuck = false
		last.Class, last.Err = proxy.Truncated, api.WorkerBroke(errStuck)
	}
	why := r.mayContinue(ctx, last)
	if why == "" {
		r.lost, r.cause = w.URL, last.Class.String()
		x.rec.Failed = append(x.rec.Failed, w.URL+": "+redacted(describe(last, w.URL), x.r))
		x.rec.Recovered = append(x.rec.Recovered, w.URL+": "+last.Class.String()+" after "+strconv.Itoa(len(r.ids))+" tokens")
		r.aim(w)
		return true, false
	}
	x.endBroken(last, why)
	return false, true
}

// lostStream reports whether an attempt ended because its worker failed.
func lostStream(last *proxy.Result) bool {
	return last.Class.WorkerFault() || last.Class == proxy.Abandoned || last.Class == proxy.Useless || last.Class == proxy.Rejected || last.Class == proxy.Limited
}

// mayContinue returns why the stream cannot continue after an attempt, "" if it can.
func (r *recovery) mayContinue(ctx context.Context, last *proxy.Result) string {
	switch {
	case r.broken == diverged:
		return diverged
	case ctx.Err() != nil || last.Class == proxy.ClientGone || last.Class == proxy.Cut:
		return "gone"
	case r.broken != "":
		return r.broken
	case r.finished:
		return "finished"
	case (len(r.ids) > 0 || len(r.text) > 0) && (len(r.prompt) == 0 || len(r.sample) == 0):
		return "ids"
	case r.tries >= r.x.g.cfg.Attempts:
		return "attempts"
	case !lostStream(last):
		return "worker"
	}
	return ""
}

// endBroken ends a stream that cannot continue, in a way that the client sees.
func (x *exchange) endBroken(last *proxy.Result, why string) {
	r := x.recovery
	if r.unable != "" && (why == "no_worker" || why == "attempts") {
		why = r.unable
	}
	last.FirstByte, last.Answer = true, nil
	switch {
	case why == "gone" && last.Class != proxy.Cut:
		last.Abort = true
		return
	case why == "finished":
		r.complete()
		last.Class, last.Err, last.Abort = proxy.Success, nil, false
		x.g.Telemetry.Recovered("recovered", "finished")
		return
	case why != "gone":
		x.g.Telemetry.Recovered("refused", why)
	}
	event := r.failed
	if len(event) == 0 {
		err := last.Err
		if err == nil {
			err = api.WorkerBroke(errors.New("no other worker could continue the stream"))
		}
		event = x.dialect.AppendErrorEvent(nil, api.AsError(err))
	}
	if why == diverged {
		last.Class, last.Err = proxy.Truncated, api.WorkerBroke(errDiverged)
	}
	last.Abort = r.write(event) != nil
}

// complete sends what a finished stream lacks: the usage, if the client asked for it, and [DONE].
func (r *recovery) complete() {
	var out []byte
	if r.x.prepared.read.IncludeUsage && !r.usage && len(r.head) > 0 {
		n, k := len(r.prompt), len(r.ids)
		usage := `{"prompt_tokens":` + strconv.Itoa(n) + `,"total_tokens":` + strconv.Itoa(n+k) + `,"completion_tokens":` + strconv.Itoa(k) + `}`
		out = append(out, "data: "...)
		out = api.AppendEdited(out, r.head, api.Edit{Name: "choices", Value: []byte("[]")}, api.Edit{Name: "usage", Value: []byte(usage)})
		out = append(out, "\n\n"...)
	}
	_ = r.write(append(out, "data: [DONE]\n\n"...)) // an error means that the client is gone
}

func (r *recovery) write(b []byte) error {
	if _, err := r.x.w.Write(b); err != nil {
		return err
	}
	return http.NewResponseController(r.x.w).Flush()
}

// aim prepares the search for another worker after the loss of w.
func (r *recovery) aim(w *fleet.Worker) {
	r.movable.Store(false)
	r.tries++
	r.failed, r.pending, r.header = r.failed[:0], r.pending[:0], http.Header{}
	r.parsing.waiting = r.parsing.waiting[:0]
	r.again = byIDs
	p := &r.x.prepared
	q := &p.route
	q.Exclude = append(q.Exclude, w.ID)
	if len(r.x.untried(w)) == 0 { // only a connection may have been lost: an earlier worker may serve the rest
		q.Exclude = append(q.Exclude[:0], w.ID)
	}
	if len(r.ids) == 0 && len(r.text) == 0 {
		r.again = whole
		return
	}
	if !p.read.MixedScopes {
		q.Tokens = append(append(make([]block.Token, 0, len(r.prompt)+len(r.ids)), r.prompt...), r.ids...)
		q.Features, q.Text, q.Known, q.Stable = nil, nil, block.Prefix{}, block.Prefix{}
	}
	p.decisions.Recycle()
	p.decisions = r.x.g.Router.Prepare(q)
}

// prepare fills in the continuation at w. why is "" if w can continue the stream.
func (r *recovery) prepare(ctx context.Context, w *fleet.Worker) (why string) {
	a := &r.x.attempt
	if w.Facts.Engine != r.engine || w.Facts.Version != r.version {
		return "engine"
	}
	if r.again == whole {
		a.Body = api.AppendEdited(nil, a.Body, api.Edit{Name: "return_token_ids", Value: []byte("true")})
		a.Writer, r.base = r, 0
		return ""
	}
	if r.parsing.on {
		return r.prepareParsed(ctx, w)
	}
	limit := r.limit(w)
	if limit <= 0 {
		return "max_tokens"
	}
	ctx, cancel := context.WithTimeout(ctx, detokenizeTime)
	defer cancel()
	for step := range min(maxStepsBack, len(r.ends)+1) {
		n := 0
		if at := len(r.ends) - 1 - step; at >= 0 {
			n = r.ends[at]
		}
		if n >= limit {
			continue // the finish_reason is missing: the last token is computed again
		}
		text, ok := r.detokenize(ctx, w, r.ids[:n])
		if !ok {
			return "detokenize"
		}
		rest, fits := continues(r.text, text)
		if !fits {
			continue
		}
		r.skip = slices.Clone(rest)
		r.ids = r.ids[:n]
		for len(r.ends) > 0 && r.ends[len(r.ends)-1] > n {
			r.ends = r.ends[:len(r.ends)-1]
		}
		r.base = n
		a.Path, a.Dialect, a.Writer = api.OpenAICompletions.Path(), api.OpenAICompletions, r
		a.Body = r.body(limit - n)
		return ""
	}
	return "text"
}

// continues returns the rest of sent after text, if sent begins with text and text ends with a whole character. A
// tokenizer may leave out the space before the first word of ids that it decodes alone.
func continues(sent []byte, text string) (rest []byte, ok bool) {
	if strings.HasSuffix(text, "\uFFFD") {
		return nil, false
	}
	if rest, ok = bytes.CutPrefix(sent, []byte(text)); ok || text == "" {
		return rest, ok
	}
	return bytes.CutPrefix(sent, []byte(" "+text))
}

// limit returns the greatest number of tokens of the whole answer, 0 if it is not known.
func (r *recovery) limit(w *fleet.Worker) int {
	p := &r.x.prepared
	if p.read.MaxTokens > 0 {
		return p.read.MaxTokens
	}
	if !r.chat {
		return 16 // the default of the completions API
	}
	if longest := tokens.WorkerOf(w, p.model).MaxModelLen; longest > 0 {
		return longest - len(r.prompt)
	}
	return 0
}

// body returns the body of a continuation that may have limit tokens.
func (r *recovery) body(limit int) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	least := 0
	for name, value := range r.x.prepared.read.Members {
		if string(name) == "min_tokens" {
			least, _ = strconv.Atoi(string(value))
		}
		if recoverable[string(name)] || copied[string(name)] {
			b.WriteString(`"` + string(name) + `":`)
			b.Write(value)
			b.WriteByte(',')
		}
	}
	b.WriteString(`"return_token_ids":true,"max_tokens":` + strconv.Itoa(limit))
	if least > r.base {
		b.WriteString(`,"min_tokens":` + strconv.Itoa(least-r.base))
	}
	b.WriteString(`,"prompt":[`)
	for i, id := range r.prompt {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.FormatUint(uint64(id), 10))
	}
	for _, id := range r.ids {
		b.WriteString("," + strconv.FormatUint(uint64(id), 10))
	}
	b.WriteString("]}")
	return b.Bytes()
}

// detokenize asks w for the text of ids.
func (r *recovery) detokenize(ctx context.Context, w *fleet.Worker, ids []uint32) (text string, ok bool) {
	if len(ids) == 0 {
		return "", true
	}
	model, err := json.Marshal(r.x.prepared.read.Model)
	list, err2 := json.Marshal(ids)
	if err != nil || err2 != nil {
		return "", false
	}
	body := []byte(`{"tokens":` + string(list))
	if r.x.prepared.read.Model != "" {
		body = append(append(body, `,"model":`...), model...)
	}
	answer := kept{header: http.Header{}}
	result := r.x.g.Client.Forward(ctx, &proxy.Attempt{
		Worker: w.URL, Path: api.Detokenize.Path(), Header: r.x.r.Header, Body: append(body, '}'), Dialect: api.Detokenize, Whole: true,
		Writer: &answer, Set: []proxy.Field{{Name: "Accept", Value: "application/json"}, {Name: "Content-Type", Value: "application/json"}},
	})
	var said struct{ Prompt, Text *string } // of vLLM, of SGLang
	if result.Class != proxy.Success || json.Unmarshal(answer.body, &said) != nil || said.Prompt == nil && said.Text == nil {
		return "", false
	}
	return *cmp.Or(said.Prompt, said.Text), true
}

// kept is an http.ResponseWriter that keeps the answer.
type kept struct {
	header http.Header
	body   []byte
}

func (k *kept) Header() http.Header { return k.header }
func (k *kept) WriteHeader(int)     {}
func (k *kept) Write(b []byte) (int, error) {
	k.body = append(k.body, b...)
	return len(b), nil
}
