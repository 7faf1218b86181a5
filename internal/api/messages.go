package api

import "github.com/warmpath/warmpath/internal/jsonscan"

// anthropicMessages is POST /v1/messages, as Anthropic defines it and vLLM and SGLang serve it. A stream begins with
// the event message_start and ends with message_stop.
var anthropicMessages = dialect{
	name:             "anthropic_messages",
	path:             "/v1/messages",
	reads:            anthropicCommon | fields(FieldStream, FieldMaxTokens, FieldCacheSalt, FieldPriority, FieldKVTransferParams),
	sized:            fields(FieldSystem, FieldMessages, FieldTools),
	matched:          true,
	appendError:      appendAnthropicError,
	appendErrorEvent: appendAnthropicErrorEvent,
	ends:             byKind,
	watch:            watchAnthropic,
	kinds:            anthropicKind,
	split:            true,
}

// anthropicCountTokens is POST /v1/messages/count_tokens.
var anthropicCountTokens = dialect{
	name:        "anthropic_count_tokens",
	path:        "/v1/messages/count_tokens",
	reads:       anthropicCommon,
	sized:       fields(FieldSystem, FieldMessages, FieldTools),
	appendError: appendAnthropicError,
	ends:        byShape,
	watch: func(in place, key []byte) meaning {
		if in == atRoot && string(key) == "input_tokens" {
			return isOutput
		}
		return watchAnswer(in, key)
	},
}

// anthropicCommon are the fields that both Anthropic dialects read.
var anthropicCommon = fields(FieldModel, FieldMessages, FieldSystem, FieldTools, FieldToolChoice, FieldMetadata,
	FieldThinking, FieldOutputConfig, FieldChatTemplateKwargs, FieldSessionID)

// appendAnthropicError appends {"type":"error","error":{"type","message"}}. The router's own code and param follow,
// which clients skip.
func appendAnthropicError(dst []byte, e *Error) []byte {
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = appendString(dst, anthropicType(e.Status))
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"param":`...)
	dst = appendStringOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendStringOrNull(dst, e.Code)
	return append(dst, `}}`...)
}

func appendAnthropicErrorEvent(dst []byte, e *Error) []byte {
	dst = append(dst, "event: error\ndata: "...)
	dst = appendAnthropicError(dst, e)
	return append(dst, "\n\n"...)
}

// anthropicType returns Anthropic's type of an error with this status.
func anthropicType(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503, 529:
		return "overloaded_error"
	case 504:
		return "timeout_error"
	}
	if status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

// watchAnthropic returns the meaning of a key in an answer of /v1/messages. The place inAnswer is the object message of
// the event message_start. A delta and a content block have the same keys.
func watchAnthropic(in place, key []byte) meaning {
	switch in {
	case atRoot:
		switch string(key) {
		case "type":
			return isKind
		case "message":
			return isAnswer
		case "delta", "content_block":
			return isDelta
		case "error":
			return isError
		}
		return watchMessage(key)
	case inAnswer:
		return watchMessage(key)
	case inDelta:
		switch string(key) {
		case "text", "thinking", "partial_json":
			return isContent
		case "stop_reason":
			return isFinish
		}
	case inUsage:
		switch string(key) {
		case "input_tokens":
			return isPromptTokens
		case "output_tokens":
			return isCompletionTokens
		case "cache_read_input_tokens":
			return isCachedTokens
		case "cache_creation_input_tokens":
			return isCreatedTokens
		}
	case inError:
		if string(key) == "message" {
			return isMessage
		}
	}
	return nothing
}

// watchMessage returns the meaning of a key of a message.
func watchMessage(key []byte) meaning {
	switch string(key) {
	case "content":
		return isContent
	case "stop_reason":
		return isFinish
	case "model":
		return isModel
	case "usage":
		return isUsage
	}
	return nothing
}

// anthropicKind reads the type of an event or of a message.
func anthropicKind(value []byte) kind {
	switch string(value) {
	case "message", "message_start":
		return beginsAnswer
	case "message_stop":
		return endsAnswer
	case "error":
		return failsAnswer
	}
	return otherKind
}

// readMetadata reads metadata.user_id, with which Claude Code names its session. Values of other types are ignored.
func (r *Request) readMetadata(s *jsonscan.Scanner) {
	if s.Peek() != '{' {
		s.Skip()
		return
	}
	for more := s.Open('{'); more; more = s.Next('}') {
		raw, escaped := s.Key()
		start := s.Pos()
		if s.Peek() == '"' && r.is(raw, escaped, "user_id") {
			r.readString(s, FieldUserID, &r.userID)
			r.spans[FieldUserID] = span{start, s.Pos()}
		} else {
			s.Skip()
		}
	}
}
