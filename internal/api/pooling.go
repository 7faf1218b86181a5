package api

import "github.com/warmpath/warmpath/internal/jsonscan"

// The dialects of this file answer with one document, without a generation: vectors, scores, labels, tokens. Their
// prompts leave nothing in a cache that another request could use, so the requests are routed by load.

// openAIEmbeddings is POST /v1/embeddings. vLLM also takes messages in place of input.
var openAIEmbeddings = dialect{
	name:        "openai_embeddings",
	path:        "/v1/embeddings",
	reads:       poolingCommon | fields(FieldInput, FieldMessages, FieldEncodingFormat),
	sized:       fields(FieldInput, FieldMessages),
	appendError: appendOpenAIError,
	ends:        byShape,
	watch:       watchAnswer,
}

// rerank is POST /v1/rerank, /rerank and /v2/rerank. vLLM answers with an object, SGLang with an array.
var rerank = dialect{
	name:        "rerank",
	path:        "/v1/rerank",
	reads:       poolingCommon | fields(FieldQuery, FieldDocuments),
	sized:       fields(FieldQuery, FieldDocuments),
	appendError: appendOpenAIError,
	ends:        byShape,
	watch:       watchAnswer,
	lists:       true,
}

// score is POST /v1/score and /score. vLLM takes the two sides under several names; SGLang takes query and items.
var score = dialect{
	name: "score",
	path: "/v1/score",
	reads: poolingCommon | fields(FieldQuery, FieldQueries, FieldDocuments, FieldItems, FieldText1, FieldText2, FieldData1,
		FieldData2),
	sized: fields(FieldQuery, FieldQueries, FieldDocuments, FieldItems, FieldText1, FieldText2, FieldData1, FieldData2),

	appendError: appendOpenAIError,
	ends:        byShape,
	watch:       watchAnswer,
}

// classify is POST /v1/classify and /classify. SGLang's /classify takes text or input_ids, and answers with the
// embedding that is the score, or with an array of such objects.
var classify = dialect{
	name:        "classify",
	path:        "/v1/classify",
	reads:       poolingCommon | fields(FieldInput, FieldMessages),
	sized:       fields(FieldInput, FieldMessages),
	appendError: appendOpenAIError,
	ends:        byShape,
	watch:       watchAnswer,
	lists:       true,
}

// tokenize is POST /tokenize and /v1/tokenize.
var tokenize = dialect{
	name:        "tokenize",
	path:        "/tokenize",
	reads:       poolingCommon | fields(FieldPrompt, FieldMessages, FieldTools),
	sized:       fields(FieldPrompt, FieldMessages, FieldTools),
	appendError: appendOpenAIError,
	ends:        byShape,
	watch:       watchAnswer,
}

// detokenize is POST /detokenize and /v1/detokenize.
var detokenize = dialect{
	name:        "detokenize",
	path:        "/detokenize",
	reads:       poolingCommon | fields(FieldTokens),
	sized:       fields(FieldTokens),
	appendError: appendOpenAIError,
	ends:        byShape,
	watch:       watchAnswer,
}

// poolingCommon are the fields that the dialects of this file and of media.go read besides their prompts.
var poolingCommon = fields(FieldModel, FieldUser, FieldRID, FieldRequestID, FieldSessionID, FieldPriority)

// watchAnswer returns the meaning of a key in an answer of the dialects of this file. One of the keys with the meaning
// isOutput is in each answer, and in no error.
func watchAnswer(in place, key []byte) meaning {
	switch in {
	case atRoot:
		switch string(key) {
		case "data", "results", "scores", "embedding", "tokens", "count", "prompt", "text":
			return isOutput
		case "score": // of an element of SGLang's list
			return isOutput
		case "usage":
			return isUsage
		case "model":
			return isModel
		case "error":
			return isError
		case "object":
			return isObject
		case "message":
			return isMessage
		case "code":
			return isCode
		}
	case inUsage:
		switch string(key) {
		case "prompt_tokens":
			return isPromptTokens
		case "completion_tokens":
			return isCompletionTokens
		}
	case inError:
		return watchError(key)
	}
	return nothing
}

// readEncoding reads encoding_format, to find out whether the answer will be JSON.
func (r *Request) readEncoding(s *jsonscan.Scanner) {
	if s.Peek() != '"' {
		s.Skip()
		return
	}
	raw, escaped := s.Text()
	r.Bytes = r.is(raw, escaped, "bytes") || r.is(raw, escaped, "bytes_only")
}
