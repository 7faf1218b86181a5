package jinja

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Harmony is what gpt-oss models are asked in. vLLM renders it with openai-harmony in place of the model's template
// (entrypoints/openai/parser/harmony_utils.py, renderers/online_renderer.py of vLLM 0.32): turns are encoded piece by piece,
// and a special token that a client spells in a text stays text.

// Piece is a part of a prompt that is encoded on its own: a special token, or a text in which none is recognised.
type Piece struct {
	Special string // the token's spelling; "" for a text
	Text    string
}

// ReadHarmony reads the body of a chat completion request as vLLM does for gpt-oss, at the time now, whose date is in the
// prompt. The body must not change while the pieces are in use. Errors are as ReadRequest's.
func ReadHarmony(body []byte, now time.Time) ([]Piece, error) {
	b := &bodyReader{config: &RequestConfig{}, defaults: &dict{}}
	if err := b.open(body); err != nil {
		return nil, err
	}
	if _, err := b.vllmKwargs(); err != nil { // what vLLM refuses before it renders
		return nil, err
	}
	effort := b.field("reasoning_effort").str
	switch effort {
	case "":
		effort = "medium"
	case "low", "medium", "high":
	default:
		return nil, refuse("reasoning_effort %q is not supported by Harmony", effort)
	}
	tools, err := b.vllmTools()
	if err != nil {
		return nil, err
	}
	messages, _, err := b.objects("messages")
	if err != nil {
		return nil, err
	}
	if len(messages) == 0 {
		return nil, refuse("no messages")
	}
	h := &harmony{}
	if err := h.preamble(&messages, tools, effort, now); err != nil {
		return nil, err
	}
	if err := h.turns(messages); err != nil {
		return nil, err
	}
	return h.finish(), nil
}

// harmony collects a conversation.
type harmony struct {
	turnsSoFar []harmonyTurn
	names      map[string]string // of tools, by the id of their calls
}

// harmonyTurn is one message. Its texts are encoded one by one.
type harmonyTurn struct {
	author    string // and recipient
	channel   string // "" is none; with the content type
	texts     []string
	call      bool // it ends as a call of a tool
	assistant bool
}

// preamble adds the system turn and the developer's, which takes the first message when that is an instruction.
func (h *harmony) preamble(messages *[]*dict, tools value, effort string, now time.Time) error {
	var instructions string
	if first := (*messages)[0]; roleIs(first, "system") || roleIs(first, "developer") {
		content, _ := first.get("content")
		instructions, _ = flatText(content)
		*messages = (*messages)[1:]
	}
	system := "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: " + now.Format("2006-01-02") +
		"\n\nReasoning: " + effort + "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message."
	offers := tools.kind == kindList && len(tools.items()) > 0
	if offers {
		system += "\nCalls to these tools must go to the commentary channel: 'functions'."
	}
	h.add(harmonyTurn{author: "system", texts: []string{system}})
	if instructions == "" && !offers {
		return nil
	}
	var sections []string
	if (*messages) != nil && instructions != "" {
		sections = append(sections, "# Instructions", instructions)
	}
	if offers {
		text, err := harmonyTools(tools.items())
		if err != nil {
			return err
		}
		sections = append(sections, text)
	}
	h.add(harmonyTurn{author: "developer", texts: []string{strings.Join(sections, "\n\n")}})
	return nil
}

func (h *harmony) add(t harmonyTurn) { h.turnsSoFar = append(h.turnsSoFar, t) }

// flatText is the text of a content, its parts joined; ok is false when there is none.
func flatText(content value) (string, bool) {
	switch content.kind {
	case kindString:
		return content.str, true
	case kindList:
		var b strings.Builder
		any := false
		for _, part := range content.items() {
			s, ok := part.str, part.kind == kindString
			if part.kind == kindDict {
				s, ok = textOf(part.dict(), "text")
			}
			any = any || ok
			b.WriteString(s)
		}
		return b.String(), any
	}
	return "", false
}

// turns adds the conversation.
func (h *harmony) turns(messages []*dict) error {
	h.names = map[string]string{}
	for _, m := range messages {
		calls, given := m.get("tool_calls")
		if !given {
			continue
		}
		if calls.kind != kindList {
			return refuse("tool_calls is not an array")
		}
		for _, call := range calls.items() {
			if call.kind != kindDict {
				return refuse("a tool call is not an object")
			}
			id, _ := textOf(call.dict(), "id")
			fn, _ := call.dict().get("function")
			if fn.kind != kindDict {
				return refuse("a tool call has no function")
			}
			h.names[id], _ = textOf(fn.dict(), "name")
		}
	}
	for _, m := range messages {
		role, ok := textOf(m, "role")
		if !ok {
			return refuse("a message has no role")
		}
		switch role {
		case "assistant":
			h.assistant(m)
		case "tool":
			id, _ := textOf(m, "tool_call_id")
			content, _ := m.get("content")
			text, _ := flatText(content)
			h.add(harmonyTurn{author: "functions." + h.names[id], channel: "commentary to=assistant", texts: []string{text}})
		case "system", "developer":
			content, _ := m.get("content")
			if text, ok := flatText(content); ok {
				h.add(harmonyTurn{author: "developer", texts: []string{"# Instructions\n\n" + text}})
			}
		case "user":
			h.add(harmonyTurn{author: "user", texts: partTexts(m)})
		default:
			return refuse("unknown role %q", role)
		}
	}
	return nil
}

// partTexts are the texts of a content's parts, which stay apart.
func partTexts(m *dict) []string {
	content, _ := m.get("content")
	if content.kind != kindList {
		return []string{content.str}
	}
	var texts []string
	for _, part := range content.items() {
		s := ""
		if part.kind == kindDict {
			s, _ = textOf(part.dict(), "text")
		}
		texts = append(texts, s)
	}
	return texts
}

// assistant adds what an assistant's message stands for: reasoning, calls, an answer.
func (h *harmony) assistant(m *dict) {
	reasoning, _ := textOf(m, "reasoning")
	analysis := harmonyTurn{author: "assistant", channel: "analysis", texts: []string{reasoning}, assistant: true}
	calls, _ := m.get("tool_calls")
	if calls.kind == kindList && len(calls.items()) > 0 {
		content, _ := m.get("content")
		if text, _ := flatText(content); text != "" {
			h.add(harmonyTurn{author: "assistant", channel: "commentary", texts: []string{text}, assistant: true})
		}
		if reasoning != "" {
			h.add(analysis)
		}
		for _, call := range calls.items() {
			fn, _ := call.dict().get("function")
			name, _ := textOf(fn.dict(), "name")
			arguments, _ := textOf(fn.dict(), "arguments")
			h.add(harmonyTurn{author: "assistant to=functions." + name, channel: "commentary json", texts: []string{arguments}, call: true, assistant: true})
		}
		return
	}
	if reasoning != "" {
		h.add(analysis)
	}
	if texts := partTexts(m); len(texts) > 0 && texts[0] != "" {
		h.add(harmonyTurn{author: "assistant", channel: "final", texts: texts, assistant: true})
	}
}

// finish drops the reasoning before the last answer and puts the turns into pieces.
func (h *harmony) finish() []Piece {
	answered := -1
	for i := range h.turnsSoFar {
		if t := &h.turnsSoFar[i]; t.assistant && t.channel == "final" {
			answered = i
		}
	}
	var out []Piece
	special := func(token string) { out = append(out, Piece{Special: token}) }
	for i := range h.turnsSoFar {
		t := &h.turnsSoFar[i]
		if i < answered && t.channel == "analysis" {
			continue
		}
		special("<|start|>")
		out = append(out, Piece{Text: t.author})
		if t.channel != "" {
			special("<|channel|>")
			out = append(out, Piece{Text: t.channel})
		}
		special("<|message|>")
		for _, s := range t.texts {
			if s != "" {
				out = append(out, Piece{Text: s})
			}
		}
		if t.call {
			special("<|call|>")
		} else {
			special("<|end|>")
		}
	}
	special("<|start|>")
	return append(out, Piece{Text: "assistant"})
}

// harmonyNumber spells a number as serde_json does; ok is false beyond what both spell alike.
func harmonyNumber(v *value) (string, bool) {
	if v.isInteger() {
		return strconv.FormatInt(v.num, 10), v.kind == kindInt
	}
	f := math.Float64frombits(uint64(v.num))
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e15) {
		return "", false
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s, true
}
