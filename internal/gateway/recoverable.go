package gateway

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// The values of Config.StreamRecovery.
const (
	RecoverExact = "exact"
	RecoverValid = "valid"
	RecoverOff   = "off"
)

// unrecoverable returns why a stream of the worker cannot be recovered, "" if it can. The reasons are labels of a
// metric.
func (x *exchange) unrecoverable(w *fleet.Worker) string {
	p := &x.prepared.read
	mode := x.g.cfg.StreamRecovery
	switch {
	case mode == RecoverOff || mode == "":
		return reasonOff
	case !p.Stream || x.dialect != api.OpenAIChat && x.dialect != api.OpenAICompletions:
		return reasonEndpoint
	case w.Facts.Transfer.LegsOnly: // a continuation is a whole request
		return reasonEngine
	case w.Facts.Engine == fleet.EngineSGLang && x.dialect == api.OpenAICompletions:
		// SGLang sends text that may be the beginning of a stop string, and looks for stop strings in its own answer
		// only.
		if given(p, "stop") || given(p, "stop_regex") {
			return reasonFields
		}
	case w.Facts.Engine != fleet.EngineVLLM:
		return reasonEngine // SGLang's streaming chat has no ids (0.5.23 refuses return_token_ids)
	case p.N > 1 || p.Prompts > 1 || p.Multimodal || p.MixedScopes:
		return reasonChoices
	case p.Form != api.PromptMessages && p.Form != api.PromptText && (x.dialect != api.OpenAICompletions || p.Form != api.PromptIDs):
		return reasonPrompt
	case len(x.serving()) < 2:
		return reasonNoWorker
	}
	return readRecoverable(p, mode)
}

// readRecoverable returns which of a request's fields stands against a recovery, "" if none does.
func readRecoverable(p *api.Request, mode string) string {
	parsed := usesParser(p)
	for name, value := range p.Members {
		if strings.HasPrefix(string(name), "guided_") || string(name) == "structured_outputs" {
			return reasonGuided
		}
		rule, known := recoverable[string(name)]
		switch {
		case isAbsent(value):
		case !known:
			return reasonFields
		case rule.refused == "" || rule.parsed && !parsed || rule.unless(value):
		default:
			return rule.refused
		}
	}
	if !greedy(p) && (mode != RecoverValid || given(p, "seed")) {
		return reasonSampling
	}
	return ""
}

// fieldRule says what a field of a request means for a recovery.
type fieldRule struct {
	copied  bool                    // a continuation gets the field, too
	refused string                  // why a stream with the field is not recovered; "": the field stands in no way
	parsed  bool                    // it is refused for a parsed stream only
	unless  func(value []byte) bool // it is not refused with these values; null is the same as no field
}

// sent is the rule of a field that stands in no way, and that a continuation gets, too.
var sent = fieldRule{copied: true}

// recoverable has the fields that are known. A request with another field is not recovered. The rules are measured: see
// docs/design/0043.
var recoverable = map[string]fieldRule{
	"model": sent, "stream": sent, "user": sent, "priority": sent, "cache_salt": sent, "metadata": sent,
	"temperature": sent, "seed": sent, "top_p": sent, "top_k": sent, "min_p": sent, "repetition_penalty": sent, "logit_bias": sent,
	"stop_token_ids": sent, "ignore_eos": sent, "skip_special_tokens": sent, "spaces_between_special_tokens": sent,

	// These make the prompt, or have another value in a continuation, or concern only the first worker.
	"messages": {}, "prompt": {}, "documents": {}, "tools": {}, "chat_template": {}, "chat_template_kwargs": {},
	"add_generation_prompt": {}, "add_special_tokens": {}, "max_tokens": {}, "max_completion_tokens": {}, "min_tokens": {},
	"session_id": {}, "session_params": {}, "user_id": {}, "prompt_cache_key": {}, "request_id": {},
	"parallel_tool_calls": {}, "service_tier": {}, "store": {},

	// They count generated tokens only, so a continuation forgets them.
	"presence_penalty":  {copied: true, refused: reasonPenalty, unless: isZero},
	"frequency_penalty": {copied: true, refused: reasonPenalty, unless: isZero},
	// A parser's events of ids end before a stop string.
	"stop":                       {copied: true, refused: reasonTools, parsed: true, unless: isOneOf(`[]`, `false`)},
	"include_stop_str_in_output": {copied: true, refused: reasonTools, parsed: true, unless: isOneOf(`[]`, `false`)},
	"stream_options":             {copied: true, refused: reasonFields, unless: onlyUsage},

	"n": {refused: reasonChoices, unless: isOneOf(`1`)}, "best_of": {refused: reasonChoices, unless: isOneOf(`1`)},
	"functions":       {refused: reasonTools, unless: isOneOf(`[]`)},
	"tool_choice":     {refused: reasonTools, unless: isOneOf(`"none"`, `"auto"`)}, // any other choice is a grammar
	"response_format": {refused: reasonGuided, unless: plainFormat},

	"logprobs": {refused: reasonFields, unless: isOff}, "top_logprobs": {refused: reasonFields, unless: isOff},
	"echo": {refused: reasonFields, unless: isOff}, "suffix": {refused: reasonFields, unless: isOff},
	"return_token_ids": {refused: reasonFields, unless: isOff},
}

func isOneOf(values ...string) func([]byte) bool {
	return func(value []byte) bool { return slices.Contains(values, string(value)) }
}

// isOff is true for the values of a field that asks for nothing.
var isOff = isOneOf(`false`, `0`, `""`)

func isZero(value []byte) bool {
	n, err := strconv.ParseFloat(string(value), 64)
	return err == nil && n == 0
}

// onlyUsage reports whether stream_options has no other option than include_usage.
func onlyUsage(value []byte) bool {
	for option := range members(value) {
		if option != "include_usage" {
			return false
		}
	}
	return true
}

// plainFormat reports whether response_format is no format.
func plainFormat(value []byte) bool {
	m := members(value)
	return len(m) == 1 && string(m["type"]) == `"text"`
}

// greedy reports whether the engine takes the likeliest token at each step, so that the same prompt gives the same
// text.
func greedy(p *api.Request) (is bool) {
	for name, value := range p.Members {
		if string(name) == "temperature" {
			is = isZero(value)
		}
	}
	return is
}

// members returns the members of an object.
func members(object []byte) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	_ = json.Unmarshal(object, &m) // the body was read, so it is valid; another type has no members
	return m
}
