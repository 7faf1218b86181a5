// Package inprocess makes a prompt's token ids in this process, from the model's own files: its tokenizer and its chat
// template. The package uses files that the operator names, and files that it finds itself. A [Finder] first compares
// ids from found files with engines' ids, in questions called probes.
//
// The package knows which template a request takes, how vLLM 0.32 and SGLang 0.5.23 turn a chat request into its
// prompt, and how they encode images. It does not know how text becomes ids (tokenizer), or how a template is rendered
// (tokenizer/jinja). While serving, the parent package compares this package's ids with engines' ids, and decides
// whether the router uses them.
//
//	models, err := inprocess.Open([]inprocess.Path{{Path: "/models/qwen3"}})
//	finder := inprocess.NewFinder(inprocess.FinderParts{Fleet: fleet, Asker: source, Given: models, Log: log})
//	source.Local = finder
//
// The files chat_*.go check a chat request, change its messages and tools as the engine does, and render the model's
// chat template with them. vLLM renders prompts for gpt-oss without a template, in the format Harmony. The files
// chat_harmony*.go write these prompts:
//
//	t, err := parseTemplate(source)                  // once per model
//	q, err := t.ReadRequest(body, requestConfig{})   // once per request
//	text, err := q.Render(nil, renderContext{Tokens: specialTokens, Now: time.Now()})
package inprocess
