// Package jinja turns a chat request into the text a model reads, exactly as the inference engine does: it renders
// the model's chat template (the Jinja2 source in tokenizer_config.json or chat_template.jinja) and, before that, does to
// the request what vLLM or SGLang does to it. Most callers want
//
//	t, err := jinja.Parse(source)                       // once per model
//	q, err := t.ReadRequest(body, jinja.RequestConfig{}) // per request
//	text, err := q.Render(nil, jinja.RenderContext{Tokens: specialTokens, Now: now})
//
// The language is jinja2 3.1's as Transformers sets it up: the immutable sandbox, trim_blocks and lstrip_blocks, break and
// continue, the generation tag, tojson without HTML escaping, raise_exception and strftime_now. Values are Python's: dicts
// keep their order, integers and floats stay apart, None prints as None. Names are resolved to slots and trees are built
// when a template is parsed; rendering walks them over a value type of its own.
//
// It refuses what a chat template cannot use or nobody can predict: include, import, extends and blocks, the filters
// random, pprint and urlize, lipsum, bytes (str.encode), \N{…} escapes, and texts that would show a memory address. It
// knows no clock, no file and no engine: the time is an argument, and every render is bounded by Limits, whoever wrote the
// template.
package jinja
