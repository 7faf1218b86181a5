// Package tokens finds the token ids of a prompt, so that the Router can match it against the index. Exactness begins
// here: ids that are not the engine's own never match. They are made in process (Local, checked against engines while
// serving), else by a tokenizer service, else by an engine that serves the model. Answers are remembered by the parts
// of the body that decide the tokens. It never fails a request: what does not come within the budget is an Outcome to
// count, and the prompt's text stands in, for matches that are approximate and called so.
//
// It knows the token endpoints of vLLM and SGLang and nothing of routing.
//
//	found := source.Find(ctx, tokens.Prompt{Request: &read}, workers)
//	request.Tokens, request.Features = found.Tokens, found.Features
package tokens
