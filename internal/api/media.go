package api

// openAIAudio is POST /v1/audio/speech, /v1/audio/transcriptions, /v1/audio/translations and what engines add. The
// requests are JSON or forms; the answers are sound, text, JSON or events. The router reads only the model's name.
var openAIAudio = dialect{
	name:        "openai_audio",
	path:        "/v1/audio/{kind}",
	reads:       poolingCommon | fields(FieldInput),
	sized:       fields(FieldInput),
	appendError: appendOpenAIError,
	ends:        byFraming,
	watch:       watchNothing,
}

// openAIImages is POST /v1/images/generations, /v1/images/edits, /v1/images/variations and what engines add.
var openAIImages = dialect{
	name:        "openai_images",
	path:        "/v1/images/{kind}",
	reads:       poolingCommon | fields(FieldPrompt),
	sized:       fields(FieldPrompt),
	appendError: appendOpenAIError,
	ends:        byFraming,
	watch:       watchNothing,
}

// watchNothing gives no key a meaning: the answers of these dialects are not read.
func watchNothing(place, []byte) meaning { return nothing }
