package tokenizer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/block"
)

// config has the tokens, and the names of tokens, that tokenizer_config.json adds to tokenizer.json in Transformers 5
// (tokenization_utils_tokenizers.py). The file also names a Python class. Some classes build another pipeline than
// tokenizer.json describes. This package does not follow these classes.
type config struct {
	named          map[string]string // the text of each named token, by its key: bos_token, eos_token, unk_token, …
	added          []addedToken      // tokens of added_tokens_decoder, in the order of their ids
	extra          []string
	addBOS, addEOS *bool
}

var namedTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

func readConfig(data []byte) (*config, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	c := &config{named: map[string]string{}}
	for name, raw := range fields {
		if !strings.HasSuffix(name, "_token") || strings.HasPrefix(name, "add_") {
			continue
		}
		if text, ok := tokenText(raw); ok {
			c.named[name] = text
		}
	}
	for name, to := range map[string]**bool{"add_bos_token": &c.addBOS, "add_eos_token": &c.addEOS} {
		if raw := fields[name]; !isNull(raw) {
			if err := json.Unmarshal(raw, to); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	var byID map[string]json.RawMessage
	if raw := fields["added_tokens_decoder"]; !isNull(raw) {
		if err := json.Unmarshal(raw, &byID); err != nil {
			return nil, fmt.Errorf("added_tokens_decoder: %w", err)
		}
	}
	for key, raw := range byID {
		id, err := strconv.ParseUint(key, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("added_tokens_decoder: %q is no token id", clip(key))
		}
		a, err := readAddedToken(raw)
		if err != nil {
			return nil, fmt.Errorf("added_tokens_decoder %s: %w", key, err)
		}
		a.id = block.Token(id)
		c.added = append(c.added, a)
	}
	slices.SortFunc(c.added, byTokenID)
	for _, name := range []string{"additional_special_tokens", "extra_special_tokens"} {
		var list []json.RawMessage
		if json.Unmarshal(fields[name], &list) == nil { // an object with named tokens is not read
			for _, raw := range list {
				if text, ok := tokenText(raw); ok {
					c.extra = append(c.extra, text)
				}
			}
		}
	}
	return c, nil
}

// tokenText reads a token that is given as a string or as {"content": …}.
func tokenText(raw json.RawMessage) (string, bool) {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, text != ""
	}
	var token struct {
		Content string `json:"content"`
	}
	err := json.Unmarshal(raw, &token)
	return token.Content, err == nil && token.Content != ""
}

func byTokenID(a, b addedToken) int { return cmp.Compare(a.id, b.id) }

func sortedAdded(tokens map[block.Token]addedToken) []addedToken {
	list := make([]addedToken, 0, len(tokens))
	for _, a := range tokens {
		list = append(list, a)
	}
	slices.SortFunc(list, byTokenID)
	return list
}

// missing returns the tokens of the configuration that tokenizer.json does not add.
func (c *config) missing(have []addedToken) []addedToken {
	seen := map[string]bool{}
	for _, a := range have {
		seen[a.content] = true
	}
	var out []addedToken
	add := func(a addedToken) {
		if !seen[a.content] {
			seen[a.content] = true
			out = append(out, a)
		}
	}
	for _, a := range c.added {
		add(a)
	}
	for _, name := range namedTokens {
		add(addedToken{id: noToken, content: c.named[name], special: true})
	}
	for _, text := range c.extra {
		add(addedToken{id: noToken, content: text, special: true})
	}
	return out
}

// ends returns the tokens that add_bos_token and add_eos_token put around a text. These options count only if there is
// no tokenizer.json. If there is a tokenizer.json, Transformers 5 ignores the options and uses the file's
// post-processor (tokenization_utils_base.py, from_pretrained). Transformers 4 uses the options for some classes
// (LlamaTokenizerFast, CohereTokenizerFast). For an engine with Transformers 4, the router's comparison with the
// engine's ids finds the difference.
func (c *config) ends(t *Tokenizer) (surround, error) {
	var s surround
	for _, end := range []struct {
		add  *bool
		name string
		to   *[]block.Token
	}{{c.addBOS, "bos_token", &s.before}, {c.addEOS, "eos_token", &s.after}} {
		text := c.named[end.name]
		if end.add == nil || !*end.add || text == "" {
			continue
		}
		id, ok := t.ID(text)
		if !ok {
			return s, fmt.Errorf("%s %q of tokenizer_config.json is not a token", end.name, clip(text))
		}
		*end.to = append(*end.to, id)
	}
	return s, nil
}

// surround has the tokens that a post-processor puts around one text.
type surround struct{ before, after []block.Token }

func readPostProcessor(raw json.RawMessage) (surround, error) {
	var s surround
	if isNull(raw) {
		return s, nil
	}
	var c struct {
		component
		Processors []json.RawMessage `json:"processors"`
		Single     []struct {
			SpecialToken *struct {
				ID string `json:"id"`
			}
			Sequence *struct {
				ID string `json:"id"`
			}
		} `json:"single"`
		SpecialTokens map[string]struct {
			IDs []block.Token `json:"ids"`
		} `json:"special_tokens"`
		Cls, Sep json.RawMessage
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return s, fmt.Errorf("read post_processor: %w", err)
	}
	switch c.Type {
	case "ByteLevel": // this type changes only offsets, and this package computes no offsets
		return s, nil
	case "Sequence":
		for _, raw := range c.Processors {
			outer, err := readPostProcessor(raw)
			if err != nil {
				return s, err
			}
			s.before = append(outer.before, s.before...)
			s.after = append(s.after, outer.after...)
		}
		return s, nil
	case "BertProcessing", "RobertaProcessing":
		cls, err := readPair(c.Cls)
		if err != nil {
			return s, fmt.Errorf("read post_processor %s: cls: %w", c.Type, err)
		}
		sep, err := readPair(c.Sep)
		if err != nil {
			return s, fmt.Errorf("read post_processor %s: sep: %w", c.Type, err)
		}
		return surround{[]block.Token{cls}, []block.Token{sep}}, nil
	case "TemplateProcessing":
		texts := 0
		for _, piece := range c.Single {
			switch {
			case piece.Sequence != nil && piece.Sequence.ID == "A":
				texts++
			case piece.SpecialToken != nil:
				token, ok := c.SpecialTokens[piece.SpecialToken.ID]
				if !ok {
					return s, fmt.Errorf("post_processor template names the token %q, which it does not define",
						clip(piece.SpecialToken.ID))
				}
				if texts == 0 {
					s.before = append(s.before, token.IDs...)
				} else {
					s.after = append(s.after, token.IDs...)
				}
			default:
				return s, errUnknown("piece of a post_processor template", "not A, not a token")
			}
		}
		if texts != 1 {
			return s, fmt.Errorf("post_processor template has the text %d times: only once is supported", texts)
		}
		return s, nil
	}
	return s, errUnknown("post_processor", c.Type)
}

// readPair returns the id of a special token that is given as a pair of text and id, such as ["[CLS]", 101].
func readPair(raw json.RawMessage) (block.Token, error) {
	var name string
	var id block.Token
	err := json.Unmarshal(raw, &[]any{&name, &id})
	return id, err
}
