// Package chat turns an OpenAI chat request into the text of the prompt, exactly as vLLM 0.32 or SGLang 0.5.23 does: it
// checks the request, changes its messages and tools as the engine does, and renders the model's chat template with
// them.
//
//	t, err := chat.Parse(source)                          // once per model
//	q, err := t.ReadRequest(body, chat.RequestConfig{})   // once per request
//	text, err := q.Render(nil, chat.RenderContext{Tokens: specialTokens, Now: time.Now()})
//
// For gpt-oss, which vLLM renders without a template, ReadHarmony returns the prompt in pieces. The package refuses to
// know how a template is rendered (tokenizer/jinja), and where a model's files lie.
package chat
