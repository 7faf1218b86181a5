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

// maxNodes bounds the number of nodes that a walk visits. Aliases can make a small file very large, because each use of
// an alias visits the anchor's nodes again. A file of maxFile bytes without aliases has fewer nodes than this.
const maxNodes = 4 << 20

// syntax parses data and returns the content of its only document; nil if the file has no document.
func syntax(path string, data []byte) (ast.Node, error) {
	file, err := parsed(path, data)
	if err != nil {
		return nil, err
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch doc.Body.(type) {
		case nil, *ast.NullNode, *ast.CommentGroupNode, *ast.DirectiveNode:
		default:
			body = doc.Body
		}
	}
	if line := firstContent(data); line > 0 && len(file.Docs) == 1 && file.Docs[0].Body == nil {
		return nil, fmt.Errorf("%s:%d:1: this line stands after an empty document: keep only one ---", path, line)
	}
	return body, nil
}

// secondDocument returns the place at which a second document begins, or nil. The parser (goccy/go-yaml 1.19.2) cannot
// tell: it silently drops everything that follows an empty document.
func secondDocument(tokens token.Tokens) *token.Position {
	content, ended, directive := false, false, 0 // directive is the line of the last directive (%…)
	for _, t := range tokens {
		switch {
		case t.Type == token.DirectiveType:
			directive = t.Position.Line
		case t.Type == token.CommentType || t.Position.Line == directive:
		case t.Type == token.DocumentHeaderType || t.Type == token.DocumentEndType:
			ended = content
		case ended:
			return t.Position
		default:
			content = true
		}
	}
	return nil
}

// parsed calls the parser. The parser of goccy/go-yaml 1.19.2 panics on "%TAG !! x\n---\na: !!b\n". A reload calls the
// parser in a router that serves requests, so a panic becomes an error. The error does not contain the panic's value,
// which may be content of the file. See docs/design/0025-config-panics.md.
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
	if at := secondDocument(tokens); at != nil {
		return nil, fmt.Errorf("%s:%d:%d: the file holds several documents, keep one: the second one begins here", path, at.Line, at.Column)
	}
	// The walk, not the parser, reports repeated keys.
	file, err = parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntaxError(path, err)
	}
	return file, nil
}

// The parser's memory grows with the square of the depth: it needs gigabytes for 50,000 brackets. The settings need a
// depth of six.
const (
	maxBrackets = 100 // number of brackets that are open at one place
	maxIndent   = 200 // columns; each level of lists and keys without brackets takes at least one column
)

// maxKeys bounds the sum of the keys outside of brackets, the tags and the anchors. The parser calls itself for each
// further key of a mapping, and for each further tag of a value (660 bytes of stack). Millions of such calls, for a
// file of maxFile bytes, could exceed the stack, which ends the process without a panic to recover from. A file with
// ten thousand workers and ten settings for each has 100,000 keys.
const maxKeys = 100_000

// maxBare bounds the keys without a value in mappings in brackets ({a, b}), and the keys after a question mark, each of
// which counts as ten. No setting needs such a key. The parser's time grows with the square of their number in the
// whole file: 100,000 keys of {a, a, …} take it 8 s, and 20,000 lines "? a" take it 2 s.
const maxBare = 10_000

// bracket is an open bracket. valued says that the present entry of the mapping has a value.
type bracket struct{ mapping, valued bool }

// tooMuch returns the first place that is nested too deep, or at which the file has more than maxKeys keys or maxBare
// keys without a value, and the problem there. It returns nil if there is none. It uses tokens, because they show which
// brackets, dashes and colons are a part of a text or of a comment.
func tooMuch(tokens token.Tokens) (*token.Position, string) {
	var brackets []bracket                               // the open ones
	line, keys, bare, last := 0, 0, 0, token.UnknownType // last is the type of the last token
	for _, t := range tokens {
		first := t.Position.Line != line
		line = t.Position.Line
		top := &bracket{} // the innermost open bracket
		if len(brackets) > 0 {
			top = &brackets[len(brackets)-1]
		}
		switch t.Type {
		case token.CommentType:
			continue
		case token.SequenceStartType, token.MappingStartType:
			brackets = append(brackets, bracket{mapping: t.Type == token.MappingStartType})
		case token.SequenceEndType, token.MappingEndType:
			if top.mapping && !top.valued && last != token.MappingStartType {
				bare++
			}
			brackets = brackets[:max(len(brackets)-1, 0)]
		case token.SequenceEntryType:
			first = true // after a dash, a deeper level begins on the same line
		case token.MappingKeyType:
			first = true // and also after a question mark
			bare += 10
		case token.CollectEntryType:
			if top.mapping && !top.valued {
				bare++
			}
			top.valued = false
		case token.MappingValueType:
			if len(brackets) == 0 {
				keys++
			}
			top.valued = true
		case token.TagType, token.AnchorType:
			keys++
		}
		if keys > maxKeys {
			return t.Position, fmt.Sprintf("the file has more than %d keys, tags and anchors: start from `warmpath config sample`", maxKeys)
		}
		last = t.Type
		if bare > maxBare {
			return t.Position, fmt.Sprintf("the file has more than %d keys without a value in braces, or more than %d keys after a "+
				"question mark: give each key a value, as in KEY: VALUE", maxBare, maxBare/10)
		}
		if len(brackets) > maxBrackets || len(brackets) == 0 && first && t.Position.Column > maxIndent {
			return t.Position, fmt.Sprintf("the values are nested too deep: at most %d brackets, and %d columns of indent",
				maxBrackets, maxIndent)
		}
	}
	return nil, ""
}

// firstContent returns the number of the first line that is not a comment, a marker or a directive; 0 if there is none.
// The parser (goccy/go-yaml 1.19.2) silently drops everything that follows an empty document.
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

// syntaxError turns an error of the parser into FILE:LINE:COLUMN: message. It drops the lines of the file that the
// parser quotes, because one of them may contain a secret.
func syntaxError(path string, err error) error {
	var located yaml.Error
	if !errors.As(err, &located) || located.GetToken() == nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	message := located.GetMessage()
	switch {
	case strings.HasPrefix(message, "found character '\t'"):
		message = "a tab: YAML is indented with spaces"
	// This message is also used for mappings.
	case strings.HasSuffix(message, "value is not allowed in this context"):
		message = "a value is not allowed here: check the indentation of this line and the next"
	case strings.HasPrefix(message, "invalid header option"): // this message quotes the text after | or >
		message = "a text block begins on the line after | or >: write a value that begins with this sign in quotes"
	}
	at := located.GetToken().Position
	return fmt.Errorf("%s:%d:%d: %s", path, at.Line, at.Column, message)
}

// tree resolves anchors, aliases, tags and merge keys of a document.
type tree struct {
	anchors  map[string][]*ast.AnchorNode // by name, sorted by their offsets
	visited  int                          // number of visited nodes
	ended    bool                         // the walk visits no more nodes, because the file has too many nodes or mistakes
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

// visit counts a node, and reports whether the walk continues.
func (t *tree) visit(node ast.Node) bool {
	if t.visited++; t.visited > maxNodes && !t.ended {
		t.mistaken(position(node), fmt.Sprintf("the file has more than %d values: an alias (*…) may contain itself", maxNodes))
		t.ended = true
	}
	return !t.ended
}

// standardTags do not change how a value is read: only the type of the setting decides that.
var standardTags = []string{"!!binary", "!!bool", "!!float", "!!int", "!!map", "!!null", "!!omap",
	"!!seq", "!!set", "!!str", "!!timestamp"}

// resolve returns the mapping, sequence or scalar that node stands for. If there is none, it records a mistake and
// returns nil. The mistake does not quote a tag or an alias, because a secret without quotes, such as key: !Tr0ub4dor,
// looks like a tag.
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

// anchored returns the value of an alias: several anchors may have its name, and the last one before the alias counts.
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
	at    *token.Position // position of the key
	value ast.Node
}

// entries returns the keys of a mapping in the order of the file, followed by the keys that a merge key (<<) adds.
func (t *tree) entries(m *ast.MappingNode) []entry {
	var found []entry
	line := map[string]int{} // by key: the line of its first occurrence
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
			// If several merged mappings have the same key, the first mapping counts.
			if _, own := line[e.key]; !own {
				line[e.key] = e.at.Line
				found = append(found, e)
			}
		}
	}
	return found
}

// merged returns the keys that a merge key adds: the keys of a mapping, or of a list of mappings.
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

// position returns the position of the first character of node, for a person who reads the file.
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

// found returns a text that says which kind of node was found where another kind was expected.
func found(node ast.Node) string {
	switch node.(type) {
	case *ast.MappingNode:
		return "keys with values stand"
	case *ast.SequenceNode:
		return "a list stands"
	}
	return fmt.Sprintf("%q stands", text(node))
}
