package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// maxNodes bounds the nodes that a walk visits. Aliases can make a small file very large: each use of an alias visits
// the anchor's nodes again. A file of maxFile bytes without aliases has fewer.
const maxNodes = 4 << 20

// syntax parses data and returns the content of its one document; nil if the file has none.
func syntax(path string, data []byte) (ast.Node, error) {
	file, err := parsed(path, data)
	if err != nil {
		return nil, err
	}
	var body ast.Node
	documents := 0
	for _, doc := range file.Docs {
		switch doc.Body.(type) {
		case nil, *ast.NullNode, *ast.CommentGroupNode, *ast.DirectiveNode:
		default:
			body = doc.Body
			documents++
		}
	}
	if documents > 1 {
		return nil, fmt.Errorf("%s: the file holds %d documents, keep one", path, documents)
	}
	if line := firstContent(data); line > 0 && len(file.Docs) == 1 && file.Docs[0].Body == nil {
		return nil, fmt.Errorf("%s:%d:1: this line stands after an empty document: keep only one ---", path, line)
	}
	return body, nil
}

// parsed calls the parser. The parser of goccy/go-yaml 1.19.2 panics on "%TAG !! x\n---\na: !!b\n". A reload calls it
// in a router that serves, so a panic becomes an error. The error does not have the panic's value, which may be
// content.
func parsed(path string, data []byte) (file *ast.File, err error) {
	defer func() {
		if recover() != nil {
			err = fmt.Errorf("%s: the YAML parser cannot read this file: leave out directives (%%…) and tags (!…), "+
				"or start from `warmpath config sample`", path)
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if at, problem := tooMuch(tokens); at != nil {
		return nil, fmt.Errorf("%s:%d:%d: %s", path, at.Line, at.Column, problem)
	}
	file, err = parser.Parse(tokens, 0, parser.AllowDuplicateMapKey()) // the walk reports repeated keys
	if err != nil {
		return nil, syntaxError(path, err)
	}
	return file, nil
}

// The parser needs memory with the square of the depth: gigabytes for 50,000 brackets. The settings need a depth of
// six.
const (
	maxBrackets = 100 // open at one place
	maxIndent   = 200 // columns: each level of lists and keys without brackets takes one or more
)

// maxKeys bounds the keys outside of brackets, the tags and the anchors, all together. The parser calls itself for each
// further key of a mapping, and for each further tag of a value (660 bytes of stack): millions of them in a file of
// maxFile bytes could exceed the stack, which ends the process without a panic to recover from. Ten thousand workers
// with ten settings each have as many as this.
const maxKeys = 100_000

// tooMuch returns the first place that is nested too deep, or has a key too many, with the problem; nil if there is
// none. The tokens know which brackets, dashes and colons are a part of a text or of a comment.
func tooMuch(tokens token.Tokens) (*token.Position, string) {
	open, line, keys := 0, 0, 0
	for _, t := range tokens {
		first := t.Position.Line != line
		line = t.Position.Line
		switch t.Type {
		case token.CommentType:
			continue
		case token.SequenceStartType, token.MappingStartType:
			open++
		case token.SequenceEndType, token.MappingEndType:
			open = max(open-1, 0)
		case token.SequenceEntryType, token.MappingKeyType:
			first = true // another one may follow on the same line
		case token.MappingValueType:
			if open == 0 {
				keys++
			}
		case token.TagType, token.AnchorType:
			keys++
		}
		if keys > maxKeys {
			return t.Position, fmt.Sprintf("the file has more than %d keys, tags and anchors: start from `warmpath config sample`", maxKeys)
		}
		if open > maxBrackets || open == 0 && first && t.Position.Column > maxIndent {
			return t.Position, fmt.Sprintf("the values are nested too deep: at most %d brackets, and %d columns of indent",
				maxBrackets, maxIndent)
		}
	}
	return nil, ""
}

// firstContent returns the number of the first line that is no comment, marker or directive; 0 if there is none. The
// parser (goccy/go-yaml 1.19.2) drops all that follows an empty document, without an error.
func firstContent(data []byte) int {
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		if line = strings.TrimSpace(line); line != "" && line != "---" && line != "..." && line[0] != '#' && line[0] != '%' {
			return n
		}
	}
	return 0
}

// syntaxError turns an error of the parser into FILE:LINE:COLUMN: message. It drops the lines that the parser quotes
// around the error: one of them may contain a key.
func syntaxError(path string, err error) error {
	var located yaml.Error
	if !errors.As(err, &located) || located.GetToken() == nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	message := located.GetMessage()
	switch {
	case strings.HasPrefix(message, "found character '\t'"):
		message = "a tab: YAML is indented with spaces"
	case strings.HasSuffix(message, "value is not allowed in this context"): // also of a mapping
		message = "a value is not allowed here: check the indentation of this line and the next"
	case strings.HasPrefix(message, "invalid header option"): // quotes the text after | or >
		message = "a text block begins on the line after | or >: write a value that begins with this sign in quotes"
	}
	at := located.GetToken().Position
	return fmt.Errorf("%s:%d:%d: %s", path, at.Line, at.Column, message)
}

// tree resolves anchors, aliases, tags and merge keys of a document.
type tree struct {
	anchors  map[string][]*ast.AnchorNode // by name, sorted by their offsets
	visited  int                          // nodes
	ended    bool                         // the walk visits no more nodes
	merging  map[ast.Node]bool            // mappings and lists whose merge keys are being followed
	mistaken func(at *token.Position, problem string)
}

func newTree(root ast.Node, mistaken func(*token.Position, string)) *tree {
	t := &tree{anchors: map[string][]*ast.AnchorNode{}, merging: map[ast.Node]bool{}, mistaken: mistaken}
	for _, n := range ast.Filter(ast.AnchorType, root) {
		a := n.(*ast.AnchorNode)
		t.anchors[text(a.Name)] = append(t.anchors[text(a.Name)], a)
	}
	for _, same := range t.anchors {
		slices.SortStableFunc(same, func(a, b *ast.AnchorNode) int { return a.Start.Position.Offset - b.Start.Position.Offset })
	}
	return t
}

// visit counts a node, and reports whether the walk goes on.
func (t *tree) visit(node ast.Node) bool {
	if t.visited++; t.visited > maxNodes && !t.ended {
		t.mistaken(position(node), fmt.Sprintf("the file has more than %d values: an alias (*…) may contain itself", maxNodes))
		t.ended = true
	}
	return !t.ended
}

// standardTags add nothing to a value: the type of the setting decides how it is read.
var standardTags = []string{"!!binary", "!!bool", "!!float", "!!int", "!!map", "!!null", "!!omap",
	"!!seq", "!!set", "!!str", "!!timestamp"}

// resolve returns the mapping, sequence or scalar that node stands for; nil if there is none, which is a mistake. The
// mistake does not quote a tag or an alias: it may be a secret without its quotes, such as key: !Tr0ub4dor.
func (t *tree) resolve(node ast.Node) ast.Node {
	for node != nil && t.visit(node) {
		switch n := node.(type) {
		case *ast.AnchorNode:
			node = n.Value
		case *ast.TagNode:
			if n.Value == nil || !slices.Contains(standardTags, n.Start.Value) {
				t.mistaken(position(n), "a tag (!…) has no meaning here: leave it out, or write a value that begins with ! in quotes")
				return nil
			}
			node = n.Value
		case *ast.AliasNode:
			if node = t.anchored(n); node == nil {
				t.mistaken(position(n), "there is no anchor (&…) of this alias before it: write a value that begins with * in quotes")
			}
		default:
			return node
		}
	}
	return nil
}

// anchored returns the value of the last anchor of that name before the alias.
func (t *tree) anchored(alias *ast.AliasNode) ast.Node {
	same := t.anchors[text(alias.Value)]
	i, _ := slices.BinarySearchFunc(same, alias.Start.Position.Offset, func(a *ast.AnchorNode, offset int) int {
		return a.Start.Position.Offset - offset
	})
	if i == 0 {
		return nil
	}
	return same[i-1].Value
}

// entry is a key of a mapping with its value.
type entry struct {
	key   string
	at    *token.Position // of the key
	value ast.Node
}

// entries returns the keys of a mapping in the order of the file, then those that a merge key (<<) adds.
func (t *tree) entries(m *ast.MappingNode) []entry {
	var found []entry
	line := map[string]int{} // where a key stands first
	for _, v := range m.Values {
		if _, merge := v.Key.(*ast.MergeKeyNode); merge || !t.visit(v) {
			continue
		}
		e := entry{text(v.Key), position(v.Key), v.Value}
		if first, twice := line[e.key]; twice {
			t.mistaken(e.at, fmt.Sprintf("the key %q stands twice, first on line %d", e.key, first))
			continue
		}
		line[e.key] = e.at.Line
		found = append(found, e)
	}
	if t.merging[m] {
		t.mistaken(position(m), "a merge key (<<) merges these keys with themselves")
		return found
	}
	t.merging[m] = true
	defer delete(t.merging, m)
	for _, v := range m.Values {
		if _, merge := v.Key.(*ast.MergeKeyNode); !merge {
			continue
		}
		for _, e := range t.merged(v.Value) {
			if _, own := line[e.key]; !own { // of several merged mappings the first one counts
				line[e.key] = e.at.Line
				found = append(found, e)
			}
		}
	}
	return found
}

// merged returns the keys of the mapping, or of the list of mappings, that a merge key names.
func (t *tree) merged(node ast.Node) []entry {
	node = t.resolve(node)
	switch n := node.(type) {
	case nil:
		return nil
	case *ast.MappingNode:
		return t.entries(n)
	case *ast.SequenceNode:
		if t.merging[n] {
			t.mistaken(position(n), "a merge key (<<) merges a list that contains itself")
			return nil
		}
		t.merging[n] = true
		defer delete(t.merging, n)
		var found []entry
		for _, inner := range n.Values {
			found = append(found, t.merged(inner)...)
		}
		return found
	}
	t.mistaken(position(node), found(node)+" where a merge key (<<) needs keys with values")
	return nil
}

// position returns where a reader of the file would point for node: its first character.
func position(node ast.Node) *token.Position {
	if m, ok := node.(*ast.MappingNode); ok && !m.IsFlowStyle && len(m.Values) > 0 {
		node = m.Values[0].Key
	}
	return node.GetToken().Position
}

// text returns the text of a scalar or a key, without quotes.
func text(node ast.Node) string {
	switch n := node.(type) {
	case nil:
		return ""
	case *ast.StringNode:
		return n.Value
	case *ast.LiteralNode:
		return n.Value.Value
	case *ast.MappingKeyNode:
		return text(n.Value)
	case *ast.AnchorNode:
		return text(n.Value)
	case *ast.TagNode:
		return text(n.Value)
	}
	return node.GetToken().Value
}

// found describes a node that stands where another kind is expected.
func found(node ast.Node) string {
	switch node.(type) {
	case *ast.MappingNode:
		return "keys with values stand"
	case *ast.SequenceNode:
		return "a list stands"
	}
	return fmt.Sprintf("%q stands", text(node))
}
