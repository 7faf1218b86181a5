package api

// openAICompletions is POST /v1/completions, as OpenAI defines it and vLLM and SGLang extend it.
var openAICompletions = dialect{
	name:             "openai_completions",
	path:             "/v1/completions",
	reads:            openAICommon | fields(FieldPrompt, FieldPromptEmbeds, FieldAddSpecialTokens),
	sized:            fields(FieldPrompt),
	matched:          true,
	appendError:      appendOpenAIError,
	appendErrorEvent: appendOpenAIErrorEvent,
	watch:            watchOpenAI,
}
