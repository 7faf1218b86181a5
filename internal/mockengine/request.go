package mockengine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/block"
)

// maxChoices bounds the number of answers to one request, which is n times the number of prompts. vLLM's bound on n
// alone is 16,384.
const maxChoices = 1024

// generation is a decoded completions request.
type generation struct {
	chat          bool
	form          form
	model         string // name of the model, as the client wrote it
	lora          string // name of the adapter
	path          string // path of the adapter
	prompts       []rendering
	choices       int // number of answers to each prompt: the request's field n
	stream        bool
	includeUsage  bool
	tokenIDs      bool
	salt          string
	extra         string
	rank          int // data-parallel rank that the request names; -1: none
	fresh         bool
	announce      bool
	requestID     string         // the id that the client gives to the request; "": none
	disaggregated *disaggregated // nil: the request has none
	bootstrap     *bootstrap     // nil: the request has none
	transfer      *kvParams      // nil: the request has none
	options       answerOptions
}

// errModel says that the request's model is not served. The answer then has the status 404.
var errModel = errors.New("does not exist")

// readGeneration reads the body of chat/completions or completions.
func (l *life) readGeneration(body *fastjson.Value, chat bool, headerRank string) (*generation, error) {
	g := &generation{chat: chat, rank: -1, choices: 1}
	if body.Type() != fastjson.TypeObject {
		return nil, errors.New("body is not a JSON object")
	}
	if err := g.readModel(body, l); err != nil {
		return nil, err
	}
	err := g.readPrompts(body)
	if err != nil {
		return nil, err
	}
	if err := g.readOptions(body, l); err != nil {
		return nil, err
	}
	g.stream = body.GetBool("stream")
	g.includeUsage = body.GetBool("stream_options", "include_usage")
	g.tokenIDs = body.GetBool("return_token_ids")
	g.extra = text(body, "extra_key")
	if v := body.Get("cache_salt"); v != nil && v.Type() != fastjson.TypeNull {
		if g.salt = string(v.GetStringBytes()); g.salt == "" {
			return nil, errors.New("cache_salt: must be a non-empty string if provided")
		}
	}
	g.fresh = body.Exists("prompt_logprobs") && body.Get("prompt_logprobs").Type() == fastjson.TypeNumber
	g.requestID = text(body, "request_id")
	switch l.cfg.Kind {
	case VLLM:
		if err = g.readTransfer(body); err == nil && l.cfg.Transfer.Connector == TRTLLM {
			err = g.readDisaggregated(body)
		}
	case SGLang:
		g.requestID = text(body, "rid")
		err = g.readBootstrap(body)
	}
	if err != nil {
		return nil, err
	}
	g.announce = text(body, "vllm_xargs", "kv_cache_report_mode") == "full"
	return g, g.readRank(body, headerRank, l.cfg)
}

func (g *generation) readModel(body *fastjson.Value, l *life) error {
	g.model = text(body, "model")
	if g.model == "" {
		g.model = l.cfg.Model
	}
	if g.path = l.adapters.path(g.model); g.path != "" {
		g.lora = g.model
		return nil
	}
	if g.model != l.cfg.Model && !slices.Contains(l.cfg.Served, g.model) {
		return fmt.Errorf("the model `%s` %w", g.model, errModel)
	}
	// Clients of SGLang name the adapter in the field lora_path.
	if lora := text(body, "lora_path"); lora != "" {
		if g.path = l.adapters.path(lora); g.path == "" {
			return fmt.Errorf("the adapter `%s` %w", lora, errModel)
		}
		g.lora = lora
	}
	return nil
}

func (g *generation) readPrompts(body *fastjson.Value) error {
	if !g.chat {
		return g.readTextPrompts(body.Get("prompt"))
	}
	if ids := body.GetArray("input_ids"); len(ids) > 0 { // SGLang: the client has rendered the prompt itself
		tokens, err := tokenList(ids)
		if err != nil {
			return fmt.Errorf("input_ids: %w", err)
		}
		g.prompts = []rendering{{tokens: tokens}}
		return nil
	}
	r, err := renderChat(body, chatOptions(body))
	if err != nil {
		return err
	}
	g.prompts = []rendering{*r}
	return nil
}

func chatOptions(body *fastjson.Value) renderOptions {
	o := renderOptions{generationPrompt: true, continueFinal: body.GetBool("continue_final_message")}
	if v := body.Get("add_generation_prompt"); v != nil && v.Type() == fastjson.TypeFalse {
		o.generationPrompt = false
	}
	return o
}

// readTextPrompts reads a completions prompt: a text, a list of texts, a list of token ids, or a list of lists of token
// ids. The begin token is put before a text, but not before token ids.
func (g *generation) readTextPrompts(v *fastjson.Value) error {
	if v == nil {
		return errors.New("prompt: field required")
	}
	switch v.Type() {
	case fastjson.TypeString:
		g.prompts = []rendering{{tokens: textPrompt(v)}}
		return nil
	case fastjson.TypeArray:
	default:
		return errors.New("prompt: is neither text nor a list")
	}
	items := v.GetArray()
	if len(items) == 0 {
		return errors.New("prompt: list is empty")
	}
	if items[0].Type() == fastjson.TypeNumber {
		items = []*fastjson.Value{v}
	}
	if len(items) > maxChoices {
		return fmt.Errorf("prompt: more than %d prompts", maxChoices)
	}
	for i, item := range items {
		if item.Type() == fastjson.TypeString {
			g.prompts = append(g.prompts, rendering{tokens: textPrompt(item)})
			continue
		}
		tokens, err := tokenList(item.GetArray())
		if err != nil {
			return fmt.Errorf("prompt[%d]: %w", i, err)
		}
		g.prompts = append(g.prompts, rendering{tokens: tokens})
	}
	return nil
}

func textPrompt(v *fastjson.Value) []block.Token {
	return appendTokens([]block.Token{tokenBegin}, v.GetStringBytes())
}

func tokenList(items []*fastjson.Value) ([]block.Token, error) {
	if len(items) == 0 {
		return nil, errors.New("no token ids")
	}
	tokens := make([]block.Token, len(items))
	for i, item := range items {
		id, err := item.Uint64()
		if err != nil || id > 1<<32-1 {
			return nil, fmt.Errorf("element %d is not a token id", i)
		}
		tokens[i] = block.Token(id)
	}
	return tokens, nil
}

// readOptions reads the options that determine the answers.
func (g *generation) readOptions(body *fastjson.Value, l *life) error {
	n, err := number(body, "n", 1)
	if err != nil || n < 1 || n > maxChoices/len(g.prompts) {
		return fmt.Errorf("n: must be within 1..%d", maxChoices/len(g.prompts))
	}
	g.choices = n
	limit := 0
	for _, name := range []string{"max_completion_tokens", "max_tokens"} {
		if limit, err = number(body, name, 0); err != nil || limit < 0 || limit == 0 && given(body, name) {
			return fmt.Errorf("%s: must be at least 1", name)
		}
		if limit > 0 {
			break
		}
	}
	if limit == 0 && !g.chat && l.cfg.Kind == VLLM {
		limit = 16 // default of the completions API
	}
	if limit == 0 {
		limit = l.cfg.MaxModelLen
	}
	g.options = answerOptions{
		seed:         l.cfg.Seed,
		length:       l.cfg.OutputTokens,
		limit:        limit,
		ignoreEnd:    body.GetBool("ignore_eos"),
		leadingSpace: !g.chat || body.GetBool("continue_final_message"),
	}
	g.options.greedy = given(body, "temperature") && body.GetFloat64("temperature") == 0
	least, err := number(body, "min_tokens", 0)
	if err != nil || least > limit {
		return errors.New("min_tokens: must be a number, at most max_tokens")
	}
	g.options.length = max(g.options.length, least)
	if g.options.stop, err = stopStrings(body.Get("stop")); err != nil {
		return err
	}
	if g.options.tool, err = forcedTool(body); err != nil {
		return err
	}
	return g.readScript(body)
}

// readScript reads mock_answer, a field that only the mock engine has: the ids of the answer, cut at max_tokens. With
// this field a mock engine can repeat the answers of a real engine, and so caches the same blocks.
func (g *generation) readScript(body *fastjson.Value) (err error) {
	if !given(body, "mock_answer") {
		return nil
	}
	if g.options.scripted, err = tokenList(body.GetArray("mock_answer")); err != nil {
		return fmt.Errorf("mock_answer: %w", err)
	}
	return nil
}

// stopStrings reads the field "stop": a text, or a list of up to 16 texts.
func stopStrings(v *fastjson.Value) ([]string, error) {
	if v == nil || v.Type() == fastjson.TypeNull {
		return nil, nil
	}
	if v.Type() == fastjson.TypeString {
		return []string{string(v.GetStringBytes())}, nil
	}
	items := v.GetArray()
	if v.Type() != fastjson.TypeArray || len(items) > 16 {
		return nil, errors.New("stop: must be a string or a list of at most 16")
	}
	var stop []string
	for _, item := range items {
		stop = append(stop, string(item.GetStringBytes()))
	}
	return stop, nil
}

// forcedTool returns the name of the tool that the model must call. "" means none. If tool_choice is "required",
// forcedTool returns the first tool. If tool_choice is an object, forcedTool returns the tool that the object names.
// With "auto" the mock engine answers in text.
func forcedTool(body *fastjson.Value) (string, error) {
	choice := body.Get("tool_choice")
	if choice == nil {
		return "", nil
	}
	tools := body.GetArray("tools")
	name := ""
	switch choice.Type() {
	case fastjson.TypeString:
		if string(choice.GetStringBytes()) != "required" {
			return "", nil
		}
		if len(tools) > 0 {
			name = text(tools[0], "function", "name")
		}
	case fastjson.TypeObject:
		name = text(choice, "function", "name")
	default:
		return "", nil
	}
	for _, tool := range tools {
		if name != "" && text(tool, "function", "name") == name {
			return name, nil
		}
	}
	return "", errors.New("tool_choice: names no tool of the request")
}

// readRank reads the data-parallel rank that the request names. The header takes precedence over the body. As in vLLM,
// only the header counts if the kind is not SGLang. A value that is not a number is ignored. A number out of range is
// an error.
func (g *generation) readRank(body *fastjson.Value, header string, cfg *Config) error {
	value, err := strconv.Atoi(header)
	if err != nil {
		if cfg.Kind != SGLang {
			return nil
		}
		v := body.Get("routed_dp_rank")
		if v == nil {
			v = body.Get("data_parallel_rank")
		}
		if v == nil || v.Type() != fastjson.TypeNumber {
			return nil
		}
		value = v.GetInt()
	}
	if value < 0 || value >= cfg.Ranks {
		return fmt.Errorf("data_parallel_rank %d is out of range [0, %d)", value, cfg.Ranks)
	}
	g.rank = value
	return nil
}

func text(v *fastjson.Value, keys ...string) string { return string(v.GetStringBytes(keys...)) }

func given(v *fastjson.Value, key string) bool {
	field := v.Get(key)
	return field != nil && field.Type() != fastjson.TypeNull
}

// number reads an integer field. If the field is absent or null, it returns fallback.
func number(v *fastjson.Value, key string, fallback int) (int, error) {
	if !given(v, key) {
		return fallback, nil
	}
	return v.Get(key).Int()
}

// itemID returns the identifier of a multimodal item. As in real engines, the identifier depends only on the item's
// content.
func itemID(content []byte) string {
	sum := sha256.Sum256(bytes.TrimSpace(content))
	return hex.EncodeToString(sum[:])
}
