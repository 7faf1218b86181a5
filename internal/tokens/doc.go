// Package tokens finds the token ids of a prompt, so that the Router can match it against the index. The ids must be
// the engine's own: other ids never match. They are made in process (Local, compared with engines' ids while serving),
// else by a tokenizer service, else by an engine that serves the model. Answers are remembered by the parts of the body
// that decide the tokens. It never fails a request: when no ids come within the budget, the Outcome says why, and the
// prompt's text is used for approximate matches.
//
// It knows the token endpoints of vLLM and SGLang and nothing of routing.
//
//	found := source.Find(ctx, tokens.Prompt{Request: &read}, workers)
//	request.Tokens, request.Features = found.Tokens, found.Features
package tokens
