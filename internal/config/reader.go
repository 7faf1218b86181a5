package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tenant"
)

// maxMistakes is the number of mistakes of a file that are reported together. A file with more than 20 mistakes is
// probably not a configuration of this program.
const maxMistakes = 20

// reader decodes a YAML document into Go values by their yaml tags, in one walk. At a mistake it does not stop: it
// records the mistake with its position and continues. It also records the position of each value, for the errors of
// Validate.
type reader struct {
	*tree
	file     string
	known    []string // the paths of all settings, for hints
	mistakes []mistake
	// broken has the paths of the values that could not be read. The value is false for an entry of a list that is there
	// only because a value inside it could not be read.
	broken   map[string]bool
	withheld bool                       // a problem was not reported, because it may follow from a mistake elsewhere
	places   map[string]*token.Position // position of each value, by its path, such as workers[0].url
	noted    []string                   // the keys of places, in the order in which they were read
	path     string                     // path of the value that is being read
}

// mistake is a problem of the file; at is nil if the file does not contain the setting.
type mistake struct {
	at      *token.Position
	problem string
}

// newReader parses data, which may contain settings of type t. The returned root is nil if the file has no content.
func newReader(file string, data []byte, t reflect.Type) (*reader, ast.Node, error) {
	r := &reader{file: file, known: keys(t, ""), broken: map[string]bool{}, places: map[string]*token.Position{}}
	root, err := syntax(file, data)
	if err != nil || root == nil {
		return r, nil, err
	}
	r.tree = newTree(root, r.mistake)
	return r, root, nil
}

// ReadDocument reads another YAML file than the gateway's, such as a simulator experiment, over into. It is as strict
// as Load, and its error names every mistake with its position.
func ReadDocument(path string, into any) error {
	data, err := readFile(path)
	if err != nil {
		return fmt.Errorf("read experiment: %w", err)
	}
	v := reflect.ValueOf(into).Elem()
	r, root, err := newReader(path, data, v.Type())
	if err != nil {
		return err
	}
	if root == nil {
		return fmt.Errorf("%s has no settings", path)
	}
	r.fields(root, v, section{})
	return r.err()
}

// mistake records a problem in the value that is being read.
func (r *reader) mistake(at *token.Position, problem string) {
	r.broken[r.path] = true
	// An entry of a list has required keys. Without the value of this key, Validate may report other keys of the entry.
	entry := unit(r.path)
	if _, there := r.broken[entry]; !there && strings.Contains(entry, "[") {
		r.broken[entry] = false
	}
	// An anchor is read again for each of its aliases, so its mistakes are found several times.
	if m := (mistake{at, problem}); !slices.Contains(r.mistakes, m) {
		r.mistakes = append(r.mistakes, m)
	}
	r.ended = r.ended || len(r.mistakes) > maxMistakes
}

// note records the position of the value that is being read.
func (r *reader) note(at *token.Position) {
	r.places[r.path] = at
	r.noted = append(r.noted, r.path)
}

// err returns the mistakes in the order of the file, at most maxMistakes, each as FILE:LINE:COLUMN: problem. Mistakes
// without a position come after the others. The last line says what to do next. err returns nil if there are no
// mistakes.
func (r *reader) err() error {
	slices.SortStableFunc(r.mistakes, func(a, b mistake) int {
		switch {
		case a.at == nil || b.at == nil:
			return cmp.Compare(btoi(a.at == nil), btoi(b.at == nil))
		case a.at.Line != b.at.Line:
			return cmp.Compare(a.at.Line, b.at.Line)
		}
		return cmp.Compare(a.at.Column, b.at.Column)
	})
	var out []error
	for i, m := range r.mistakes {
		if i == maxMistakes {
			break
		}
		if m.at == nil {
			out = append(out, errors.New(m.problem))
			continue
		}
		out = append(out, fmt.Errorf("%s:%d:%d: %s", r.file, m.at.Line, m.at.Column, m.problem))
	}
	if next := r.next(len(out)); next != nil {
		out = append(out, next)
	}
	return errors.Join(out...)
}

// next returns the last line of an error with n problems: what to do next. It returns nil if that is plain: there is
// one problem and nothing was withheld, or there is no file.
func (r *reader) next(n int) error {
	these := fmt.Sprintf("these %d problems", n)
	if n == 1 {
		these = "this problem"
	}
	switch {
	case n == 0 || r.file == "":
		return nil
	case len(r.mistakes) > n:
		return fmt.Errorf("%s: correct %s and check again: there are further problems", r.file, these)
	case r.withheld:
		return fmt.Errorf("%s: correct %s and check again: further checks need the corrected values", r.file, these)
	case n > 1:
		return fmt.Errorf("%s: correct %s and check again", r.file, these)
	}
	return nil
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// unit returns the part of the file to which a path belongs: a top-level key, or an entry of a top-level list.
func unit(path string) string {
	if i := strings.IndexByte(path, '.'); i >= 0 {
		path = path[:i]
	}
	return path
}

// place returns the position of the value at path, or else of the nearest value around it. It returns nil if the file
// contains no such value.
func (r *reader) place(path string) *token.Position {
	for {
		if at := r.places[path]; at != nil || path == "" {
			return at
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
}

// under calls read with the present path extended by step.
func (r *reader) under(step string, read func()) {
	outer := r.path
	if r.path += step; outer == "" {
		r.path = strings.TrimPrefix(r.path, ".")
	}
	read()
	r.path = outer
}

// value decodes node into v. A key without a value does not change v. Exception: a list of service levels becomes nil,
// and Validate refuses it. An operator who deletes all lines of the list does not expect the default levels.
func (r *reader) value(node ast.Node, v reflect.Value) {
	if node = r.resolve(node); node == nil {
		return
	}
	r.note(position(node))
	if _, null := node.(*ast.NullNode); null {
		switch {
		case isLevels(v.Type()):
			v.SetZero()
		case v.Type() == reflect.TypeFor[[]tenant.Config]():
			// An operator who deletes all lines of the list does not expect that everybody may use the gateway.
			r.mistake(position(node), "there is no list: write [] for a gateway that is open to all")
		}
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		r.fields(node, v, section{})
	case reflect.Map:
		r.mapping(node, v)
	case reflect.Slice:
		r.list(node, v)
	case reflect.Pointer:
		inner := reflect.New(v.Type().Elem())
		r.value(node, inner.Elem())
		v.Set(inner)
	default:
		r.scalar(node, v)
	}
}

// section says how to treat keys of a mapping that are not fields of the struct.
type section struct {
	take func(entry) bool // reads a key itself and returns true, or returns false; nil: reads no key
	// unknown reports an unknown key. If it is nil, the error suggests the most similar known key.
	unknown func(entry)
}

// fields decodes a mapping into a struct.
func (r *reader) fields(node ast.Node, v reflect.Value, s section) {
	if node = r.resolve(node); node == nil {
		return
	}
	if r.path != "" {
		r.note(position(node))
	}
	m, ok := node.(*ast.MappingNode)
	if !ok {
		if _, null := node.(*ast.NullNode); !null {
			r.mistake(position(node), r.noMapping(node))
		}
		return
	}
	entries := r.entries(m)
	for _, e := range entries {
		if r.ended {
			return
		}
		r.under("."+e.key, func() {
			if s.take != nil && s.take(e) {
				return
			}
			if i := fieldOf(v.Type(), e.key); i != nil {
				r.value(e.value, v.FieldByIndex(i))
				return
			}
			if s.unknown != nil {
				s.unknown(e)
				return
			}
			outer := strings.TrimSuffix(strings.TrimSuffix(r.path, e.key), ".")
			inside := fieldKeys(v.Type())
			meant := similarKey(e.key, inside)
			if there := slices.ContainsFunc(entries, func(other entry) bool { return other.key == meant }); meant != "" && !there {
				r.broken[strings.TrimPrefix(outer+"."+meant, ".")] = true // the key that was meant has no value now
			}
			section, known := index.ReplaceAllString(outer, ""), r.known
			if section != outer { // a key of a list's entry: a key of another section is not meant
				known = keys(v.Type(), section+".")
			}
			r.mistake(e.at, unknownField(e.key, section, inside, known))
		})
	}
}

// index matches the parts of a path that are indexes into lists.
var index = regexp.MustCompile(`\[\d+\]`)

// ofLevels matches the paths of service levels.
var ofLevels = regexp.MustCompile(`^(model_|tenant_)?service_levels(\..*)?\[\d+\]$`)

// sampleLevel is a service level as a file has it, for hints.
const sampleLevel = "{first_token: 5s, per_token: 100ms}"

// isLevels reports whether t is the type of a list of service levels.
func isLevels(t reflect.Type) bool { return t == reflect.TypeFor[[]fleet.ServiceLevel]() }

// noMapping returns the error for a node that is found where a mapping should be.
func (r *reader) noMapping(node ast.Node) string {
	// If a colon is missing, the text continues on the next line of the file. Only its first word can be the address.
	address, _, _ := strings.Cut(brokenUserInfo.ReplaceAllString(text(node), "://"+api.Redacted+"@"), " ")
	_, scalar := node.(ast.ScalarNode)
	switch {
	case ofLevels.MatchString(r.path):
		return found(node) + " where a service level is expected: a level is written as " + sampleLevel
	case scalar && strings.HasPrefix(r.path, "workers[") && strings.Contains(address, "://"):
		return "a worker is written as url: " + address
	case scalar && strings.HasPrefix(r.path, "models["):
		return found(node) + " where a model is expected: a model is written as path: DIR, with name: NAME if there are several"
	}
	if scalar && !strings.Contains(r.path, "[") { // the value may be a secret, as in admin: KEY and hub: TOKEN
		return "a value stands where keys with values are expected"
	}
	return found(node) + " where keys with values are expected"
}

// fieldOf returns the index of the field that has the key, or nil. The field may belong to an embedded struct.
func fieldOf(t reflect.Type, key string) []int {
	for _, f := range reflect.VisibleFields(t) {
		if key != "" && fieldKey(f) == key {
			return f.Index
		}
	}
	return nil
}

func (r *reader) mapping(node ast.Node, v reflect.Value) {
	m, ok := node.(*ast.MappingNode)
	if !ok {
		r.mistake(position(node), r.noMapping(node))
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	for _, e := range r.entries(m) {
		r.under("."+e.key, func() {
			value := reflect.New(v.Type().Elem()).Elem()
			r.value(e.value, value)
			v.SetMapIndex(reflect.ValueOf(e.key), value)
		})
	}
}

func (r *reader) list(node ast.Node, v reflect.Value) {
	list, ok := node.(*ast.SequenceNode)
	if !ok {
		entry := map[string]string{"workers": ", such as - url: URL", "tenants": ", such as - {name: NAME, keys_sha256: [DIGEST]}", "models": ", such as - path: DIR"}[r.path]
		if isLevels(v.Type()) {
			entry = ", such as - " + sampleLevel + "; write [] for no service levels"
		}
		r.mistake(position(node), found(node)+" where a list is expected: a line with - for each"+entry)
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(list.Values), len(list.Values)))
	for i, inner := range list.Values {
		r.under(fmt.Sprintf("[%d]", i), func() { r.value(inner, v.Index(i)) })
	}
}

func (r *reader) scalar(node ast.Node, v reflect.Value) {
	if address, ok := splitAddress(node); ok && v.Kind() == reflect.String {
		v.SetString(address)
		return
	}
	if _, ok := node.(ast.ScalarNode); !ok {
		r.mistake(position(node), found(node)+" where "+kindName(v.Type())+" is expected")
		return
	}
	err := setScalar(v, node)
	if err != nil && v.Kind() == reflect.Int && strings.HasSuffix(r.path, "_bytes") {
		var n int64
		if n, err = parseBytes(trimmed(node)); err == nil {
			v.SetInt(n)
		}
	}
	if err != nil {
		r.mistake(position(node), err.Error())
	}
}

// splitAddress returns an address with a port that the parser took for a key with a value. In a list inside of braces,
// such as {routes: [nats-route://host:4248]} and {peers: [host:9090]}, it takes the port for the value, although YAML
// 1.2 asks for a space after a key's colon.
func splitAddress(node ast.Node) (address string, ok bool) {
	m, ok := node.(*ast.MappingNode)
	if !ok || m.IsFlowStyle || len(m.Values) != 1 {
		return "", false
	}
	key, value := m.Values[0].Key.GetToken(), m.Values[0].Value
	if _, number := value.(*ast.IntegerNode); !number {
		return "", false
	}
	at, port := key.Position, value.GetToken()
	adjacent := at.Line == port.Position.Line && port.Position.Column == at.Column+utf8.RuneCountInString(key.Value)+1
	return key.Value + ":" + port.Value, adjacent
}
