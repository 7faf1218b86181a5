// Package tokens finds the token ids of a prompt, so that the Router can match the prompt against the index. The ids
// must be the same as the engine's: other ids never match. There are three sources, tried in this order: ids made in
// process (type Local; while serving, samples are compared with engines' ids), a tokenizer service, and an engine that
// serves the model. Engines' answers are remembered. Their key is a hash of the parts of the body that can change the
// tokens. Finding ids never fails a request. If no ids come within the budget, Found.Missing says why, and the prompt's
// text is used for approximate matches.
//
// The package knows the token endpoints of vLLM and SGLang. It knows nothing about routing.
//
//	found := source.Find(ctx, tokens.Prompt{Request: &read}, workers)
//	request.Tokens, request.Features = found.Tokens, found.Features
package tokens
