package tokens

import (
	"bytes"
	"errors"
	"strings"
	"sync"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/jsonscan"
	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// Engines turn a request to /v1/messages or /v1/responses into a chat request, and render that. The files messages*.go
// and responses.go do the same: they write the body of the chat request. Everything that finds the ids of chats then
// finds the ids of these requests, too. What an engine makes of a request may depend on facts that the router lacks.
// The router does not guess: an engine renders such a request, or the request has no ids.

// Chatting says how the engines of one kind turn a model's Anthropic requests into chats. The zero value knows nothing.
type Chatting struct {
	// Known says that the other fields are known.
	Known bool
	// Merges: messages with the role system are joined into the system prompt, because the model's template accepts only
	// one system message, at the beginning.
	Merges bool
	// Quiet is the reasoning_effort with which vLLM switches thinking off: none, or low if the template ignores none.
	Quiet string
}

// Chatter is a [Local] that knows how engines turn Anthropic requests for its models into chats.
type Chatter interface {
	Chatting(model string, kind Kind) Chatting
}

// errDepends is the error for a request that cannot be turned into a chat here. The engine's chat also depends on
// something outside the request: the model's template, flags of the engine, or earlier answers.
var errDepends = errors.New("the engine's rendering depends on more than the request")

// convertible reports whether requests of the dialect are turned into chats.
func convertible(d api.Dialect) bool {
	return d == api.AnthropicMessages || d == api.AnthropicCountTokens || d == api.OpenAIResponses
}

// madeChat is a chat request that was made from a request of another dialect.
type madeChat struct {
	body []byte
	read api.Request
}

// chats is a pool, because the body of a long conversation takes a megabyte.
var chats = sync.Pool{New: func() any { return new(madeChat) }}

// keptChat is the largest buffer that the pool keeps, in bytes.
const keptChat = 4 << 20

func (c *madeChat) release() {
	if cap(c.body) <= keptChat {
		chats.Put(c)
	}
}

// chatOf turns a request into the chat request that an engine of this kind makes of it. The caller releases the chat.
// The errors are errDepends, and errRefused for a request that the engine refuses.
func chatOf(r *api.Request, kind Kind, how Chatting) (*madeChat, error) {
	c := chats.Get().(*madeChat)
	var err error
	switch {
	case r.TooManyMembers():
		err = errDepends
	case r.Dialect == api.OpenAIResponses:
		c.body, err = appendResponsesChat(c.body[:0], r, kind)
	default:
		c.body, err = appendMessagesChat(c.body[:0], r, kind, how)
	}
	if err == nil && api.Read(api.OpenAIChat, c.body, &c.read) != nil {
		err = errDepends // for example half of a surrogate pair
	}
	if err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// AppendChat appends to dst the body of the chat request that an engine of this kind makes of r, a request to
// /v1/messages or /v1/responses. The error says why there is none.
func AppendChat(dst []byte, r *api.Request, kind Kind, how Chatting) ([]byte, error) {
	c, err := chatOf(r, kind, how)
	if err != nil {
		return dst, err
	}
	defer c.release()
	return append(dst, c.body...), nil
}

// part has the members of a message, a content block or a tool that engines read, as spelled in the body. A member that
// is absent or null is nil. If a name stands twice, the last value counts, as in Python.
type part struct {
	kind, role, content, text, source, id, toolUseID, name, input, toolName, thinking, signature, tool,
	description, schema, parameters, strict, lazy, url, data, mediaType, status, callID, arguments, output, summary,
	encrypted, namespace, annotations []byte
	others bool // the object has further members
}

// readPart reads an object. ok is false if the value is no object, or if a name is spelled with an escape: such a name
// is not compared with the known names.
func readPart(object []byte) (p part, ok bool) {
	if len(object) == 0 || object[0] != '{' {
		return p, false
	}
	for name, value := range jsonscan.Members(object) {
		if bytes.IndexByte(name, '\\') >= 0 {
			return p, false
		}
		if string(value) == "null" {
			value = nil
		}
		if to := p.member(string(name)); to != nil {
			*to = value
		} else {
			p.others = true
		}
	}
	return p, true
}

func (p *part) member(name string) *[]byte {
	switch name {
	case "type":
		return &p.kind
	case "role":
		return &p.role
	case "content":
		return &p.content
	case "text":
		return &p.text
	case "source":
		return &p.source
	case "id":
		return &p.id
	case "tool_use_id":
		return &p.toolUseID
	case "name":
		return &p.name
	case "input":
		return &p.input
	case "tool_name":
		return &p.toolName
	case "thinking":
		return &p.thinking
	case "signature":
		return &p.signature
	case "tool":
		return &p.tool
	case "description":
		return &p.description
	case "input_schema":
		return &p.schema
	}
	return p.moreMember(name)
}

func (p *part) moreMember(name string) *[]byte {
	switch name {
	case "parameters":
		return &p.parameters
	case "strict":
		return &p.strict
	case "defer_loading":
		return &p.lazy
	case "url":
		return &p.url
	case "data":
		return &p.data
	case "media_type":
		return &p.mediaType
	case "status":
		return &p.status
	case "call_id":
		return &p.callID
	case "arguments":
		return &p.arguments
	case "output":
		return &p.output
	case "summary":
		return &p.summary
	case "encrypted_content":
		return &p.encrypted
	case "namespace":
		return &p.namespace
	case "annotations":
		return &p.annotations
	}
	return nil
}

// isString reports whether a value is a string.
func isString(value []byte) bool { return len(value) >= 2 && value[0] == '"' }

// isOptional reports whether a value is absent, or begins with this byte.
func isOptional(value []byte, first byte) bool { return len(value) == 0 || value[0] == first }

// within returns a string without its quotes, as spelled. Spelled strings can be joined.
func within(value []byte) []byte { return value[1 : len(value)-1] }

// has reports whether a string is not empty.
func has(value []byte) bool { return len(value) > 2 }

// plain returns the text of a string.
func plain(value []byte) string {
	text, _ := jsonscan.Unescape(nil, within(value))
	return string(text)
}

// begins reports whether the text of a string begins with prefix.
func begins(value []byte, prefix string) bool {
	raw := within(value)
	if head := raw[:min(len(raw), len(prefix))]; bytes.IndexByte(head, '\\') < 0 {
		return string(head) == prefix
	}
	return strings.HasPrefix(plain(value), prefix)
}

// list collects the spelled items of a JSON array.
type list struct {
	out []byte
	n   int
}

func (l *list) next() []byte {
	if l.n++; l.n > 1 {
		l.out = append(l.out, ',')
	}
	return l.out
}

// appendTextPart appends a content part with the given text, a string as spelled.
func appendTextPart(dst, text []byte) []byte {
	return append(append(append(dst, `{"type":"text","text":`...), text...), '}')
}

// appendImagePart appends a content part with an image at a URL, which is spelled without its quotes.
func appendImagePart(dst, url []byte) []byte {
	return append(append(append(dst, `{"type":"image_url","image_url":{"url":"`...), url...), `"}}`...)
}

// appendDumped appends, as a JSON string, what Python's json.dumps writes for a value.
func appendDumped(dst, value []byte) ([]byte, error) {
	v, err := new(jinja.Decoder).Decode(value)
	if err != nil {
		return dst, errDepends
	}
	text, err := jinja.AppendJSON(nil, v)
	if err != nil {
		return dst, errDepends
	}
	return append(dst, jsonString(string(text))...), nil
}
