package api

// This file has what the dialects of OpenAI have in common. Other dialects use its form of errors, too.

// openAICommon are the fields that chats, completions and responses read.
var openAICommon = fields(FieldModel, FieldStream, FieldStreamOptions, FieldMaxTokens, FieldN, FieldCacheSalt,
	FieldExtraKey, FieldRID, FieldRequestID, FieldUser, FieldSessionID, FieldPromptCacheKey, FieldSessionParams,
	FieldUserID, FieldPriority, FieldRoutedDPRank, FieldDataParallelRank, FieldKVTransferParams)

// appendOpenAIError appends {"error":{"message","type","param","code"}}.
func appendOpenAIError(dst []byte, e *Error) []byte {
	dst = append(dst, `{"error":{"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendStringOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendStringOrNull(dst, e.Code)
	return append(dst, `}}`...)
}

func appendOpenAIErrorEvent(dst []byte, e *Error) []byte {
	dst = append(dst, "data: "...)
	dst = appendOpenAIError(dst, e)
	return append(dst, "\n\n"...)
}

// watchOpenAI returns the meaning of a key in an answer to a chat or a completion: chat.completion,
// chat.completion.chunk or text_completion. The answer may be a stream or not.
func watchOpenAI(in place, key []byte) meaning {
	switch in {
	case atRoot:
		switch string(key) {
		case "choices":
			return isChoices
		case "usage":
			return isUsage
		case "error":
			return isError
		case "object":
			return isObject
		case "message":
			return isMessage
		case "model":
			return isModel
		case "code":
			return isCode
		}
	case inChoice:
		switch string(key) {
		case "index":
			return isIndex
		case "finish_reason":
			return isFinish
		case "delta", "message":
			return isDelta
		case "text", "token_ids":
			return isContent
		}
	case inDelta:
		// The values of content, reasoning_content, reasoning, refusal, tool_calls and function_call are generated
		// tokens.
		if string(key) != "role" {
			return isContent
		}
	case inUsage:
		switch string(key) {
		case "prompt_tokens":
			return isPromptTokens
		case "completion_tokens":
			return isCompletionTokens
		case "prompt_tokens_details":
			return isDetails
		}
	case inDetails:
		if string(key) == "cached_tokens" {
			return isCachedTokens
		}
	case inError:
		return watchError(key)
	}
	return nothing
}

// watchError returns the meaning of a key in the error object of every dialect but Anthropic's.
func watchError(key []byte) meaning {
	switch string(key) {
	case "message":
		return isMessage
	case "code":
		return isCode
	}
	return nothing
}
