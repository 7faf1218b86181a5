package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxTold is how many mistakes of a file are told at once. 20: more is another kind of file.
const maxTold = 20

// everyMistake returns first, which made the file unreadable, with all else that is wrong: the decoder stops at the
// first mistake, so the file is read piece by piece, and the readable pieces are validated.
func everyMistake(path string, data []byte, first error, override func(*Config)) error {
	cfg := Default()
	mistakes, broken := readPieces(path, data, &cfg)
	if len(mistakes) == 0 {
		return first // it lies in how pieces fit together
	}
	if len(mistakes) <= maxTold {
		mistakes = append(mistakes, invalid(path, data, &cfg, broken, override)...)
	}
	if len(mistakes) == 1 {
		return first
	}
	if len(mistakes) > maxTold {
		mistakes = append(mistakes[:maxTold], fmt.Errorf("%s: and more", path))
	}
	for i, m := range mistakes {
		line, _, _ := strings.Cut(m.Error(), "\n")
		mistakes[i] = errors.New(line)
	}
	return errors.Join(mistakes...)
}

// readPieces decodes each key of the file on its own over cfg. broken are the top-level keys with mistakes.
func readPieces(path string, data []byte, cfg *Config) (mistakes []error, broken map[string]bool) {
	defer func() {
		if recover() != nil { // see parse
			mistakes = nil
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil || len(file.Docs) != 1 || len(ast.Filter(ast.AliasType, file.Docs[0])) > 0 {
		return nil, nil // an alias means nothing without the piece that has its anchor
	}
	root, ok := file.Docs[0].Body.(*ast.MappingNode)
	if !ok {
		return nil, nil
	}
	policies := takePolicies(root)
	broken = map[string]bool{}
	for _, v := range root.Values {
		if whole := ast.Mapping(v.Start, false, v); decoder().DecodeFromNode(whole, cfg) == nil {
			continue
		}
		for _, piece := range pieces(v) {
			if len(mistakes) > maxTold {
				return mistakes, broken // to show where one stands takes time in proportion to the file
			}
			if err := decoder().DecodeFromNode(piece, cfg); err != nil {
				mistakes, broken[keyOf(v)] = add(mistakes, place(path, file, err)), true
			}
		}
	}
	if err := cfg.missedPolicies(root); err != nil {
		mistakes, broken["policies"], cfg.Policies = append(mistakes, place(path, file, err)), true, nil
	}
	if err := cfg.decodePolicies(policies); err != nil {
		mistakes, broken["policies"] = append(mistakes, place(path, file, err)), true
	}
	return mistakes, broken
}

// add adds err unless it is there: an unknown section is one mistake, however many keys it has.
func add(mistakes []error, err error) []error {
	if slices.ContainsFunc(mistakes, func(m error) bool { return m.Error() == err.Error() }) {
		return mistakes
	}
	return append(mistakes, err)
}

// pieces cuts an entry of the root into mappings that say one thing each: a key of a section, or an entry of a list.
func pieces(v *ast.MappingValueNode) []*ast.MappingNode {
	alone := func(value ast.Node) *ast.MappingNode {
		return ast.Mapping(v.Start, false, ast.MappingValue(v.Start, v.Key, value))
	}
	var cut []*ast.MappingNode
	switch value := v.Value.(type) {
	case *ast.MappingNode:
		if len(value.Values) == 0 {
			return nil // decoding nothing would set the section to zero
		}
		for _, inner := range value.Values {
			cut = append(cut, alone(ast.Mapping(value.Start, value.IsFlowStyle, inner)))
		}
	case *ast.SequenceNode:
		for _, entry := range value.Values {
			list := ast.Sequence(value.Start, value.IsFlowStyle)
			list.Values = []ast.Node{entry}
			cut = append(cut, alone(list))
		}
	}
	if len(cut) == 0 {
		return []*ast.MappingNode{alone(v.Value)}
	}
	return cut
}

// invalid validates what could be read, and leaves out what follows from the broken keys.
func invalid(path string, data []byte, cfg *Config, broken map[string]bool, override func(*Config)) []error {
	if override != nil {
		override(cfg)
	}
	if cfg.readKey() != nil {
		return nil
	}
	joined, ok := cfg.Validate().(interface{ Unwrap() []error })
	file, err := parser.ParseBytes(data, 0)
	if !ok || err != nil {
		return nil
	}
	var kept []error
	for _, e := range joined.Unwrap() {
		var p *problem
		if !errors.As(e, &p) || len(kept) > maxTold {
			continue
		}
		top := p.path
		if i := strings.IndexAny(top, ".["); i >= 0 {
			top = top[:i]
		}
		ofPolicies := strings.Contains(top, "polic") || top == "shadow" || top == "routing"
		if !broken[top] && !(ofPolicies && (broken["policies"] || broken["routing"])) {
			kept = append(kept, locate(path, file, errors.Join(e)))
		}
	}
	return kept
}
