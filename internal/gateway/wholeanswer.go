package gateway

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
	"github.com/warmpath/warmpath/internal/proxy"
)

// maxWholeAnswer bounds the memory for an answer in one piece that is edited, in bytes. A longer answer is passed on as
// it comes, with the parameters of the transfer. They name blocks of the engine's cache that soon have other content.
const maxWholeAnswer = 32 << 20

// wholeAnswer is the writer of a decode leg with an answer in one piece. It keeps the answer until both legs have
// ended, so that the answer can be edited, and so that the request can go to another worker if a leg fails late.
type wholeAnswer struct {
	w      http.ResponseWriter
	header http.Header
	status int
	body   []byte
	passed bool // the answer is too long: it goes to the client as it comes
}

// Header is part of http.ResponseWriter.
func (a *wholeAnswer) Header() http.Header {
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

// WriteHeader is part of http.ResponseWriter.
func (a *wholeAnswer) WriteHeader(status int) { a.status = status }

// Write is part of http.ResponseWriter.
func (a *wholeAnswer) Write(b []byte) (int, error) {
	if !a.passed && len(a.body)+len(b) <= maxWholeAnswer {
		a.body = append(a.body, b...)
		return len(b), nil
	}
	if !a.passed {
		a.passed = true
		if err := a.send(a.body); err != nil {
			return 0, err
		}
		a.body = nil
	}
	return a.w.Write(b)
}

// Flush is part of http.Flusher. An answer that is kept cannot be flushed.
func (a *wholeAnswer) Flush() {}

// Unwrap lets http.ResponseController find the client's writer.
func (a *wholeAnswer) Unwrap() http.ResponseWriter { return a.w }

// send gives the client the header and a body. Fields that the client's header already has are kept.
func (a *wholeAnswer) send(body []byte) error {
	h := a.w.Header()
	for name, values := range a.Header() {
		if _, has := h[name]; !has {
			h[name] = values
		}
	}
	a.w.WriteHeader(a.status)
	_, err := a.w.Write(body)
	return err
}

// end gives the client the answer as edit returns it. If the attempt failed, the client gets nothing of it.
func (a *wholeAnswer) end(result *proxy.Result, edit func([]byte) []byte) {
	switch {
	case a.passed || !result.FirstByte:
		return
	case result.Class != proxy.Success:
		result.FirstByte, result.Abort, result.Retryable = false, false, result.Class != proxy.ClientGone
		return
	}
	body := edit(a.body)
	if a.Header().Get("Content-Length") != "" {
		a.header.Set("Content-Length", strconv.Itoa(len(body)))
	}
	if err := a.send(body); err != nil {
		result.Class, result.Err, result.Abort = proxy.ClientGone, fmt.Errorf("write to the client: %w", err), true
	}
}

// trimmed returns a whole answer of a decode leg as the client gets it: without the parameters of the transfer, and
// with what only the prefill leg knows.
func (l *legs) trimmed(answer []byte) []byte {
	if l.connector.Keeps() {
		answer = l.withoutIDs(answer)
	}
	m := members(answer)
	var edits []api.Edit
	if present(m["kv_transfer_params"]) {
		edits = append(edits, api.Edit{Name: "kv_transfer_params", Value: []byte("null")})
	}
	first := members(l.answer.body)
	if present(m["usage"]) { // for a decode worker all tokens are cached that came with the blocks; some connectors carry the number over
		const details = "prompt_tokens_details" // has cached_tokens
		if v := members(first["usage"])[details]; present(v) {
			edits = append(edits, api.Edit{Name: "usage", Value: api.AppendEdited(nil, m["usage"], api.Edit{Name: details, Value: v})})
		}
	}
	switch l.x.dialect {
	case api.OpenAIChat: // vLLM: chat_completion/protocol.py
		if v := first["prompt_logprobs"]; present(v) {
			edits = append(edits, api.Edit{Name: "prompt_logprobs", Value: v})
		}
	case api.OpenAICompletions: // vLLM: completion/protocol.py
		if v := members(firstOf(first["choices"]))["prompt_logprobs"]; present(v) {
			edits = append(edits, api.Edit{Name: "choices", Value: withFirst(m["choices"], api.Edit{Name: "prompt_logprobs", Value: v})})
		}
	case api.SGLangGenerate: // srt/managers/tokenizer_manager.py: the prefill engine computes them
		const about, logprobs = "meta_info", "input_token_logprobs"
		if v := members(first[about])[logprobs]; present(v) && len(m[about]) > 0 {
			edits = append(edits, api.Edit{Name: about, Value: api.AppendEdited(nil, m[about], api.Edit{Name: logprobs, Value: v})})
		}
	}
	if len(edits) == 0 {
		return answer
	}
	return api.AppendEdited(nil, answer, edits...)
}

// withoutTransfer returns events of a decode leg without the parameters of the transfer. vLLM 0.32.0 sends none in
// streams; other engines and versions may.
func withoutTransfer(events []byte) []byte {
	const name = "kv_transfer_params"
	if !bytes.Contains(events, []byte(name)) {
		return events
	}
	var out []byte
	for line := range bytes.Lines(events) {
		payload, _ := bytes.CutPrefix(line, []byte("data:"))
		if payload = bytes.TrimSpace(payload); !present(members(payload)[name]) {
			out = append(out, line...)
			continue
		}
		out = append(api.AppendEdited(append(out, "data: "...), payload, api.Edit{Name: name, Value: []byte("null")}), '\n')
	}
	return out
}

// present reports whether an object has a member, and the member is not null.
func present(value []byte) bool { return len(value) > 0 && string(value) != "null" }

// firstOf returns the first item of a JSON array, nil if there is none.
func firstOf(array []byte) []byte {
	for _, item := range jsonscan.Items(array) {
		return item
	}
	return nil
}

// withFirst returns a JSON array of objects with edits in its first item.
func withFirst(array []byte, edits ...api.Edit) []byte {
	var out bytes.Buffer
	for _, item := range jsonscan.Items(array) {
		if out.Len() == 0 {
			item = api.AppendEdited(nil, item, edits...)
		} else {
			out.WriteByte(',')
		}
		out.Write(item)
	}
	return append(append([]byte("["), out.Bytes()...), ']')
}
