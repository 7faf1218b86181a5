package api

import "bytes"

// openAIResponses is POST /v1/responses, as OpenAI defines it and vLLM and SGLang extend it. An answer in one piece is
// an object of the type response. In a stream, each event has its type in the event's line and in its document, and the
// last event is response.completed, response.incomplete or response.failed. There is no [DONE].
var openAIResponses = dialect{
	name: "openai_responses",
	path: "/v1/responses",
	reads: openAICommon | fields(FieldInput, FieldInstructions, FieldTools, FieldToolChoice, FieldMaxOutputTokens,
		FieldPreviousResponseID, FieldChatTemplate, FieldChatTemplateKwargs, FieldReasoning, FieldText),
	sized:            fields(FieldInput, FieldInstructions, FieldTools),
	matched:          true,
	appendError:      appendOpenAIError,
	appendErrorEvent: appendResponsesErrorEvent,
	ends:             byKind,
	watch:            watchResponses,
	kinds:            responsesKind,
}

// openAIResponse is everything below /v1/responses/: GET and DELETE of a response, cancel, and input_items. The
// requests have no body that the router reads.
var openAIResponse = dialect{
	name:        "openai_response",
	path:        "/v1/responses/{id}",
	appendError: appendOpenAIError,
	ends:        byFraming,
	watch:       watchNothing,
}

// appendResponsesErrorEvent appends the event of the type error. Besides OpenAI's members it has the member error,
// because OpenAI's own clients raise an exception only for an event with that member. The event has no
// sequence_number, because the router does not count the events.
func appendResponsesErrorEvent(dst []byte, e *Error) []byte {
	dst = append(dst, "event: error\ndata: {\"type\":\"error\",\"code\":"...)
	dst = appendStringOrNull(dst, e.Code)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"param":`...)
	dst = appendStringOrNull(dst, e.Param)
	dst = append(dst, ',')
	dst = append(dst, appendOpenAIError(nil, e)[1:]...)
	return append(dst, "\n\n"...)
}

// watchResponses returns the meaning of a key in an answer of /v1/responses. The place inAnswer is the object response
// of an event.
func watchResponses(in place, key []byte) meaning {
	switch in {
	case atRoot:
		switch string(key) {
		case "type":
			return isKind
		case "response":
			return isAnswer
		case "delta":
			return isContent
		case "message":
			return isMessage
		}
		return watchResponse(key)
	case inAnswer:
		return watchResponse(key)
	case inUsage:
		switch string(key) {
		case "input_tokens":
			return isPromptTokens
		case "output_tokens":
			return isCompletionTokens
		case "input_tokens_details":
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

// watchResponse returns the meaning of a key of an object of the type response.
func watchResponse(key []byte) meaning {
	switch string(key) {
	case "id":
		return isID
	case "object", "status":
		return isKind
	case "output":
		return isOutput
	case "model":
		return isModel
	case "usage":
		return isUsage
	case "error":
		return isError
	}
	return nothing
}

// responsesKind reads the type of an event, and the object and the status of a response.
func responsesKind(value []byte) kind {
	switch string(value) {
	case "response", "response.created":
		return beginsAnswer
	case "response.completed", "response.incomplete":
		return endsAnswer
	case "response.failed", "error", "failed":
		return failsAnswer
	}
	if bytes.HasPrefix(value, []byte("response.")) {
		return beginsAnswer
	}
	return otherKind
}
