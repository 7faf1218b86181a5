package gateway

import (
	"encoding/json"
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
		return "off"
	case !p.Stream || x.dialect != api.OpenAIChat && x.dialect != api.OpenAICompletions:
		return "endpoint"
	case w.Facts.Engine == fleet.EngineSGLang && x.dialect == api.OpenAICompletions:
		// SGLang sends text that may be the beginning of a stop string, and looks for stop strings in its own answer
		// only.
		if given(p, "stop") || given(p, "stop_regex") {
			return "fields"
		}
	case w.Facts.Engine != fleet.EngineVLLM:
		return "engine" // SGLang's streaming chat has no ids (0.5.23 refuses return_token_ids)
	case p.N > 1 || p.Prompts > 1 || p.Multimodal || p.MixedScopes:
		return "choices"
	case p.Form != api.PromptMessages && p.Form != api.PromptText && (x.dialect != api.OpenAICompletions || p.Form != api.PromptIDs):
		return "prompt"
	case len(x.serving()) < 2:
		return "no_worker"
	}
	return readRecoverable(p, mode)
}

// readRecoverable returns which of a request's fields stands against a recovery, "" if none does. The rules are
// measured: see docs/design/0043.
func readRecoverable(p *api.Request, mode string) string {
	seeded, parsed := false, usesParser(p)
	for name, value := range p.Members {
		zero := string(value) == "null"
		switch string(name) {
		case "temperature":
		case "seed":
			seeded = !zero
		case "presence_penalty", "frequency_penalty": // they count generated tokens only, so a continuation forgets them
			if t, err := strconv.ParseFloat(string(value), 64); !zero && (err != nil || t != 0) {
				return "penalty"
			}
		case "n", "best_of":
			if !zero && string(value) != "1" {
				return "choices"
			}
		case "tools":
		case "functions":
			if !zero && string(value) != "[]" {
				return "tools"
			}
		case "tool_choice": // any other choice is a grammar
			if !zero && string(value) != `"none"` && string(value) != `"auto"` {
				return "tools"
			}
		case "stop", "include_stop_str_in_output": // the engine makes no events of ids up to a stop string
			if parsed && !zero && string(value) != "[]" && string(value) != "false" {
				return "tools"
			}
		case "response_format":
			if !zero && !plainFormat(value) {
				return "guided"
			}
		case "logprobs", "top_logprobs", "echo", "suffix", "return_token_ids":
			if !zero && string(value) != "false" && string(value) != "0" && string(value) != `""` {
				return "fields"
			}
		case "stream_options":
			for option := range members(value) {
				if option != "include_usage" {
					return "fields"
				}
			}
		default:
			if strings.HasPrefix(string(name), "guided_") || string(name) == "structured_outputs" {
				return "guided"
			}
			if _, known := recoverable[string(name)]; !known && !zero {
				return "fields"
			}
		}
	}
	if !greedy(p) && (mode != RecoverValid || seeded) {
		return "sampling"
	}
	return ""
}

// greedy reports whether the engine takes the likeliest token at each step, so that the same prompt gives the same
// text.
func greedy(p *api.Request) (is bool) {
	for name, value := range p.Members {
		if string(name) == "temperature" {
			t, err := strconv.ParseFloat(string(value), 64)
			is = err == nil && t == 0
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

func plainFormat(value []byte) bool {
	m := members(value)
	return len(m) == 1 && string(m["type"]) == `"text"`
}

// recoverable has the fields of a request that stand in no way of a recovery. The value says whether a continuation
// gets the field, too: the other fields make the prompt, or concern only the first worker.
var recoverable = map[string]bool{
	"model": true, "stream": true, "user": true, "priority": true, "cache_salt": true, "top_p": true, "top_k": true, "min_p": true,
	"repetition_penalty": true, "logit_bias": true, "stop": true, "stop_token_ids": true, "ignore_eos": true,
	"include_stop_str_in_output": true, "skip_special_tokens": true, "spaces_between_special_tokens": true, "metadata": true,
	"messages": false, "prompt": false, "max_tokens": false, "max_completion_tokens": false, "min_tokens": false,
	"chat_template": false, "chat_template_kwargs": false, "add_generation_prompt": false, "add_special_tokens": false,
	"documents": false, "session_id": false, "session_params": false, "user_id": false, "prompt_cache_key": false,
	"request_id": false, "parallel_tool_calls": false, "service_tier": false, "store": false,
}

// copied are the fields of readRecoverable that a continuation gets, too.
var copied = map[string]bool{"temperature": true, "seed": true, "stream_options": true, "presence_penalty": true, "frequency_penalty": true}
