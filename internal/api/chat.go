package api

// openAIChat is POST /v1/chat/completions, as OpenAI defines it and vLLM and SGLang extend it.
var openAIChat = dialect{
	name: "openai_chat",
	path: "/v1/chat/completions",
	reads: openAICommon | fields(FieldMessages, FieldInputIDs, FieldTools, FieldToolChoice, FieldMaxCompletionTokens,
		FieldAddGenerationPrompt, FieldContinueFinalMessage, FieldAddSpecialTokens, FieldChatTemplate, FieldChatTemplateKwargs,
		FieldMMProcessorKwargs, FieldDocuments, FieldReasoningEffort),
	appendError:      appendOpenAIError,
	appendErrorEvent: appendOpenAIErrorEvent,
}

// openAICommon are the fields that both of OpenAI's older dialects read.
var openAICommon = fields(FieldModel, FieldStream, FieldStreamOptions, FieldMaxTokens, FieldN, FieldCacheSalt, FieldExtraKey,
	FieldRID, FieldRequestID, FieldUser, FieldSessionID, FieldPromptCacheKey, FieldPriority, FieldRoutedDPRank,
	FieldDataParallelRank, FieldKVTransferParams)

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
