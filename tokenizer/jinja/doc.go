// Package jinja is an interpreter for the Jinja chat templates of models. It renders the same text as CPython's jinja2.
//
//	t, err := jinja.Parse(source)                                   // once per template
//	text, err := t.Render(nil, jinja.Options{Now: time.Now()}, vars) // vars is a *jinja.Dict
//
// The language is the language of jinja2 3.1, with the settings of Transformers for chat templates: the immutable
// sandbox, trim_blocks and lstrip_blocks, break and continue, the generation tag, tojson without HTML escaping,
// raise_exception and strftime_now. Values behave as in Python: dicts keep their order, integers and floats are
// different, and None prints as None. A Decoder reads values from JSON. When a template is parsed, each name gets a
// slot, which is an index into the variables of a render. A render walks the parsed tree.
//
// The package refuses include, import, extends and blocks, because a chat template is one text. It also refuses the
// filters random, pprint and urlize, the function lipsum, bytes (str.encode), \N{…} escapes, and texts that would show
// a memory address. It knows no clock, no file, no chat and no engine. The time is an argument of a render, and Limits
// bound the cost of a render.
package jinja
