package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
	"github.com/warmpath/warmpath/internal/proxy"
)

// A parsed stream is one whose events the engine's parser of tool calls or of reasoning makes. The parser's state is
// lost with the worker. vLLM from 0.32 on (with --enable-scale-out) makes the events of a chat from ids: the request to
// /v1/chat/completions/derender has all ids so far, the chunks in which they came and the ids of the tool calls, and
// the engine feeds a new parser with them (vllm/renderers/online_derenderer.py, _derender_chat_stream_parsed). So the
// other worker generates ids as for any stream, and it makes the events of them, chunk by chunk.
type parsing struct {
	on        bool
	reasoning bool     // the events had reasoning
	calls     []string // the ids of the tool calls, as JSON
	last      []byte   // the delta of the last event with ids, in the form of appendPresent
	head      []byte   // the part of a question that all questions have in common
	noted     int      // bytes of the deltas that were looked at
	stuck     bool     // the worker gave no event for its ids
	slow      bool     // the last question took longer than slowQuestion
	waiting   []uint32 // ids that came, for which no event was asked yet
}

// slowQuestion is the time of a question from which on one question asks for the ids of several events, as many as came
// together. vLLM's server does the same with the engine's steps while it is busy, so parsers know longer chunks. With
// one question for each event an answer of 2,000 tokens would continue with some tokens a second.
const slowQuestion = 50 * time.Millisecond

// maxParsed bounds the length of a parsed stream that continues, in tokens. For each question the engine parses the
// whole answer again: 0.5 to 1 s for 4,000 tokens with vLLM's parser hermes on a busy machine of two cores.
const maxParsed = 8 << 10

const (
	renderPath   = "/v1/chat/completions/render"
	derenderPath = "/v1/chat/completions/derender"
)

// usesParser reports whether the engine's parser of tool calls makes the events of a stream.
func usesParser(p *api.Request) bool {
	none := false
	for name, value := range p.Members {
		none = none || string(name) == "tool_choice" && string(value) == `"none"`
	}
	return given(p, "tools") && !none
}

// mayParse reports whether a stream of a chat without tools can continue as a parsed stream: its events have reasoning.
func (r *recovery) mayParse() bool {
	return r.chat && !given(&r.x.prepared.read, "stop")
}

// given reports whether a request has a field with a value.
func given(p *api.Request, field string) bool {
	for name, value := range p.Members {
		if string(name) == field && !isAbsent(value) && string(value) != "[]" {
			return true
		}
	}
	return false
}

func isAbsent(value []byte) bool { return string(value) == "null" }

// silent reports whether an event exists only because ids were asked for.
func (r *recovery) silent() bool {
	c := &r.piece
	return r.chat && string(c.Delta) == "{}" && c.Finish == nil && c.Usage == nil
}

// noteParsed remembers what the delta of the event in r.piece says about the state of the parser.
func (r *recovery) noteParsed(delta []byte) {
	p := &r.parsing
	p.noted += len(delta)
	for name, value := range jsonscan.Members(delta) {
		switch string(name) {
		case "reasoning", "reasoning_content":
			p.reasoning = p.reasoning || !isAbsent(value)
		case "tool_calls":
			for _, call := range jsonscan.Items(value) {
				p.noteCall(call)
			}
		}
	}
	p.last = appendPresent(p.last[:0], delta)
}

func (p *parsing) noteCall(call []byte) {
	at, id := -1, ""
	for name, value := range jsonscan.Members(call) {
		switch string(name) {
		case "index":
			at, _ = strconv.Atoi(string(value))
		case "id":
			id = string(value)
		}
	}
	if id != "" && id != "null" && at == len(p.calls) {
		p.calls = append(p.calls, id)
	}
}

// appendPresent appends a value without members that are null or an empty list, and without spaces. So it has the form
// of a delta in a stream.
func appendPresent(dst, value []byte) []byte {
	if len(value) == 0 || value[0] != '{' && value[0] != '[' {
		return append(dst, value...)
	}
	first := true
	comma := func() {
		if !first {
			dst = append(dst, ',')
		}
		first = false
	}
	if value[0] == '[' {
		dst = append(dst, '[')
		for _, item := range jsonscan.Items(value) {
			comma()
			dst = appendPresent(dst, item)
		}
		return append(dst, ']')
	}
	dst = append(dst, '{')
	for name, member := range jsonscan.Members(value) {
		if isAbsent(member) || string(member) == "[]" {
			continue
		}
		comma()
		dst = append(append(append(dst, '"'), name...), `":`...)
		dst = appendPresent(dst, member)
	}
	return append(dst, '}')
}

// prepareParsed fills in the continuation of a parsed stream at w. limit is the greatest number of tokens of the whole
// answer. why is "" if w can continue it.
func (r *recovery) prepareParsed(ctx context.Context, w *fleet.Worker, limit int) (why string) {
	n := len(r.ids)
	switch {
	case n >= limit:
		return reasonMaxTokens
	case n > maxParsed:
		return reasonLength
	}
	ctx, cancel := context.WithTimeout(ctx, detokenizeTime)
	defer cancel()
	p := &r.parsing
	p.head = append(append(p.head[:0], `{"stream":true,"chat_request":`...), r.x.prepared.body...)
	if model := r.x.prepared.read.Model; model != "" {
		p.head = append(append(p.head, `,"model":`...), quoted(model)...)
	}
	p.head = appendIDs(append(p.head, `,"prompt_token_ids":`...), r.prompt)
	// The other worker may have no parser, or another one. So it makes the last event that came, too.
	from := 0
	if at := len(r.ends) - 2; at >= 0 {
		from = r.ends[at]
	}
	delta, ok := r.derender(ctx, w, len(r.ends)-1, r.ids[from:], nil)
	switch {
	case !ok:
		return r.parserLabel()
	case string(delta) != string(p.last):
		return reasonParser
	}
	a := &r.x.attempt
	r.base = n
	a.Path, a.Dialect, a.Writer = api.OpenAICompletions.Path(), api.OpenAICompletions, r
	a.Body = r.body(limit - n)
	r.worker = w
	return ""
}

// parserLabel is the reason if no other worker makes events of ids.
func (r *recovery) parserLabel() string {
	if usesParser(&r.x.prepared.read) {
		return reasonTools
	}
	return reasonReasoning
}

// rendering is what vLLM makes of a chat before it generates [vLLM 0.32 entrypoints/scale_out/render/serving.py].
type rendering struct {
	TokenIDs []uint32 `json:"token_ids"` // of the prompt
	Sampling struct {
		Grammar   json.RawMessage `json:"structured_outputs"`
		MaxTokens int             `json:"max_tokens"` // of the answer, with the limits of the model and of the engine's flags
	} `json:"sampling_params"`
}

// rendering asks w what it makes of the request. ok is false if w does not answer.
func (r *recovery) rendering(ctx context.Context, w *fleet.Worker) (made rendering, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, detokenizeTime)
	defer cancel()
	answer, ok := r.ask(ctx, w, renderPath, r.x.prepared.body)
	ok = ok && json.Unmarshal(answer, &made) == nil
	return made, ok
}

// differs returns why a worker with this rendering cannot continue the stream: another prompt, or a grammar, whose
// state is lost with the worker. It is "" if nothing stands against it.
func (r *recovery) differs(made *rendering) (why string) {
	switch {
	case len(made.Sampling.Grammar) > 0 && !isAbsent(made.Sampling.Grammar):
		return reasonGuided
	case !slices.Equal(made.TokenIDs, r.prompt):
		return reasonPrompt
	}
	return ""
}

// parse takes the ids of an event of a continuation.
func (r *recovery) parse() {
	c := &r.piece
	r.parsing.waiting = append(r.parsing.waiting, c.IDs...)
	if c.Finish != nil || !r.parsing.slow {
		r.parseWaiting(c.Finish, c.Stop)
	}
}

// parseWaiting turns the ids that wait into an event of the first stream. finish and stop are nil, or those of the
// answer's end.
func (r *recovery) parseWaiting(finish, stop []byte) {
	p := &r.parsing
	ids := p.waiting
	if string(finish) == `"stop"` && len(ids) > 0 {
		ids = ids[:len(ids)-1] // the id that ends the answer has no text, and so no part in it
	}
	ctx, cancel := context.WithTimeout(r.x.r.Context(), detokenizeTime)
	defer cancel()
	delta := []byte("{}")
	if len(ids) > 0 || finish != nil {
		var ok bool
		if delta, ok = r.derender(ctx, r.worker, len(r.ends), ids, finish); !ok {
			p.stuck = true
			return
		}
	}
	if len(p.waiting) > 0 {
		r.noteParsed(delta)
	}
	r.piece.IDs = append(r.piece.IDs[:0], p.waiting...)
	p.waiting = p.waiting[:0]
	r.note(nil)
	if string(finish) == `"stop"` && len(p.calls) > 0 {
		finish = []byte(`"tool_calls"`)
	}
	if string(delta) != "{}" || finish != nil {
		r.emit(r.like.AppendDelta(nil, delta, finish, stop))
	}
}

// derender asks w for the delta of a chunk of ids. before is the number of chunks before it.
func (r *recovery) derender(ctx context.Context, w *fleet.Worker, before int, ids []uint32, finish []byte) (delta []byte, ok bool) {
	p := &r.parsing
	b := append([]byte(nil), p.head...)
	b = append(b, `,"stream_state":{"role_sent":true,"tools_streamed":`...)
	b = strconv.AppendBool(b, len(p.calls) > 0)
	b = append(b, `,"last_tool_call_ids":[`...)
	for i, id := range p.calls {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, id...)
	}
	n, at := 0, 0
	if before > 0 {
		n = r.ends[before-1]
	}
	b = appendIDs(append(b, `],"output_token_ids":`...), r.ids[:n])
	b = append(b, `,"output_chunk_lens":[`...)
	for i, end := range r.ends[:before] {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(end-at), 10)
		at = end
	}
	b = appendIDs(append(b, `]},"generate_chunk":{"choices":[{"index":0,"token_ids":`...), ids)
	if finish != nil {
		b = append(append(b, `,"finish_reason":`...), finish...)
	}
	began := time.Now()
	answer, ok := r.ask(ctx, w, derenderPath, append(b, `}]}}`...))
	p.slow = time.Since(began) > slowQuestion
	var said struct {
		Chunk struct {
			Choices []struct{ Delta json.RawMessage }
		}
	}
	if !ok || json.Unmarshal(answer, &said) != nil || len(said.Chunk.Choices) != 1 {
		return nil, false
	}
	return appendPresent(nil, said.Chunk.Choices[0].Delta), true
}

// ask sends a question to w and returns the answer.
func (r *recovery) ask(ctx context.Context, w *fleet.Worker, path string, body []byte) (answer []byte, ok bool) {
	a := kept{}
	a.header = map[string][]string{}
	result := r.x.g.Client.Forward(ctx, &proxy.Attempt{
		Worker: w.URL, Path: path, Header: r.x.r.Header, Body: body, Dialect: api.OpenAIChat, Unchecked: true, Writer: &a,
		Set: []proxy.Field{{Name: "Accept", Value: "application/json"}, {Name: "Content-Type", Value: "application/json"}},
	})
	return a.body, result.Class == proxy.Success
}

func appendIDs(dst []byte, ids []uint32) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}

var errStuck = errors.New("the other worker made no event of its ids")
