package gateway

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

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
	rest, seen := b, 0 // rest[:seen] has no end of an event: each byte is searched once, however small the pieces are
	if n := len(r.pending); n > 0 {
		r.pending = append(r.pending, b...)
		rest, seen = r.pending, n-1
	}
	for {
		end := bytes.Index(rest[seen:], []byte("\n\n"))
		if end < 0 {
			break
		}
		end += seen + len("\n\n")
		r.event(rest[:end])
		rest, seen = rest[end:], 0
	}
	if len(r.parsing.waiting) > 0 && !r.parsing.stuck {
		r.parseWaiting(nil, nil)
	}
	if len(rest) != len(r.pending) { // otherwise rest is r.pending
		r.pending = append(r.pending[:0], rest...)
	}
	if fresh := rest[max(len(rest)-len(b), 0):]; len(r.pending) > maxEvent || bytes.IndexByte(fresh, '\r') >= 0 {
		r.giveUp(reasonFormat)
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
	case r.fatal != nil:
		return 0, r.fatal
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
		r.giveUp(reasonFormat)
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
		r.giveUp(reasonReasoning)
	case len(text) > 0 && len(c.IDs) == 0 && len(r.ids) == 0,
		r.parsing.on && len(c.IDs) == 0 && !c.Role && c.Finish == nil && c.Usage == nil:
		r.giveUp(reasonIDs)
	case len(r.ids)+len(c.IDs) > maxRecovered, len(r.text)+len(text) > maxText, r.parsing.on && r.parsing.noted+len(c.Delta) > maxText:
		r.giveUp(reasonLength)
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
		r.fail(reasonDiverged, errDiverged)
		return
	}
	r.skip, text = r.skip[n:], text[n:]
	switch {
	case len(r.skip) == 0:
		r.until = time.Time{}
	case !r.until.IsZero() && time.Now().After(r.until):
		r.fail(reasonDetokenize, errRepeats)
		return
	}
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

// fail ends the stream with an error event, although the worker could go on.
func (r *recovery) fail(why string, err error) {
	r.broken, r.fatal = why, err
	if len(r.failed) == 0 {
		r.failed = r.x.dialect.AppendErrorEvent(nil, api.WorkerBroke(err))
	}
}

var (
	errDiverged = errors.New("the other worker continued with another text")
	errRepeats  = errors.New("the other worker needed too long to repeat the text")
)

func (r *recovery) emit(event []byte) {
	if len(r.failed) == 0 {
		r.out = append(append(append(r.out, "data: "...), event...), "\n\n"...)
	}
}

// rebased returns the usage of a continuation as the usage of the whole answer: the ids that were given to the other
// worker as a part of its prompt are a part of the answer. If the worker had some of these cached, too, the whole
// prompt was cached.
func (r *recovery) rebased(usage []byte) []byte {
	m := members(usage)
	count := func(key string, change int) (n int, edit api.Edit) {
		n, _ = strconv.Atoi(string(m[key]))
		n += change
		return n, api.Edit{Name: key, Value: strconv.AppendInt(nil, int64(n), 10)}
	}
	prompt, edit := count("prompt_tokens", -r.base)
	_, answer := count("completion_tokens", r.base)
	edits := []api.Edit{edit, answer}
	const details, cached = "prompt_tokens_details", "cached_tokens"
	if n, err := strconv.Atoi(string(members(m[details])[cached])); err == nil && n > prompt {
		edits = append(edits, api.Edit{Name: details, Value: api.AppendEdited(nil, m[details], api.Edit{Name: cached, Value: strconv.AppendInt(nil, int64(prompt), 10)})})
	}
	return api.AppendEdited(nil, usage, edits...)
}
