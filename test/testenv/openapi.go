package testenv

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// OpenAPI is an OpenAPI 3.1 document (https://spec.openapis.org/oas/v3.1.0), whose schemas are JSON Schemas of draft
// 2020-12.
type OpenAPI struct {
	doc      map[string]any
	compiler *jsonschema.Compiler
}

// Operation is a method of a path in the document.
type Operation struct {
	Method, Path string // Method in capitals; Path with {names} of parameters
	Example      any    // of the request's body; nil: the operation takes no body
	Form         bool   // the body is a form
	at           string // the operation's place, as a JSON pointer
}

// ReadOpenAPI reads a document. In its schemas an object has no other members than those that the schema names, unless
// loose contains the schema's name.
func ReadOpenAPI(t testing.TB, document []byte, loose ...string) *OpenAPI {
	t.Helper()
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
	if err != nil {
		t.Fatalf("read the OpenAPI document: %v", err)
	}
	d := &OpenAPI{doc: parsed.(map[string]any), compiler: jsonschema.NewCompiler()}
	for name, schema := range d.at("/components/schemas").(map[string]any) {
		if !slices.Contains(loose, name) {
			tighten(schema)
		}
	}
	d.compiler.DefaultDraft(jsonschema.Draft2020)
	if err := d.compiler.AddResource("openapi.json", d.doc); err != nil {
		t.Fatalf("read the OpenAPI document: %v", err)
	}
	return d
}

// tighten forbids members that a schema does not name.
func tighten(schema any) {
	switch v := schema.(type) {
	case map[string]any:
		if _, is := v["properties"].(map[string]any); is && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
		for _, part := range v {
			tighten(part)
		}
	case []any:
		for _, part := range v {
			tighten(part)
		}
	}
}

// at returns the value at a JSON pointer, nil if there is none. It follows references.
func (d *OpenAPI) at(pointer string) any {
	var value any = d.doc
	for step := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		object, _ := value.(map[string]any)
		value = object[strings.NewReplacer("~1", "/", "~0", "~").Replace(step)]
		if object, is := value.(map[string]any); is && object["$ref"] != nil {
			value = d.at(strings.TrimPrefix(object["$ref"].(string), "#"))
		}
	}
	return value
}

func escape(step string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(step) }

// Operations returns all operations, by path and method.
func (d *OpenAPI) Operations() (all []Operation) {
	paths := d.at("/paths").(map[string]any)
	for _, path := range slices.Sorted(maps.Keys(paths)) {
		methods := paths[path].(map[string]any)
		for _, method := range slices.Sorted(maps.Keys(methods)) {
			o := Operation{Method: strings.ToUpper(method), Path: path, at: "/paths/" + escape(path) + "/" + method}
			content, _ := d.at(o.at + "/requestBody/content").(map[string]any)
			for kind := range content {
				o.Form = kind == "multipart/form-data"
				o.Example = d.at(o.at + "/requestBody/content/" + escape(kind) + "/example")
			}
			all = append(all, o)
		}
	}
	return all
}

// Schema returns a schema of components as it is in the document.
func (d *OpenAPI) Schema(name string) any { return d.at("/components/schemas/" + name) }

// CheckRequest checks the example of an operation's body.
func (d *OpenAPI) CheckRequest(o Operation) error {
	if o.Example == nil {
		return nil
	}
	kind := "application/json"
	if o.Form {
		kind = "multipart/form-data"
	}
	return d.check(o.at+"/requestBody/content/"+escape(kind)+"/schema", o.Example)
}

// CheckAnswer checks that an answer is one that the document describes for the operation.
func (d *OpenAPI) CheckAnswer(o Operation, status int, kind string, body []byte) error {
	responses, _ := d.at(o.at + "/responses").(map[string]any)
	name := fmt.Sprint(status)
	if responses[name] == nil {
		name = "default"
	}
	at := o.at + "/responses/" + name
	if direct, _ := responses[name].(map[string]any); direct["$ref"] != nil { // the compiler follows references only between schemas
		at = strings.TrimPrefix(direct["$ref"].(string), "#")
	}
	response, _ := d.at(at).(map[string]any)
	kind, _, _ = strings.Cut(kind, ";")
	content, _ := response["content"].(map[string]any)
	if content[kind] == nil {
		kind = "*/*"
	}
	media, is := content[kind].(map[string]any)
	switch {
	case !is:
		return fmt.Errorf("no answer of this kind is described: %v", slices.Collect(maps.Keys(content)))
	case media["schema"] == nil:
		return nil
	}
	var value any = string(body)
	if kind == "application/json" {
		var err error
		if value, err = jsonschema.UnmarshalJSON(bytes.NewReader(body)); err != nil {
			return err
		}
	}
	return d.check(at+"/content/"+escape(kind)+"/schema", value)
}

func (d *OpenAPI) check(pointer string, value any) error {
	schema, err := d.compiler.Compile("openapi.json#" + pointer)
	if err != nil {
		return err
	}
	return schema.Validate(value)
}
