package api

// Field names a top-level key of a request that routing or tokenizing reads. A request that gives one of them twice is
// refused: parsers differ in which one they believe, and ours must not differ from the engine's.
type Field uint8

// The fields, named after their JSON keys.
const (
	FieldModel Field = iota
	FieldStream
	FieldStreamOptions
	FieldMessages
	FieldPrompt
	FieldInputIDs
	FieldTools
	FieldToolChoice
	FieldMaxTokens
	FieldMaxCompletionTokens
	FieldN
	FieldCacheSalt
	FieldExtraKey
	FieldRID
	FieldRequestID
	FieldUser
	FieldSessionID
	FieldPromptCacheKey
	FieldPriority
	FieldRoutedDPRank
	FieldDataParallelRank
	FieldAddGenerationPrompt
	FieldContinueFinalMessage
	FieldAddSpecialTokens
	FieldChatTemplate
	FieldChatTemplateKwargs
	FieldMMProcessorKwargs
	FieldDocuments
	FieldReasoningEffort
	FieldKVTransferParams

	numFields
	noField = numFields
)

type fieldSet uint64

func (s fieldSet) has(f Field) bool { return s>>f&1 != 0 }

func fields(list ...Field) fieldSet {
	var s fieldSet
	for _, f := range list {
		s |= 1 << f
	}
	return s
}

// fieldOf returns the field with the given key, noField when there is none. Keys are compared byte for byte: "Model" is
// not "model".
func fieldOf(key []byte) Field {
	switch string(key) {
	case "model":
		return FieldModel
	case "stream":
		return FieldStream
	case "stream_options":
		return FieldStreamOptions
	case "messages":
		return FieldMessages
	case "prompt":
		return FieldPrompt
	case "input_ids":
		return FieldInputIDs
	case "tools":
		return FieldTools
	case "tool_choice":
		return FieldToolChoice
	case "max_tokens":
		return FieldMaxTokens
	case "max_completion_tokens":
		return FieldMaxCompletionTokens
	case "n":
		return FieldN
	case "cache_salt":
		return FieldCacheSalt
	case "extra_key":
		return FieldExtraKey
	case "rid":
		return FieldRID
	case "request_id":
		return FieldRequestID
	case "user":
		return FieldUser
	case "session_id":
		return FieldSessionID
	case "prompt_cache_key":
		return FieldPromptCacheKey
	case "priority":
		return FieldPriority
	case "routed_dp_rank":
		return FieldRoutedDPRank
	case "data_parallel_rank":
		return FieldDataParallelRank
	case "add_generation_prompt":
		return FieldAddGenerationPrompt
	case "continue_final_message":
		return FieldContinueFinalMessage
	case "add_special_tokens":
		return FieldAddSpecialTokens
	case "chat_template":
		return FieldChatTemplate
	case "chat_template_kwargs":
		return FieldChatTemplateKwargs
	case "mm_processor_kwargs":
		return FieldMMProcessorKwargs
	case "documents":
		return FieldDocuments
	case "reasoning_effort":
		return FieldReasoningEffort
	case "kv_transfer_params":
		return FieldKVTransferParams
	}
	return noField
}

// span is where a value lies in the body; end 0 means that it is absent.
type span struct{ start, end int }
