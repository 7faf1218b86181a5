package api

// Field is a top-level key of a request that routing or tokenizing reads. A request that has such a key twice is
// refused: parsers differ in which of the two values they use, and the router must use the same value as the engine.
type Field uint8

// The fields, named after their JSON keys.
const (
	FieldModel Field = iota
	FieldStream
	FieldStreamOptions
	FieldMessages
	FieldPrompt
	FieldInputIDs
	FieldPromptEmbeds
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
	FieldSessionParams
	FieldUserID
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
	FieldInput
	FieldInstructions
	FieldPreviousResponseID
	FieldMaxOutputTokens
	FieldReasoning
	FieldSystem
	FieldMetadata
	FieldThinking
	FieldOutputConfig
	FieldText
	FieldSamplingParams
	FieldInputEmbeds
	FieldImageData
	FieldAudioData
	FieldVideoData
	FieldLoRAPath
	FieldEncodingFormat
	FieldQuery
	FieldQueries
	FieldItems
	FieldText1
	FieldText2
	FieldData1
	FieldData2
	FieldTokens

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

var fieldNames = [numFields]string{
	FieldModel:                "model",
	FieldStream:               "stream",
	FieldStreamOptions:        "stream_options",
	FieldMessages:             "messages",
	FieldPrompt:               "prompt",
	FieldInputIDs:             "input_ids",
	FieldPromptEmbeds:         "prompt_embeds",
	FieldTools:                "tools",
	FieldToolChoice:           "tool_choice",
	FieldMaxTokens:            "max_tokens",
	FieldMaxCompletionTokens:  "max_completion_tokens",
	FieldN:                    "n",
	FieldCacheSalt:            "cache_salt",
	FieldExtraKey:             "extra_key",
	FieldRID:                  "rid",
	FieldRequestID:            "request_id",
	FieldUser:                 "user",
	FieldSessionID:            "session_id",
	FieldPromptCacheKey:       "prompt_cache_key",
	FieldSessionParams:        "session_params",
	FieldUserID:               "user_id",
	FieldPriority:             "priority",
	FieldRoutedDPRank:         "routed_dp_rank",
	FieldDataParallelRank:     "data_parallel_rank",
	FieldAddGenerationPrompt:  "add_generation_prompt",
	FieldContinueFinalMessage: "continue_final_message",
	FieldAddSpecialTokens:     "add_special_tokens",
	FieldChatTemplate:         "chat_template",
	FieldChatTemplateKwargs:   "chat_template_kwargs",
	FieldMMProcessorKwargs:    "mm_processor_kwargs",
	FieldDocuments:            "documents",
	FieldReasoningEffort:      "reasoning_effort",
	FieldKVTransferParams:     "kv_transfer_params",
	FieldInput:                "input",
	FieldInstructions:         "instructions",
	FieldPreviousResponseID:   "previous_response_id",
	FieldMaxOutputTokens:      "max_output_tokens",
	FieldReasoning:            "reasoning",
	FieldSystem:               "system",
	FieldMetadata:             "metadata",
	FieldThinking:             "thinking",
	FieldOutputConfig:         "output_config",
	FieldText:                 "text",
	FieldSamplingParams:       "sampling_params",
	FieldInputEmbeds:          "input_embeds",
	FieldImageData:            "image_data",
	FieldAudioData:            "audio_data",
	FieldVideoData:            "video_data",
	FieldLoRAPath:             "lora_path",
	FieldEncodingFormat:       "encoding_format",
	FieldQuery:                "query",
	FieldQueries:              "queries",
	FieldItems:                "items",
	FieldText1:                "text_1",
	FieldText2:                "text_2",
	FieldData1:                "data_1",
	FieldData2:                "data_2",
	FieldTokens:               "tokens",
}

// String returns the field's key.
func (f Field) String() string { return fieldNames[f] }

// fieldOf returns the field with the given key, or noField when there is none. Keys are compared byte for byte: "Model"
// is not "model". The compiler turns this switch into a search that neither hashes nor allocates.
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
	case "prompt_embeds":
		return FieldPromptEmbeds
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
	case "session_params":
		return FieldSessionParams
	case "user_id":
		return FieldUserID
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
	return laterFieldOf(key)
}

// laterFieldOf is fieldOf for the fields that chats and completions do not have.
func laterFieldOf(key []byte) Field {
	switch string(key) {
	case "input":
		return FieldInput
	case "instructions":
		return FieldInstructions
	case "previous_response_id":
		return FieldPreviousResponseID
	case "max_output_tokens":
		return FieldMaxOutputTokens
	case "reasoning":
		return FieldReasoning
	case "system":
		return FieldSystem
	case "metadata":
		return FieldMetadata
	case "thinking":
		return FieldThinking
	case "output_config":
		return FieldOutputConfig
	case "text":
		return FieldText
	case "sampling_params":
		return FieldSamplingParams
	case "input_embeds":
		return FieldInputEmbeds
	case "image_data":
		return FieldImageData
	case "audio_data":
		return FieldAudioData
	case "video_data":
		return FieldVideoData
	case "lora_path":
		return FieldLoRAPath
	case "encoding_format":
		return FieldEncodingFormat
	case "query":
		return FieldQuery
	case "queries":
		return FieldQueries
	case "items":
		return FieldItems
	case "text_1":
		return FieldText1
	case "text_2":
		return FieldText2
	case "data_1":
		return FieldData1
	case "data_2":
		return FieldData2
	case "tokens":
		return FieldTokens
	}
	return noField
}

// span is the position of a value in the body; end is 0 when the value is absent.
type span struct{ start, end int }
