package config

import (
	"reflect"

	"github.com/goccy/go-yaml/ast"
)

// Node is a value of a YAML document whose form this package does not know. Exactly one of three is true: it is a
// mapping (Pairs is not nil), a list (List is not nil), or a scalar.
type Node struct {
	Pairs []Pair
	List  []*Node
	Text  string // of a scalar, without quotes; "" for null
}

// Pair is a key of a mapping with its value.
type Pair struct {
	Key   string
	Value *Node
}

// Get returns the value at a path of keys, or nil. A nil Node has no values.
func (n *Node) Get(path ...string) *Node {
	for _, key := range path {
		if n == nil {
			return nil
		}
		var next *Node
		for _, p := range n.Pairs {
			if p.Key == key {
				next = p.Value
			}
		}
		n = next
	}
	return n
}

// Entries returns the entries of a list; none for nil and other values.
func (n *Node) Entries() []*Node {
	if n == nil {
		return nil
	}
	return n.List
}

// Keys returns the pairs of a mapping; none for nil and other values.
func (n *Node) Keys() []Pair {
	if n == nil {
		return nil
	}
	return n.Pairs
}

// ParseDocument reads a YAML file of another program, with the same bounds as Load. A file without content gives an
// empty mapping.
func ParseDocument(name string, data []byte) (*Node, error) {
	r, root, err := newReader(name, data, reflect.TypeFor[Config]())
	if err != nil {
		return nil, err
	}
	n := &Node{Pairs: []Pair{}}
	if root != nil {
		n = r.node(root)
	}
	return n, r.err()
}

// node copies a value with its aliases and merge keys resolved. The tree bounds the number of nodes.
func (r *reader) node(from ast.Node) *Node {
	if from = r.resolve(from); from == nil || r.ended {
		return &Node{}
	}
	switch from := from.(type) {
	case *ast.MappingNode:
		n := &Node{Pairs: []Pair{}}
		for _, e := range r.entries(from) {
			n.Pairs = append(n.Pairs, Pair{e.key, r.node(e.value)})
		}
		return n
	case *ast.SequenceNode:
		n := &Node{List: []*Node{}}
		for _, v := range from.Values {
			n.List = append(n.List, r.node(v))
		}
		return n
	case *ast.NullNode:
		return &Node{}
	}
	return &Node{Text: text(from)}
}
