package inprocess

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/tokenizer"
)

// Model is one model's tokenizer and chat templates. It is safe for concurrent use.
type Model struct {
	tokenizer *tokenizer.Tokenizer
	turns     *tokenizer.TurnCache
	templates map[string]*chatTemplate // templates by name; most models have one template, called "default"
	special   map[string]string        // special tokens of the tokenizer, for templates
	vision    *vision                  // nil: only the engine can make the ids of prompts with images
	harmony   map[string]block.Token   // ids of Harmony's special tokens; nil: the model is not gpt-oss
	pictures  pictures
	chatting  tokens.Chatting // how vLLM turns Anthropic requests into chats
}

// These are the names of the templates that engines use.
const (
	defaultTemplate = "default"
	toolTemplate    = "tool_use"
)

// Load reads a model's files. If the model has no chat template, only ids of completions can be made.
func Load(files fs.FS) (*Model, error) {
	t, err := tokenizer.Load(files)
	if err != nil {
		return nil, fmt.Errorf("load tokenizer: %w", err)
	}
	sources, err := templateSources(files)
	if err != nil {
		return nil, err
	}
	m := &Model{tokenizer: t, turns: tokenizer.NewTurnCache(t, 0), templates: map[string]*chatTemplate{},
		special: map[string]string{}}
	for name, source := range sources {
		if m.templates[name], err = parseTemplate(source); err != nil {
			return nil, fmt.Errorf("load chat template %s: %w", name, err)
		}
	}
	for _, name := range [...]string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
		"mask_token"} {
		if spelling := t.Named(name); spelling != "" {
			m.special[name] = spelling
		}
	}
	m.vision = loadVision(files, t)
	m.harmony = loadHarmony(files, t)
	m.chatting = m.chattingOf()
	m.warmUp()
	return m, nil
}

// warmUp encodes some texts. So tables, such as the tables of Unicode's characters, are built before the first request.
// Building the tables takes 8 ms of a core, once in a process, and would delay the first requests.
func (m *Model) warmUp() {
	var ids []block.Token
	for _, p := range probeTexts {
		ids, _ = m.AppendIDs(ids[:0], p.text, true) // an error here is ignored: requests will get the same error
	}
}

// templateSources finds the chat templates as Transformers does. Files in the tokenizer's folder take precedence over
// templates in the tokenizer's configuration.
func templateSources(files fs.FS) (map[string]string, error) {
	sources := map[string]string{}
	if err := configTemplates(files, sources); err != nil {
		return nil, err
	}
	if text, err := fs.ReadFile(files, "chat_template.jinja"); err == nil {
		sources[defaultTemplate] = string(text)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read chat template: %w", err)
	}
	more, err := fs.Glob(files, "additional_chat_templates/*.jinja")
	if err != nil {
		return nil, fmt.Errorf("find chat templates: %w", err)
	}
	for _, name := range more {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read chat template: %w", err)
		}
		sources[strings.TrimSuffix(path.Base(name), ".jinja")] = string(text)
	}
	return sources, nil
}

// configTemplates reads the field chat_template of tokenizer_config.json, which is a text or a list of named texts.
// Some multimodal models have this field in chat_template.json instead.
func configTemplates(files fs.FS, sources map[string]string) error {
	for _, name := range [...]string{"chat_template.json", "tokenizer_config.json"} {
		data, err := fs.ReadFile(files, name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		var config struct {
			Template json.RawMessage `json:"chat_template"`
		}
		if err := json.Unmarshal(data, &config); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		var one string
		var named []struct{ Name, Template string }
		switch {
		case len(config.Template) == 0 || string(config.Template) == "null":
		case json.Unmarshal(config.Template, &one) == nil:
			sources[defaultTemplate] = one
		case json.Unmarshal(config.Template, &named) == nil:
			for _, t := range named {
				sources[t.Name] = t.Template
			}
		default:
			return fmt.Errorf("read %s: chat_template is neither a text nor a list of named texts", name)
		}
	}
	return nil
}

// template returns the template for a request. If the request has tools and the model has a template for tools, it
// returns the template for tools.
func (m *Model) template(tools bool) *chatTemplate {
	if t := m.templates[toolTemplate]; tools && t != nil {
		return t
	}
	return m.templates[defaultTemplate]
}

// AppendIDs appends the ids of a text to dst. If special is true, the model's special tokens are added around the
// text.
func (m *Model) AppendIDs(dst []block.Token, text string, special bool) ([]block.Token, error) {
	return m.tokenizer.Append(dst, text, tokenizer.Options{AddSpecial: special})
}

// Decode returns the text of ids. The text includes special tokens.
func (m *Model) Decode(ids []block.Token) string { return m.tokenizer.Decode(ids, false) }
