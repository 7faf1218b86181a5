package tokenizer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/block"
)

// These are patterns of tiktoken encodings. GPT2, CL100K and O200K are in tiktoken_ext/openai_public.py. Some original
// patterns have possessive quantifiers. Without these quantifiers, the patterns match the same texts.
const (
	patternGPT2   = gpt2Pattern
	patternCL100K = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]|\s+(?!\S)|\s`
	patternO200K  = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternQwen = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	patternKimi = `[\p{Han}]+|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|` +
		`\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// encoding has the properties of an encoding that are not in a .tiktoken file: the pattern that splits texts, and the
// ids of special tokens for the given number of ranks. tokenizer_config.json may add special tokens.
type encoding struct {
	pattern string
	special func(ranks int) map[string]block.Token
}

// encodings has the known encodings, by file name without the extension.
var encodings = map[string]encoding{
	"gpt2":      {patternGPT2, fixed(map[string]block.Token{"<|endoftext|>": 50256})},
	"r50k_base": {patternGPT2, fixed(map[string]block.Token{"<|endoftext|>": 50256})},
	"p50k_base": {patternGPT2, fixed(map[string]block.Token{"<|endoftext|>": 50256})},
	"cl100k_base": {patternCL100K, fixed(map[string]block.Token{"<|endoftext|>": 100257, "<|fim_prefix|>": 100258,
		"<|fim_middle|>": 100259, "<|fim_suffix|>": 100260, "<|endofprompt|>": 100276})},
	"o200k_base":    {patternO200K, fixed(map[string]block.Token{"<|endoftext|>": 199999, "<|endofprompt|>": 200018})},
	"o200k_harmony": {patternO200K, harmonyTokens},
	"qwen":          {patternQwen, qwenTokens},
	"kimi":          {patternKimi, nil},
}

func fixed(tokens map[string]block.Token) func(int) map[string]block.Token {
	return func(int) map[string]block.Token { return tokens }
}

func harmonyTokens(int) map[string]block.Token {
	tokens := map[string]block.Token{"<|startoftext|>": 199998, "<|endoftext|>": 199999, "<|return|>": 200002,
		"<|constrain|>": 200003, "<|channel|>": 200005, "<|start|>": 200006, "<|end|>": 200007, "<|message|>": 200008,
		"<|call|>": 200012, "<|endofprompt|>": 200018}
	for _, id := range []block.Token{200000, 200001, 200004, 200009, 200010, 200011} {
		tokens[fmt.Sprintf("<|reserved_%d|>", id)] = id
	}
	for id := block.Token(200013); id < 201088; id++ {
		if id != 200018 {
			tokens[fmt.Sprintf("<|reserved_%d|>", id)] = id
		}
	}
	return tokens
}

// qwenTokens returns the special tokens of Qwen's first generation (tokenization_qwen.py). The ids of these tokens
// follow the ids of the ranks.
func qwenTokens(ranks int) map[string]block.Token {
	tokens := map[string]block.Token{"<|endoftext|>": block.Token(ranks), "<|im_start|>": block.Token(ranks + 1),
		"<|im_end|>": block.Token(ranks + 2)}
	for i := range 205 {
		tokens[fmt.Sprintf("<|extra_%d|>", i)] = block.Token(ranks + 3 + i)
	}
	return tokens
}

// tokenizerClasses has the encoding for each known tokenizer_class. An encoding that is found by the class takes
// precedence over the name of the file.
var tokenizerClasses = map[string]string{"QWenTokenizer": "qwen", "TikTokenTokenizer": "kimi"}

// ParseTiktoken builds a tokenizer from a .tiktoken file, whose lines are "base64 rank". The file does not say how text
// is split. So the encoding follows from name (o200k_base, cl100k_base, qwen, …), or from the tokenizer_class of
// tokenizer_config.json. configJSON is the contents of tokenizer_config.json, and may be empty. Tokens in configJSON
// are added.
func ParseTiktoken(data, configJSON []byte, name string) (*Tokenizer, error) {
	cfg := &config{named: map[string]string{}}
	key := strings.TrimSuffix(path.Base(name), ".tiktoken")
	if len(configJSON) > 0 {
		var err error
		if cfg, err = readConfig(configJSON); err != nil {
			return nil, fmt.Errorf("read tokenizer_config.json: %w", err)
		}
		var c struct {
			Class string `json:"tokenizer_class"`
		}
		if json.Unmarshal(configJSON, &c) == nil && tokenizerClasses[c.Class] != "" {
			key = tokenizerClasses[c.Class]
		}
	}
	enc, ok := encodings[key]
	if !ok {
		return nil, errUnknown("tiktoken encoding", key)
	}
	tokens, err := readRanks(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	var special []addedToken
	if enc.special != nil {
		for content, id := range enc.special(len(tokens)) {
			special = append(special, addedToken{id: id, content: content, special: true})
		}
		slices.SortFunc(special, byTokenID)
	}
	t, err := newRankTokenizer(tokens, append(special, cfg.missing(special)...), enc.pattern)
	if err != nil {
		return nil, fmt.Errorf("build tokenizer of %s: %w", name, err)
	}
	t.named = cfg.named
	s, err := cfg.ends(t)
	if err != nil {
		return nil, err
	}
	t.before, t.after = s.before, s.after
	return t, nil
}

func readRanks(data []byte) ([]token, error) {
	var tokens []token
	for line := 1; len(data) > 0; line++ {
		var text []byte
		text, data, _ = bytes.Cut(data, []byte("\n"))
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		coded, rank, ok := bytes.Cut(bytes.TrimSpace(text), []byte(" "))
		id, err := strconv.ParseUint(string(rank), 10, 32)
		if !ok || err != nil {
			return nil, fmt.Errorf("line %d is not a token and its rank", line)
		}
		raw, err := base64.StdEncoding.DecodeString(string(coded))
		if err != nil || len(raw) == 0 {
			return nil, fmt.Errorf("line %d: not base64", line)
		}
		tokens = append(tokens, token{string(raw), block.Token(id)})
	}
	return tokens, nil
}

// maxSpecial bounds the number of special tokens without names in a tekken.json. Mistral's files have 1,000 special
// tokens.
const maxSpecial = 1 << 16

// ParseTekken builds a tokenizer from Mistral's tekken.json. Mistral's own code never finds special tokens in a text.
// So encode the text of users with SpecialAsText. AddSpecial puts <s> before the text, as Mistral's completions do.
func ParseTekken(data []byte) (*Tokenizer, error) {
	var f struct {
		Config struct {
			Pattern    string `json:"pattern"`
			VocabSize  int    `json:"default_vocab_size"`
			NumSpecial int    `json:"default_num_special_tokens"`
			Version    string `json:"version"`
		} `json:"config"`
		Vocab []struct {
			Rank  block.Token `json:"rank"`
			Bytes []byte      `json:"token_bytes"`
		} `json:"vocab"`
		Special []struct {
			Rank block.Token `json:"rank"`
			Text string      `json:"token_str"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("read tekken.json: %w", err)
	}
	c := f.Config
	if c.NumSpecial < 0 || c.VocabSize < c.NumSpecial || c.VocabSize > len(f.Vocab)+c.NumSpecial ||
		c.NumSpecial > maxSpecial {
		return nil, errors.New("read tekken.json: sizes do not fit the vocabulary")
	}
	first := block.Token(c.NumSpecial)
	var tokens []token
	for _, v := range f.Vocab {
		if int(v.Rank) < c.VocabSize-c.NumSpecial {
			tokens = append(tokens, token{string(v.Bytes), first + v.Rank})
		}
	}
	var special []addedToken
	for _, s := range f.Special {
		special = append(special, addedToken{id: s.Rank, content: s.Text, special: true})
	}
	if f.Special == nil {
		for i, text := range tekkenTokens {
			special = append(special, addedToken{id: block.Token(i), content: text, special: true})
		}
	}
	for i := len(special); i < c.NumSpecial; i++ {
		special = append(special, addedToken{id: block.Token(i), content: fmt.Sprintf("<SPECIAL_%d>", i),
			special: true})
	}
	t, err := newRankTokenizer(tokens, special, c.Pattern)
	if err != nil {
		return nil, fmt.Errorf("build tokenizer of tekken.json: %w", err)
	}
	t.named = map[string]string{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
	if id, ok := t.addedID["<s>"]; ok {
		t.before = []block.Token{id}
	}
	return t, nil
}

// tekkenTokens has the special tokens of a file that does not list them (mistral_common, tekken.py,
// DEPRECATED_SPECIAL_TOKENS).
var tekkenTokens = []string{"<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]",
	"[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]",
	"[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"}

// newRankTokenizer builds a tokenizer from tokens that are byte strings. The ids of the tokens are in the order of the
// tokens' ranks.
func newRankTokenizer(tokens []token, special []addedToken, pattern string) (*Tokenizer, error) {
	m, err := newRankBPE(tokens) // this comes first, so that a broken file is refused before its pattern is compiled
	if err != nil {
		return nil, err
	}
	match, err := regexMatcher(pattern)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{raw: newAddedSet(), normalized: newAddedSet(), added: map[block.Token]addedToken{},
		addedID: map[string]block.Token{}, pre: []preStep{{match: match}}, model: m, vocab: m.vocab}
	t.decoders = []decoder{func(tokens []string) []string { return []string{lossy([]byte(strings.Join(tokens, "")))} }}
	return t, t.add(special)
}

// newRankBPE builds byte-pair encoding from ranked byte strings, as tiktoken does. Two neighbours are joined if their
// bytes together are a token. Among these tokens, the token with the lowest rank is made first. So every way to cut a
// token into two tokens is a merge.
func newRankBPE(tokens []token) (*bpe, error) {
	v, err := newVocabulary(tokens)
	if err != nil {
		return nil, err
	}
	m := &bpe{vocab: v, spelled: v, bytes: &byteTable{}, ignoreMerges: true, unknown: noToken}
	for b := range m.bytes.id {
		id, ok := v.id(string([]byte{byte(b)}))
		if !ok {
			return nil, fmt.Errorf("no token for the byte 0x%02x", b)
		}
		m.bytes.id[b] = id
	}
	type merge struct{ left, right, to block.Token }
	var all []merge
	for _, t := range tokens {
		if len(t.text) > 1<<10 {
			return nil, fmt.Errorf("token %d is %d bytes long", t.id, len(t.text))
		}
		for cut := 1; cut < len(t.text); cut++ {
			left, ok := v.id(t.text[:cut])
			if !ok {
				continue
			}
			if right, ok := v.id(t.text[cut:]); ok {
				all = append(all, merge{left, right, t.id})
			}
		}
	}
	m.merges = newMerges(len(all))
	for _, x := range all {
		m.merges.add(x.left, x.right, x.to, x.to)
	}
	m.bytes.fill(m.merges)
	m.cache = newWordCache()
	return m, nil
}
