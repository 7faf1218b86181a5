package api

import "github.com/warmpath/warmpath/internal/jsonscan"

// sglangGenerate is POST /generate, SGLang's own form of a completion. The prompt is in text or in input_ids. Each
// document of a stream has the whole text so far. The outermost object of a document is a choice. For a batch, an
// answer in one piece is an array of such objects.
var sglangGenerate = dialect{
	name: "sglang_generate",
	path: "/generate",
	reads: fields(FieldModel, FieldStream, FieldText, FieldInputIDs, FieldInputEmbeds, FieldSamplingParams, FieldImageData,
		FieldAudioData, FieldVideoData, FieldLoRAPath, FieldCacheSalt, FieldExtraKey, FieldRID, FieldSessionID,
		FieldSessionParams, FieldPriority, FieldRoutedDPRank, FieldDataParallelRank),
	sized:            fields(FieldText, FieldInputIDs),
	matched:          true,
	appendError:      appendOpenAIError,
	appendErrorEvent: appendOpenAIErrorEvent,
	ends:             byChoices,
	watch:            watchGenerate,
	root:             inChoice,
	lists:            true,
}

// watchGenerate returns the meaning of a key in an answer of /generate.
func watchGenerate(in place, key []byte) meaning {
	switch in {
	case inChoice:
		switch string(key) {
		case "text", "output_ids":
			return isContent
		case "meta_info":
			return isUsage
		case "index":
			return isIndex
		case "error":
			return isError
		case "object":
			return isObject
		case "message":
			return isMessage
		}
	case inUsage:
		switch string(key) {
		case "finish_reason":
			return isReason
		case "prompt_tokens":
			return isPromptTokens
		case "completion_tokens":
			return isCompletionTokens
		case "cached_tokens":
			return isCachedTokens
		}
	case inReason:
		if string(key) == "type" {
			return isFinish
		}
	case inError:
		return watchError(key)
	}
	return nothing
}

// readInputIDs reads input_ids: one list, or at /generate also a list of lists.
func (r *Request) readInputIDs(s *jsonscan.Scanner) {
	ahead := *s
	if r.Dialect != SGLangGenerate || s.Peek() != '[' || !ahead.Open('[') || ahead.Peek() != '[' {
		r.Form = PromptIDs
		r.readIDs(s, FieldInputIDs)
		return
	}
	r.Form = PromptIDLists
	for more := s.Open('['); more; more = s.Next(']') {
		r.readIDs(s, FieldInputIDs)
		r.Prompts++
	}
}

// readText reads text of /generate: a text or a list of texts. In other dialects text has another meaning, and is
// skipped. If a request has input_ids, too, the engine refuses the request.
func (r *Request) readText(s *jsonscan.Scanner) {
	switch {
	case r.Dialect != SGLangGenerate:
		s.Skip()
	case s.Peek() == '"':
		r.Form, r.Prompts = PromptText, 1
		s.Text()
	case s.Peek() == '[':
		r.Form = PromptTexts
		for more := s.Open('['); more; more = s.Next(']') {
			if s.Peek() != '"' {
				wrongType(s, FieldText, "a text or a list of texts")
				return
			}
			s.Text()
			r.Prompts++
		}
	default:
		wrongType(s, FieldText, "a text or a list of texts")
	}
}

// readSampling reads the length and the number of answers from sampling_params. A batch may have a list of parameters,
// which is skipped: its limits are not known.
func (r *Request) readSampling(s *jsonscan.Scanner) {
	if s.Peek() != '{' {
		r.NoAnswer = true
		s.Skip()
		return
	}
	for more := s.Open('{'); more; more = s.Next('}') {
		raw, escaped := s.Key()
		switch {
		case !jsonscan.IsNumber(s.Peek()):
			s.Skip()
		case r.is(raw, escaped, "max_new_tokens"):
			readInt(s, FieldSamplingParams, &r.MaxTokens)
			r.LongestAnswer = r.MaxTokens
			r.NoAnswer = r.MaxTokens <= 0
		case r.is(raw, escaped, "n"):
			readInt(s, FieldSamplingParams, &r.N)
			r.N = max(r.N, 1)
		default:
			s.Skip()
		}
	}
}
