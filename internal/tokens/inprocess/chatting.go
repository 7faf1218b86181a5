package inprocess

import (
	"bytes"
	"regexp"
	"strings"

	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// Chatting implements tokens.Chatter.
func (f *Finder) Chatting(model string, kind tokens.Kind) tokens.Chatting {
	if kind != tokens.VLLM { // SGLang may be started with other templates, and its flags decide the rest
		return tokens.Chatting{}
	}
	if m := f.given(model); m != nil {
		return m.chatting
	}
	if u := f.use(model, kind); u != nil {
		return u.model.chatting
	}
	return tokens.Chatting{}
}

// chattingOf finds out how vLLM turns Anthropic requests for a model into chats. vLLM renders test chats with the
// model's templates, too (entrypoints/anthropic/serving.py, _should_merge_inline_system and
// _probe_disabled_thinking_effort).
func (m *Model) chattingOf() tokens.Chatting {
	plain := m.template(false)
	if plain == nil {
		return tokens.Chatting{}
	}
	out := tokens.Chatting{Known: true, Quiet: "low"}
	for _, tools := range [...]bool{false, true} {
		merges, known := m.template(tools).merges()
		out.Merges, out.Known = out.Merges || merges, out.Known && known
	}
	if m.harmony == nil && m.hearsNone() {
		out.Quiet = "none"
	}
	return out
}

// generationTag is a tag that Transformers adds to Jinja. vLLM's test render does not know it.
var generationTag = regexp.MustCompile(`\{%[-+]?\s*generation\b`)

// merges reports whether vLLM joins all system messages for this template, because a chat with a second system message
// cannot be rendered. vLLM's test render has none of Transformers' functions. known is false if that may make a
// difference.
func (t *chatTemplate) merges() (merges, known bool) {
	if generationTag.MatchString(t.source) {
		return true, true
	}
	if strings.Contains(t.source, "strftime_now(") && !strings.Contains(t.source, "strftime_now is defined") {
		return false, false
	}
	var messages []jinja.Value
	for _, role := range [...]string{"system", "user", "system", "user"} {
		message := &jinja.Dict{}
		message.Set("role", jinja.Text(role))
		message.Set("content", jinja.Text("t"))
		messages = append(messages, jinja.FromDict(message))
	}
	vars := &jinja.Dict{}
	vars.Set("messages", jinja.List(messages))
	vars.Set("add_generation_prompt", jinja.Bool(false))
	_, err := t.compiled.Render(nil, jinja.Options{}, vars)
	return err != nil, true
}

// hearsNone reports whether the reasoning_effort none gives another prompt than all other efforts.
func (m *Model) hearsNone() bool {
	none, ok := m.probeEffort("none")
	if !ok {
		return false
	}
	for _, effort := range [...]string{"low", "medium", "high", "xhigh", "max"} {
		if other, ok := m.probeEffort(effort); ok && bytes.Equal(none, other) {
			return false
		}
	}
	return true
}

func (m *Model) probeEffort(effort string) (text []byte, ok bool) {
	body := `{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":"` + effort + `"}`
	q, err := m.request([]byte(body), false, Origin{Kind: tokens.VLLM})
	if err != nil {
		return nil, false
	}
	text, err = m.render(nil, q)
	return text, err == nil
}
