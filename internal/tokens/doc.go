// Package tokens finds the token ids of a prompt, so that the Router can match the prompt against the index. The ids
// must be the engine's own: other ids never match. There are three sources, tried in this order: ids made in process
// (Local, compared with engines' ids while serving), a tokenizer service, and an engine that serves the model. Answers
// are remembered under a key of the parts of the body that decide the tokens. Finding ids never fails a request. If no
// ids come within the budget, the Outcome says why, and the prompt's text is used for approximate matches.
//
// It knows the token endpoints of vLLM and SGLang, and nothing about routing.
//
//	found := source.Find(ctx, tokens.Prompt{Request: &read}, workers)
//	request.Tokens, request.Features = found.Tokens, found.Features
package tokens
