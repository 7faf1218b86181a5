package api

// openAIChat is POST /v1/chat/completions, as OpenAI defines it and vLLM and SGLang extend it.
var openAIChat = dialect{
	name: "openai_chat",
	path: "/v1/chat/completions",
	reads: openAICommon | fields(FieldMessages, FieldInputIDs, FieldTools, FieldToolChoice, FieldMaxCompletionTokens,
		FieldAddGenerationPrompt, FieldContinueFinalMessage, FieldAddSpecialTokens, FieldChatTemplate,
		FieldChatTemplateKwargs, FieldMMProcessorKwargs, FieldDocuments, FieldReasoningEffort),
	sized:            fields(FieldMessages, FieldInputIDs, FieldTools),
	matched:          true,
	appendError:      appendOpenAIError,
	appendErrorEvent: appendOpenAIErrorEvent,
	watch:            watchOpenAI,
}
