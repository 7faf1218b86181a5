package config

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/script"
)

var update = flag.Bool("update", false, "rewrite config.sample.yaml from the defaults and the fields' comments")

func TestSampleIsTheDefaultsWithTheirReasons(t *testing.T) {
	g := &generator{t: t, docs: map[string]map[string]string{}}
	g.comment(0, "Every setting of `warmpath serve --config FILE` with its default. Keep only the settings that you change. Only workers has to be set; "+
		"a reload refuses a file without this key. Unknown keys are errors. Durations are written like 50ms, 2s or 1m30s, bytes like 64MiB.")
	g.object(reflect.ValueOf(Default()), 0)
	want := g.out.String()
	if *update {
		if err := os.WriteFile("config.sample.yaml", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, Sample()); diff != "" {
		t.Errorf("config.sample.yaml is not what the defaults say; run go test ./internal/config -update\n%s", diff)
	}
}

// readSample reads text over cfg, without validation.
func readSample(t *testing.T, text string, cfg *Config) {
	t.Helper()
	r, err := parse("f", []byte(text), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.err(); err != nil {
		t.Fatal(err)
	}
}

func TestSampleReadsBackAsTheDefaults(t *testing.T) {
	cfg := Default()
	readSample(t, Sample(), &cfg)
	if diff := cmp.Diff(Default(), cfg); diff != "" {
		t.Error(diff)
	}
}

func TestSampleWorksWithItsWorkersUncommented(t *testing.T) {
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	text := strings.Replace(Sample(), example, strings.ReplaceAll(example, "# ", ""), 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Workers) != 2 || cfg.Workers[1].Model != "my-model" || cfg.Workers[1].Labels["zone"] != "b" {
		t.Errorf("workers %+v", cfg.Workers)
	}
}

func TestSampleWorksWithItsModelsUncommented(t *testing.T) {
	dir := t.TempDir()
	text := strings.Replace(Sample(), modelExample, strings.ReplaceAll(modelExample, "# ", ""), 1)
	for _, path := range []string{"/models/my-model", "/cache/huggingface/hub/models--org--another-model"} {
		here := filepath.Join(dir, path)
		if err := os.MkdirAll(here, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(here, "tokenizer.json"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		text = strings.Replace(text, "path: "+path, "path: "+here, 1)
	}
	file := filepath.Join(dir, "warmpath.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Models) != 2 || cfg.Models[0].Name != "my-model" {
		t.Errorf("models %+v", cfg.Models)
	}
}

// TestSamplePoliciesAreTheDefaults: for each type of policy, the parameters in the sample are the type's defaults.
func TestSamplePoliciesAreTheDefaults(t *testing.T) {
	text := strings.ReplaceAll(policyExample(t), "# ", "")
	cfg := Default()
	readSample(t, "policies:\n"+text, &cfg)
	if len(cfg.Policies) != len(warmpath.PolicyKinds()) {
		t.Fatalf("%d policies of %d kinds", len(cfg.Policies), len(warmpath.PolicyKinds()))
	}
	for i, k := range warmpath.PolicyKinds() {
		if diff := cmp.Diff(cfg.Routing.defaults(k), cfg.Policies[i].Parameters, cmp.AllowUnexported(script.Script{})); diff != "" || cfg.Policies[i].Name != k.Name {
			t.Errorf("%s: %s", k.Name, diff)
		}
	}
}

// generator writes a Config as YAML. Its comments are the comments of the fields in the source.
type generator struct {
	t    *testing.T
	out  strings.Builder
	docs map[string]map[string]string // package path + type → field → comment
}

// example is a commented value for workers, which has no default.
const example = `  # - url: http://gpu-1:8000
  # - url: http://gpu-2:8000
  #   events: tcp://*:5557
  #   replay: tcp://*:5657
  #   model: my-model
  #   ranks: 16
  #   api_key: KEY
  #   labels: {hardware: h100, node: n7, zone: b}
`

func (g *generator) object(v reflect.Value, depth int) {
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Tag.Get("yaml") == "" && !f.Anonymous {
			g.t.Fatalf("%s.%s has no yaml key", v.Type(), f.Name)
		}
		key := fieldKey(f)
		if key == "" {
			continue
		}
		if depth == 0 {
			g.out.WriteByte('\n')
		}
		owner := v.Type() // the struct that declares the field: v's type, or a struct that is embedded in it
		if last := len(f.Index) - 1; last > 0 {
			owner = owner.FieldByIndex(f.Index[:last]).Type
		}
		g.comment(depth, g.doc(owner, f.Name))
		if key == "tenants" { // the key without a list is an error
			g.out.WriteString(tenantExample)
			continue
		}
		indent := strings.Repeat("  ", depth)
		switch value := v.FieldByIndex(f.Index); {
		case key == "workers":
			fmt.Fprintf(&g.out, "%sworkers:\n%s", indent, example)
		case key == "policies":
			fmt.Fprintf(&g.out, "%spolicies:\n%s", indent, policyExample(g.t))
		case key == "models":
			fmt.Fprintf(&g.out, "%smodels:\n%s", indent, modelExample)
		case value.Kind() == reflect.Struct:
			fmt.Fprintf(&g.out, "%s%s:\n", indent, key)
			g.object(value, depth+1)
		default:
			fmt.Fprintf(&g.out, "%s%s: %s\n", indent, key, scalar(g.t, value))
		}
	}
}

// policyExample returns a commented value for policies: every type with the defaults of its parameters.
func policyExample(t *testing.T) string {
	var out strings.Builder
	routing := Default().Routing
	for _, k := range warmpath.PolicyKinds() {
		p := routing.defaults(k)
		fmt.Fprintf(&out, "  # - type: %s\n", k.Name)
		parameters := reflect.ValueOf(p).Elem()
		for i := range parameters.NumField() {
			key := fieldKey(parameters.Type().Field(i))
			if key == "" {
				continue
			}
			field := parameters.Field(i)
			if field.Kind() != reflect.Struct {
				fmt.Fprintf(&out, "  #   %s: %s\n", key, scalar(t, field))
				continue
			}
			var inner []string
			for j := range field.NumField() {
				name := fieldKey(field.Type().Field(j))
				inner = append(inner, name+": "+scalar(t, field.Field(j)))
			}
			fmt.Fprintf(&out, "  #   %s: {%s}\n", key, strings.Join(inner, ", "))
		}
	}
	return out.String()
}

// tenantExample is a commented value for tenants, which has no default.
const tenantExample = `# tenants:
#   - {name: acme, keys_sha256: [9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08], requests_per_second: 10,
#      burst: 20, max_concurrent: 8, tokens_per_minute: 200000, models: ["llama-*", tiny], default_model: tiny,
#      priority: 0, cache_salt: "off"}
`

// modelExample is a commented value for models.
const modelExample = `  # - {name: my-model, path: /models/my-model}
  # - {name: another-model, path: /cache/huggingface/hub/models--org--another-model}
`

func scalar(t *testing.T, v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		s := x.String()
		for _, zero := range []string{"m0s", "h0m"} {
			if strings.HasSuffix(s, zero) {
				s = strings.TrimSuffix(s, zero[1:])
			}
		}
		return s
	case int64:
		return formatBytes(x)
	case string:
		return fmt.Sprintf("%q", x)
	case []string:
		var quoted []string
		for _, s := range x {
			quoted = append(quoted, fmt.Sprintf("%q", s))
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	case map[string]string:
		if len(x) == 0 {
			return "{}"
		}
	case map[string][]string:
		if len(x) == 0 {
			return "{}"
		}
	case map[string]int:
		if len(x) == 0 {
			return "{}"
		}
	case []fleet.ServiceLevel:
		var levels []string
		for _, l := range x {
			levels = append(levels, fmt.Sprintf("{first_token: %v, per_token: %v}", l.FirstToken, l.PerToken))
		}
		return "[" + strings.Join(levels, ", ") + "]"
	case map[string][]fleet.ServiceLevel:
		if len(x) == 0 {
			return "{}"
		}
	case []discovery.Target:
		if len(x) == 0 {
			return "[]"
		}
	case []policy.Weighted:
		if len(x) == 0 {
			return "[]"
		}
	case []gateway.Adapter:
		if len(x) == 0 {
			return "[]"
		}
	case []int:
		return strings.ReplaceAll(fmt.Sprint(x), " ", ", ")
	case bool, int, float64:
		return fmt.Sprint(x)
	}
	t.Fatalf("no way to write a %s", v.Type())
	return ""
}

// comment writes text in lines of at most 110 characters.
func (g *generator) comment(depth int, text string) {
	prefix := strings.Repeat("  ", depth) + "#"
	line := prefix
	for _, word := range strings.Fields(text) {
		if len(line)+1+len(word) > 110 {
			fmt.Fprintln(&g.out, line)
			line = prefix
		}
		line += " " + word
	}
	if line != prefix {
		fmt.Fprintln(&g.out, line)
	}
}

// doc returns the comment of a field. In the comment, the names of the type's fields are replaced by their keys in the
// file.
func (g *generator) doc(t reflect.Type, field string) string {
	name := t.PkgPath() + "." + t.Name()
	if g.docs[name] == nil {
		g.docs[name] = readDocs(g.t, t)
	}
	doc := g.docs[name][field]
	for f := range t.Fields() {
		if key := fieldKey(f); key != "" {
			doc = regexp.MustCompile(`\b`+f.Name+`\b`).ReplaceAllString(doc, key)
		}
	}
	return doc
}

// readDocs parses the package that declares typ.
func readDocs(t *testing.T, typ reflect.Type) map[string]string {
	dir := filepath.Join("..", "..", strings.TrimPrefix(typ.PkgPath(), "github.com/warmpath/warmpath"))
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no source of %s in %s", typ, dir)
	}
	docs := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != typ.Name() {
				return true
			}
			fields, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range fields.Fields.List {
				for _, name := range f.Names {
					docs[name.Name] = f.Doc.Text() + " " + f.Comment.Text()
				}
			}
			return false
		})
	}
	return docs
}

// formatBytes writes n with the largest binary unit that divides n.
func formatBytes(n int64) string {
	for _, u := range units[:4] {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}
