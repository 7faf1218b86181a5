package admin_test

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/test/testenv"
)

var update = flag.Bool("update", false, "write the schemas of the answers into openapi.json")

// described are the types of bodies and answers whose schemas are made from the types.
var described = []any{admin.Workers{}, admin.Change{}, admin.Changed{}, admin.Joining{}, admin.Joined{}, admin.Left{}, admin.Decisions{}, admin.Queue{}, admin.Tenants{},
	admin.Explanation{}, admin.Explanations{}, admin.Reloaded{}, admin.RoleChange{}, admin.RoleChanged{}, replica.Status{}}

// A new route without a description fails here, and so does a description of a path that has no route.
func TestEveryRouteIsDescribed(t *testing.T) {
	a, _ := newAdmin(t, admin.DefaultConfig(), nil)
	routes := admin.Routes(a)
	seen := map[string]bool{}
	for _, o := range testenv.ReadOpenAPI(t, admin.OpenAPI).Operations() {
		seen[o.Method+" "+o.Path] = true
		if !slices.Contains(routes[o.Path], o.Method) {
			t.Errorf("%s %s is described, but the listener has no such route", o.Method, o.Path)
		}
	}
	for path, methods := range routes {
		for _, method := range methods {
			if !seen[method+" "+path] {
				t.Errorf("openapi.json does not describe %s %s", method, path)
			}
		}
	}
}

func TestSchemasAreThoseOfTheTypes(t *testing.T) {
	var doc map[string]any
	if err := json.Unmarshal(admin.OpenAPI, &doc); err != nil {
		t.Fatal(err)
	}
	in := doc["components"].(map[string]any)["schemas"].(map[string]any)
	made := schemas{}
	for _, v := range described {
		made.of(reflect.TypeOf(v))
	}
	same := true
	for name, schema := range made {
		if !equal(t, in[name], schema) {
			same = false
			in[name] = schema
		}
	}
	if same {
		return
	}
	if !*update {
		t.Fatal("the schemas in openapi.json are not those of the types: run go test ./internal/admin -update")
	}
	// The order of the members is by name, as in the file.
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(doc); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("openapi.json", text.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, a, b any) bool {
	t.Helper()
	x, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	y, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Equal(x, y)
}

// schemas are JSON schemas by their names in components.
type schemas map[string]map[string]any

type object = map[string]any

// of returns the schema of a type, as encoding/json writes its values. A struct with a name becomes a schema with this
// name.
func (s schemas) of(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[time.Duration]():
		return object{"type": "integer", "description": "nanoseconds"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64, reflect.Float32:
		return object{"type": "number"}
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Slice, reflect.Array:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Interface:
		return object{}
	case reflect.Struct:
		return s.ofStruct(t)
	}
	if t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 {
		return object{"type": "integer"}
	}
	panic(fmt.Sprintf("bug: no schema for %v", t))
}

func (s schemas) ofStruct(t reflect.Type) object {
	ref := object{"$ref": "#/components/schemas/" + t.Name()}
	if s[t.Name()] != nil {
		return ref
	}
	properties, required := object{}, []string{}
	schema := object{"type": "object", "properties": properties}
	s[t.Name()] = schema
	s.members(t, properties, &required, false)
	if len(required) > 0 {
		slices.Sort(required)
		schema["required"] = required
	}
	return ref
}

// members adds the members that encoding/json writes for a struct. optional: all may be absent.
func (s schemas) members(t reflect.Type, properties object, required *[]string, optional bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		of := f.Type
		if of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		switch {
		case f.Anonymous && name == "" && of.Kind() == reflect.Struct:
			s.members(of, properties, required, optional || f.Type.Kind() == reflect.Pointer)
			continue
		case !f.IsExported() || name == "-":
			continue
		case f.Type == reflect.TypeFor[*struct{}](): // it hides a member of an embedded struct
			delete(properties, name)
			*required = slices.DeleteFunc(*required, func(n string) bool { return n == name })
			continue
		case name == "":
			name = f.Name
		}
		properties[name] = s.of(f.Type)
		if !optional && !strings.Contains(options, "omit") && f.Type.Kind() != reflect.Pointer {
			*required = append(*required, name)
		}
	}
}
