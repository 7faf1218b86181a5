// Package jinja is an interpreter for Jinja templates as models carry them: it renders what CPython's jinja2 renders.
//
//	t, err := jinja.Parse(source)                                   // once per template
//	text, err := t.Render(nil, jinja.Options{Now: time.Now()}, vars) // vars is a *jinja.Dict
//
// The language is that of jinja2 3.1, with the settings of Transformers for chat templates: the immutable sandbox,
// trim_blocks and lstrip_blocks, break and continue, the generation tag, tojson without HTML escaping, raise_exception
// and strftime_now. Values behave as in Python: dicts keep their order, integers and floats are different, and None
// prints as None. A Decoder reads values from JSON. When a template is parsed, names are resolved to slots. A render
// walks the parsed tree.
//
// The package refuses include, import, extends and blocks, because a chat template is one text. It also refuses the
// filters random, pprint and urlize, the function lipsum, bytes (str.encode), \N{…} escapes, and texts that would show
// a memory address. It knows no clock, no file, no chat and no engine: the time is an argument, and Limits bound every
// render.
package jinja
