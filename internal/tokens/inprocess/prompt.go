package inprocess

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/tokenizer"
	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// ErrElsewhere is returned for a prompt whose ids only the engine can make.
var ErrElsewhere = errors.New("the prompt's tokens depend on the engine")

// ErrRefused is returned for a request that the engine will refuse, too.
var ErrRefused = errors.New("the engine will refuse the prompt")

// elsewhere has the fields of a request that change the prompt's tokens in a way that only the engine knows.
var elsewhere = map[string]bool{"truncate_prompt_tokens": true, "mm_processor_kwargs": true, "media_io_kwargs": true,
	"prompt_embeds": true, "suffix": true}

// texts is a pool of buffers for rendered prompts. A long conversation takes some hundred kilobytes.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// maxPrompt is the length of the longest prompt that is encoded here, in bytes of text. 4 MiB are about a million
// tokens. The engine makes the ids of a longer prompt, or refuses it. Without this bound, encoding a long hostile
// prompt (a single word) would take seconds.
const maxPrompt = 4 << 20

var errLong = fmt.Errorf("%w: it is longer than %d bytes", ErrElsewhere, maxPrompt)

// maxRows is the largest number of tokens in a prompt's images: a million, as for text. The bound is needed because an
// image to which the client gives a name takes only fifty bytes of a body, but hundreds of tokens.
const maxRows = maxPrompt / 4

var errRows = fmt.Errorf("%w: its images are more than %d tokens", ErrElsewhere, maxRows)

// keepText is the largest size of a buffer that the pool keeps, in bytes.
const keepText = 4 << 20

// Origin describes the engine for which a prompt's ids are made.
type Origin struct {
	Kind tokens.Kind
	// Root is the folder or name from which the engine loaded the model. The engine's names of images depend on Root.
	// Empty means that the root is not known. Then only images that got a name from the client can be encoded here.
	Root string
	// Responses says that the chat was made from a request to /v1/responses.
	Responses bool
}

// Encoded has a prompt's ids, its images, and the part of the ids that a growing conversation reuses.
type Encoded struct {
	Tokens   []block.Token
	Features []block.Feature
	tokenizer.Reuse
}

// Tokens appends the ids of the request's prompt to dst. The ids are the ids that an engine of this kind makes.
func (m *Model) Tokens(dst []block.Token, r *api.Request, kind tokens.Kind) ([]block.Token, error) {
	out, err := m.Encode(dst, r, Origin{Kind: kind})
	return out.Tokens, err
}

// Encode makes the ids of the request's prompt, as Tokens does, and also returns the prompt's images. The counts in
// Reuse begin at the first element of dst, so dst is normally empty.
func (m *Model) Encode(dst []block.Token, r *api.Request, o Origin) (Encoded, error) {
	if r.Dialect == api.OpenAICompletions || r.Dialect == api.SGLangGenerate {
		return m.completion(dst, r)
	}
	if m.harmony != nil && o.Kind == tokens.VLLM {
		if r.PromptBytes() > maxPrompt {
			return Encoded{Tokens: dst}, errLong
		}
		return m.harmonyChat(dst, r, time.Now())
	}
	q, err := m.request(r.Body(), len(r.Raw(api.FieldTools)) > len("null"), o)
	if err != nil {
		return Encoded{Tokens: dst}, err
	}
	if r.PromptBytes()-mediaBytes(q) > maxPrompt {
		return Encoded{Tokens: dst}, errLong
	}
	images, err := m.images(q, o)
	if err != nil {
		return Encoded{Tokens: dst}, err
	}
	buffer := texts.Get().(*[]byte)
	defer func() {
		if cap(*buffer) <= keepText {
			texts.Put(buffer)
		}
	}()
	if *buffer, err = m.render((*buffer)[:0], q); err != nil {
		return Encoded{Tokens: dst}, err
	}
	// The buffer may be reused after this call, because the turn cache copies the text that it remembers.
	var out Encoded
	out.Tokens, out.Reuse, err = m.turns.AppendBytes(dst, *buffer, tokenizer.Options{AddSpecial: q.AddSpecialTokens})
	if err != nil {
		return out, err
	}
	if images != nil {
		out.Reuse = tokenizer.Reuse{} // expand changes the number of ids, so the counts in Reuse are no longer right
		var ok bool
		if out.Tokens, out.Features, ok = m.vision.expand(out.Tokens, images); !ok {
			return out, fmt.Errorf("%w: the template does not write one placeholder for each image", ErrElsewhere)
		}
	}
	if q.Suffix == "" {
		return out, nil
	}
	out.Tokens, err = m.tokenizer.Append(out.Tokens, q.Suffix, tokenizer.Options{})
	return out, err
}

// Text returns the prompt of a chat request as text.
func (m *Model) Text(body []byte, kind tokens.Kind) (string, error) {
	var read api.Request
	if err := api.Read(api.OpenAIChat, body, &read); err != nil {
		return "", err
	}
	if m.harmony != nil && kind == tokens.VLLM {
		made, err := m.harmonyChat(nil, &read, time.Now())
		return m.Decode(made.Tokens), err
	}
	q, err := m.request(body, len(read.Raw(api.FieldTools)) > len("null"), Origin{Kind: kind})
	if err != nil {
		return "", err
	}
	text, err := m.render(nil, q)
	return string(text) + q.Suffix, err
}

// request reads a chat body as the engine does.
func (m *Model) request(body []byte, tools bool, o Origin) (*chatRequest, error) {
	t := m.template(tools)
	if t == nil {
		return nil, fmt.Errorf("%w: the model's folder has no chat template", ErrElsewhere)
	}
	config := requestConfig{Engine: engineVLLM, NameFirst: o.Responses}
	if o.Kind == tokens.SGLang {
		config.Engine = engineSGLang
	}
	q, err := t.ReadRequest(body, config)
	var refused *requestError
	switch {
	case errors.As(err, &refused):
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrElsewhere, err)
	}
	return q, nil
}

// mediaBytes returns how many bytes of the request's body are URLs of media. Media are long texts in the body, but few
// tokens in the prompt.
func mediaBytes(q *chatRequest) (n int) {
	for i := range q.Media {
		n += len(q.Media[i].URL)
	}
	return n
}

// images returns the request's media as the engine represents them.
func (m *Model) images(q *chatRequest, o Origin) ([]picture, error) {
	if len(q.Media) == 0 {
		return nil, nil
	}
	if o.Kind != tokens.VLLM {
		return nil, fmt.Errorf("%w: it has %d images, audios or videos", ErrElsewhere, len(q.Media))
	}
	all, total := make([]picture, len(q.Media)), 0
	for i := range q.Media {
		var ok bool
		if all[i], ok = m.picture(&q.Media[i], o.Root); !ok {
			return nil, fmt.Errorf("%w: item %d is %s that only the engine can read", ErrElsewhere, i, q.Media[i].Kind)
		}
		if total += all[i].tokens; total > maxRows {
			return nil, errRows
		}
	}
	return all, nil
}

func (m *Model) render(dst []byte, q *chatRequest) ([]byte, error) {
	text, err := q.Render(dst, renderContext{Tokens: m.special, Now: time.Now(),
		Limits: jinja.Limits{OutputBytes: maxPrompt}})
	var raised *jinja.RaisedError
	switch {
	case errors.As(err, &raised):
		return dst, fmt.Errorf("%w: %w", ErrRefused, err)
	case err != nil:
		return dst, fmt.Errorf("%w: %w", ErrElsewhere, err)
	}
	return text, nil
}

// completion makes the ids of a prompt that no template changes. The prompt must be one text.
func (m *Model) completion(dst []block.Token, r *api.Request) (Encoded, error) {
	var text string
	raw := r.Raw(r.Dialect.Text())
	if len(raw) > maxPrompt {
		return Encoded{Tokens: dst}, errLong
	}
	if err := json.Unmarshal(raw, &text); err != nil {
		var list []string
		if err := json.Unmarshal(raw, &list); err != nil || len(list) != 1 {
			return Encoded{Tokens: dst}, fmt.Errorf("%w: the prompt is not one text", ErrElsewhere)
		}
		text = list[0]
	}
	special := string(r.Raw(api.FieldAddSpecialTokens)) != "false"
	ids, reuse, err := m.turns.Append(dst, text, tokenizer.Options{AddSpecial: special})
	return Encoded{Tokens: ids, Reuse: reuse}, err
}
