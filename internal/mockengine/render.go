package mockengine

import (
	"errors"
	"fmt"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/block"
)

// imageTokens is the length of an image's placeholder. Real models use hundreds of tokens. Here the length only has to
// be more than a block of 16 tokens.
const imageTokens = 24

// rendering turns chat requests into tokens:
//
//	<|begin|> [<|options|> name JSON <|end|>]… [<|tools|> JSON <|end|>]
//
// then for each message
//
//	<|role|> content [<|call|> name arguments]… <|end|>
//
// and <|assistant|> before the answer. If a client sends an answer back in its next request, the answer is rendered to
// exactly the generated tokens. So the next request of a conversation finds the blocks of the last request and its
// answer.
type rendering struct {
	tokens   []block.Token
	features []block.Feature
}

// renderOptions has the options of rendering a chat request.
type renderOptions struct {
	generationPrompt bool // end the prompt with the token that begins the assistant's turn
	continueFinal    bool // leave out the end token of the last message, so that the answer continues this message
	forTokenize      bool // ignore documents and reasoning_effort, which /tokenize does not know
}

// renderChat renders the chat request in body.
func renderChat(body *fastjson.Value, o renderOptions) (*rendering, error) {
	messages := body.GetArray("messages")
	if messages == nil {
		return nil, errors.New("messages: field required, a list of messages")
	}
	if len(messages) == 0 {
		return nil, errors.New("messages: list is empty")
	}
	r := &rendering{tokens: make([]block.Token, 0, 512)}
	r.tokens = append(r.tokens, tokenBegin)
	options := []string{"chat_template_kwargs"}
	if !o.forTokenize {
		options = append(options, "documents", "reasoning_effort")
	}
	for _, name := range options {
		if v := body.Get(name); v != nil && v.Type() != fastjson.TypeNull {
			r.section(tokenOptions, name, v)
		}
	}
	if tools := body.Get("tools"); tools != nil && len(tools.GetArray()) > 0 {
		r.section(tokenTools, "", tools)
	}
	for i, m := range messages {
		if err := r.message(m); err != nil {
			return nil, fmt.Errorf("messages[%d].%w", i, err)
		}
		if i < len(messages)-1 || !o.continueFinal {
			r.tokens = append(r.tokens, tokenEnd)
		}
	}
	if o.generationPrompt && !o.continueFinal {
		r.tokens = append(r.tokens, tokenAssistant)
	}
	return r, nil
}

// section writes a special token, then name, then v as compact JSON, then the end token.
func (r *rendering) section(special block.Token, name string, v *fastjson.Value) {
	r.tokens = append(r.tokens, special)
	r.tokens = appendTokens(r.tokens, name)
	r.tokens = appendTokens(r.tokens, v.MarshalTo(nil))
	r.tokens = append(r.tokens, tokenEnd)
}

var roles = map[string]block.Token{
	"system": tokenSystem, "developer": tokenSystem, "user": tokenUser, "assistant": tokenAssistant, "tool": tokenTool,
	"function": tokenTool,
}

func (r *rendering) message(m *fastjson.Value) error {
	if m.Type() != fastjson.TypeObject {
		return errors.New("message: is not an object")
	}
	role, known := roles[string(m.GetStringBytes("role"))]
	if !known {
		return fmt.Errorf("role: %q is unknown", m.GetStringBytes("role"))
	}
	r.tokens = append(r.tokens, role)
	if err := r.content(m.Get("content")); err != nil {
		return err
	}
	for _, call := range m.GetArray("tool_calls") {
		f := call.Get("function")
		r.tokens = appendCall(r.tokens, string(f.GetStringBytes("name")), string(f.GetStringBytes("arguments")))
	}
	return nil
}

// appendCall renders one tool call. It leaves out the call's id, because a model does not generate this id.
func appendCall(dst []block.Token, name, arguments string) []block.Token {
	dst = append(dst, tokenCall)
	dst = appendTokens(dst, name)
	return appendTokens(dst, arguments)
}

func (r *rendering) content(v *fastjson.Value) error {
	if v == nil || v.Type() == fastjson.TypeNull {
		return nil
	}
	switch v.Type() {
	case fastjson.TypeString:
		r.tokens = appendTokens(r.tokens, v.GetStringBytes())
		return nil
	case fastjson.TypeArray:
		for i, part := range v.GetArray() {
			if err := r.part(part); err != nil {
				return fmt.Errorf("content[%d].%w", i, err)
			}
		}
		return nil
	}
	return errors.New("content: is neither a string nor a list of parts")
}

func (r *rendering) part(part *fastjson.Value) error {
	switch kind := string(part.GetStringBytes("type")); kind {
	case "text", "input_text", "output_text":
		r.tokens = appendTokens(r.tokens, part.GetStringBytes("text"))
	case "image_url", "input_audio", "video_url", "audio_url":
		item := part.Get(kind)
		if item == nil {
			return fmt.Errorf("%s: field required", kind)
		}
		r.features = append(r.features, block.Feature{ID: itemID(item.MarshalTo(nil)), Offset: len(r.tokens)})
		for range imageTokens {
			r.tokens = append(r.tokens, tokenImage)
		}
	default:
		return fmt.Errorf("type: %q is unknown", kind)
	}
	return nil
}
