package tokens

import (
	"strings"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// This file does the same as to_chat_completion_request in vLLM 0.32 (entrypoints/anthropic/serving.py) and
// _convert_to_chat_completion_request in SGLang 0.5.23 (srt/entrypoints/anthropic/serving.py).

// messagesChat writes the chat request for a request to /v1/messages.
type messagesChat struct {
	kind     Kind
	how      Chatting
	messages list
	system   list // the texts of the system prompt, as spelled, without quotes
}

// appendMessagesChat appends the chat request that an engine makes of r.
func appendMessagesChat(dst []byte, r *api.Request, kind Kind, how Chatting) ([]byte, error) {
	c := &messagesChat{kind: kind, how: how}
	c.messages.out = append(dst, `{"messages":[`...)
	if err := c.readSystem(present(r.Raw(api.FieldSystem))); err != nil {
		return dst, err
	}
	all := present(r.Raw(api.FieldMessages))
	if len(all) == 0 || all[0] != '[' {
		return dst, errRefused
	}
	if err := c.readInline(all); err != nil {
		return dst, err
	}
	if c.system.n > 0 {
		c.messages.out = append(c.messages.next(), `{"role":"system","content":"`...)
		c.messages.out = append(append(c.messages.out, c.system.out...), `"}`...)
	}
	for _, raw := range jsonscan.Items(all) {
		if err := c.message(raw); err != nil {
			return dst, err
		}
	}
	out := append(c.messages.out, ']')
	out = appendField(out, "model", present(r.Raw(api.FieldModel)))
	out, err := c.appendTools(out, r)
	if err != nil {
		return dst, err
	}
	if out, err = c.appendThinking(out, r); err != nil {
		return dst, err
	}
	if kind == VLLM { // SGLang's request has no such field
		out = appendField(out, "chat_template_kwargs", present(r.Raw(api.FieldChatTemplateKwargs)))
	}
	return append(out, '}'), nil
}

// present returns a value, or nil if it is null.
func present(value []byte) []byte {
	if string(value) == "null" {
		return nil
	}
	return value
}

// addSystem adds a text, spelled without quotes, to the system prompt.
func (c *messagesChat) addSystem(text []byte) {
	if c.system.n++; c.system.n > 1 && c.kind == SGLang {
		c.system.out = append(c.system.out, `\n`...)
	}
	c.system.out = append(c.system.out, text...)
}

// readSystem reads the field system.
func (c *messagesChat) readSystem(system []byte) error {
	switch {
	case len(system) == 0:
		return nil
	case isString(system) && (c.kind == VLLM || !blank(system)):
		if has(system) {
			c.addSystem(within(system))
		}
		return nil
	case isString(system):
		return nil
	}
	texts, err := c.texts(system)
	for _, text := range texts {
		c.addSystem(within(text))
	}
	return err
}

// blank reports whether a string has only white space.
func blank(value []byte) bool { return strings.TrimFunc(plain(value), jinja.IsSpace) == "" }

// texts returns the texts of a list of blocks that an engine takes into a system prompt. Blocks of other types are left
// out.
func (c *messagesChat) texts(blocks []byte) (texts [][]byte, err error) {
	if blocks[0] != '[' {
		return nil, errRefused
	}
	for _, raw := range jsonscan.Items(blocks) {
		p, err := c.block(raw)
		switch {
		case err != nil:
			return nil, err
		case string(p.kind) == `"tool_addition"`, string(p.kind) == `"tool_removal"`:
			return nil, errDepends // they change the list of tools
		case string(p.kind) != `"text"` || !has(p.text), c.kind == VLLM && begins(p.text, billing):
			continue
		}
		texts = append(texts, p.text)
	}
	return texts, nil
}

// readInline reads the messages with the role system, if the engine joins them into the system prompt.
func (c *messagesChat) readInline(all []byte) error {
	for _, raw := range jsonscan.Items(all) {
		m, ok := readPart(raw)
		if !ok {
			return errDepends
		}
		if string(m.role) != `"system"` {
			continue
		}
		if !c.how.Known || c.kind == SGLang { // SGLang trims such texts, and may be started with another template
			return errDepends
		}
		if !c.how.Merges {
			return nil
		}
		if err := c.inline(m.content, func(text []byte) { c.addSystem(text) }); err != nil {
			return err
		}
	}
	return nil
}

// inline calls add with the texts of a message with the role system.
func (c *messagesChat) inline(content []byte, add func(text []byte)) error {
	if isString(content) {
		if has(content) && !begins(content, billing) {
			add(within(content))
		}
		return nil
	}
	if len(content) == 0 {
		return errRefused
	}
	texts, err := c.texts(content)
	for _, text := range texts {
		add(within(text))
	}
	return err
}

// draft is a message that is being written.
type draft struct {
	user                    bool
	parts, calls, reasoning list
	only                    []byte // the text of the first part, nil if it is no text
}

func (t *draft) addText(text []byte) {
	if t.parts.out = t.parts.next(); t.parts.n == 1 {
		t.only = text
	}
	t.parts.out = appendTextPart(t.parts.out, text)
}

func (t *draft) addImage(url []byte) { t.parts.out = appendImagePart(t.parts.next(), url) }

// appendContent appends the content of the message: one text, or a list of parts.
func (t *draft) appendContent(out []byte) []byte {
	if t.parts.n == 1 && t.only != nil {
		return append(out, t.only...)
	}
	return append(append(append(out, '['), t.parts.out...), ']')
}

// message writes the messages that an engine makes of one message.
func (c *messagesChat) message(raw []byte) error {
	m, ok := readPart(raw)
	if !ok {
		return errDepends
	}
	switch string(m.role) {
	case `"user"`, `"assistant"`:
	case `"system"`:
		if c.how.Merges {
			return nil
		}
		var s list
		if err := c.inline(m.content, func(text []byte) { s.out, s.n = append(s.out, text...), s.n+1 }); err != nil || s.n == 0 {
			return err
		}
		c.messages.out = append(append(append(c.messages.next(), `{"role":"system","content":"`...), s.out...), `"}`...)
		return nil
	default:
		return errRefused
	}
	if isString(m.content) {
		c.messages.out = append(append(c.messages.next(), `{"role":`...), m.role...)
		c.messages.out = append(append(append(c.messages.out, `,"content":`...), m.content...), '}')
		return nil
	}
	if len(m.content) == 0 || m.content[0] != '[' {
		return errRefused
	}
	t := &draft{user: string(m.role) == `"user"`}
	for _, raw := range jsonscan.Items(m.content) {
		p, err := c.block(raw)
		if err == nil {
			err = c.add(t, &p)
		}
		if err != nil {
			return err
		}
	}
	c.finish(t)
	return nil
}

// finish writes the message itself, after the results of tools.
func (c *messagesChat) finish(t *draft) {
	sglang := c.kind == SGLang
	if t.user && t.parts.n == 0 && (!sglang || t.calls.n == 0) {
		return
	}
	role := "assistant"
	if t.user {
		role = "user"
	}
	out := append(append(append(c.messages.next(), `{"role":"`...), role...), '"')
	if t.reasoning.n > 0 {
		out = append(append(append(out, `,"reasoning":"`...), t.reasoning.out...), '"')
	}
	if t.calls.n > 0 {
		out = append(append(append(out, `,"tool_calls":[`...), t.calls.out...), ']')
	}
	switch {
	case t.parts.n > 0:
		out = t.appendContent(append(out, `,"content":`...))
	case sglang && t.calls.n == 0:
		out = append(out, `,"content":""`...)
	}
	c.messages.out = append(out, '}')
}

// block reads a content block and checks its type.
func (c *messagesChat) block(raw []byte) (p part, err error) {
	p, ok := readPart(raw)
	if !ok {
		return p, errDepends
	}
	switch string(p.kind) {
	case `"text"`, `"thinking"`:
		if !isOptional(p.text, '"') || !isOptional(p.thinking, '"') {
			return p, errRefused
		}
	case `"image"`, `"tool_use"`, `"tool_result"`, `"tool_reference"`, `"redacted_thinking"`:
	case `"tool_addition"`, `"tool_removal"`, `"search_result"`:
		return p, errDepends // only one of the engines knows it
	default:
		return p, errRefused
	}
	return p, nil
}

// add adds a content block to the message.
func (c *messagesChat) add(t *draft, p *part) error {
	switch string(p.kind) {
	case `"text"`:
		switch {
		case has(p.text):
			t.addText(p.text)
		case c.kind == SGLang && p.text == nil:
			return errRefused
		case c.kind == SGLang:
			t.addText(p.text)
		}
	case `"image"`:
		url, ok := imageURL(p.source)
		if !ok {
			return errDepends
		}
		t.addImage(url)
	case `"thinking"`:
		if c.kind == SGLang { // the flag --reasoning-parser decides how earlier thoughts are written
			if t.user || p.thinking != nil && !has(p.thinking) {
				return nil
			}
			return errDepends
		}
		if p.thinking != nil {
			t.reasoning.n++
			t.reasoning.out = append(t.reasoning.out, within(p.thinking)...)
		}
	case `"redacted_thinking"`:
		if c.kind == SGLang && !t.user {
			return errRefused
		}
	case `"tool_use"`:
		return c.addCall(t, p)
	case `"tool_result"`:
		return c.addResult(t, p)
	}
	return nil
}

// addCall adds a tool call. vLLM names a call without an id by the time.
func (c *messagesChat) addCall(t *draft, p *part) error {
	if !isString(p.id) || !has(p.id) || !isString(p.name) || !isOptional(p.input, '{') {
		return errDepends
	}
	input := p.input
	if len(input) == 0 {
		input = []byte(`{}`)
	}
	out := append(append(t.calls.next(), `{"id":`...), p.id...)
	out = append(append(out, `,"type":"function","function":{"name":`...), p.name...)
	out, err := appendDumped(append(out, `,"arguments":`...), input)
	t.calls.out = append(out, `}}`...)
	return err
}

// imageURL returns the URL of an image, spelled without its quotes.
func imageURL(source []byte) (url []byte, ok bool) {
	p, ok := readPart(source)
	if !ok {
		return nil, false
	}
	switch string(p.kind) {
	case `"url"`:
		if !isString(p.url) {
			return nil, false
		}
		return within(p.url), true
	case `"base64"`:
		if !isString(p.mediaType) || !isString(p.data) {
			return nil, false
		}
		url = append(append(url, "data:"...), within(p.mediaType)...)
		return append(append(url, ";base64,"...), within(p.data)...), true
	}
	return nil, false
}

// addResult adds the result of a tool. If the message is the user's, the result becomes messages of its own.
func (c *messagesChat) addResult(t *draft, p *part) error {
	id := p.toolUseID
	if len(id) == 0 {
		if id = []byte(`""`); c.kind == SGLang && len(p.id) > 0 {
			id = p.id
		}
	}
	if !isString(id) {
		return errRefused
	}
	if !t.user { // no client sends this, and Python's spelling of a list would be needed
		return errDepends
	}
	if c.kind == SGLang && t.parts.n > 0 { // what comes before the result stays before it
		before := *t
		before.calls = list{}
		c.finish(&before)
		t.parts, t.only = list{}, nil
	}
	switch {
	case len(p.content) == 0:
		c.addToolMessage(id, []byte(`""`))
		return nil
	case isString(p.content):
		c.addToolMessage(id, p.content)
		return nil
	case p.content[0] != '[':
		return errRefused
	}
	if c.kind == SGLang {
		return c.addSGLangResult(id, p.content)
	}
	return c.addVLLMResult(id, p.content)
}

func (c *messagesChat) addToolMessage(id, content []byte) {
	out := append(append(c.messages.next(), `{"role":"tool","tool_call_id":`...), id...)
	c.messages.out = append(append(append(out, `,"content":`...), content...), '}')
}

// addVLLMResult adds a result that is a list: its texts as one message, then its images as a message of the user, and
// then the tools that it names.
func (c *messagesChat) addVLLMResult(id, content []byte) error {
	var images, names list
	texts := list{out: []byte{'"'}}
	for _, raw := range jsonscan.Items(content) {
		p, ok := readPart(raw)
		if !ok {
			return errDepends
		}
		switch string(p.kind) {
		case `"text"`:
			if !isOptional(p.text, '"') {
				return errDepends
			}
			if texts.n++; texts.n > 1 {
				texts.out = append(texts.out, `\n`...)
			}
			if len(p.text) > 0 {
				texts.out = append(texts.out, within(p.text)...)
			}
		case `"image"`:
			url, ok := imageURL(p.source)
			if !ok {
				return errDepends
			}
			images.out = appendImagePart(images.next(), url)
		case `"tool_reference"`:
			if name := referenced(&p); name != nil {
				names.out = append(append(append(names.next(), `{"type":"tool_reference","name":`...), name...), '}')
			}
		}
	}
	c.addToolMessage(id, append(texts.out, '"'))
	if images.n > 0 {
		c.messages.out = append(c.messages.next(), `{"role":"user","content":[`...)
		c.messages.out = append(append(c.messages.out, images.out...), `]}`...)
	}
	if names.n > 0 {
		c.addToolMessage(id, append(append([]byte{'['}, names.out...), ']'))
	}
	return nil
}

// referenced returns the name in a block tool_reference, nil if there is none.
func referenced(p *part) []byte {
	for _, name := range [...][]byte{p.toolName, p.name} {
		if isString(name) && has(name) {
			return name
		}
	}
	return nil
}

// addSGLangResult adds a result that is a list. Each run of named tools, and each run of other parts, is a message.
func (c *messagesChat) addSGLangResult(id, content []byte) error {
	var run draft
	names, messages := false, 0
	flush := func() {
		if run.parts.n > 0 {
			c.addToolMessage(id, run.appendContent(nil))
			messages++
		}
		run = draft{}
	}
	for _, raw := range jsonscan.Items(content) {
		p, err := c.block(raw)
		if err != nil {
			return err
		}
		var name []byte
		switch string(p.kind) {
		case `"text"`:
			if !has(p.text) {
				continue
			}
		case `"image"`:
		case `"tool_reference"`:
			if name = referenced(&p); name == nil {
				continue
			}
		default:
			continue
		}
		if named := name != nil; named != names {
			flush()
			names = named
		}
		switch {
		case name != nil:
			run.parts.out = append(append(run.parts.next(), `{"type":"tool_reference","name":`...), name...)
			run.parts.out = append(run.parts.out, '}')
		case p.text != nil:
			run.addText(p.text)
		default:
			url, ok := imageURL(p.source)
			if !ok {
				return errDepends
			}
			run.addImage(url)
		}
	}
	flush()
	if messages == 0 {
		c.addToolMessage(id, []byte(`""`))
	}
	return nil
}
