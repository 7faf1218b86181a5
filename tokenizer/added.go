package tokenizer

import (
	"strings"
	"unicode/utf8"

	"github.com/warmpath/warmpath/block"
)

// addedToken is a token of the list added_tokens. It is searched in the text before the model (BPE, Unigram, …) gets
// the text.
type addedToken struct {
	id         block.Token
	content    string
	special    bool
	singleWord bool
	lstrip     bool
	rstrip     bool
	normalized bool // the token is searched in the normalized text, by its normalized content
}

// addedSet finds added tokens in a text. It finds the leftmost token. If several tokens begin at the same place, it
// finds the longest of them. An addedSet is immutable once built, and goroutines may then use it concurrently.
type addedSet struct {
	tokens []addedToken
	nodes  []addedNode
	first  [256]bool // first bytes of the tokens
	only   int       // first byte of the tokens if all tokens have the same first byte, otherwise -1
}

// addedNode is a node of the trie over the tokens' bytes. A node has few children, so a search through the list of its
// children is fast enough.
type addedNode struct {
	token    int32 // index in addedSet.tokens of the token that ends at this node; -1 if no token ends here
	labels   []byte
	children []int32
}

func newAddedSet() *addedSet {
	return &addedSet{nodes: []addedNode{{token: -1}}, only: -1}
}

// add stores a token under a pattern: the token's content, or its normalized content. If two tokens have the same
// pattern, the later token replaces the earlier token.
func (s *addedSet) add(t addedToken, pattern string) {
	if pattern == "" {
		return
	}
	at := int32(0)
	for i := range len(pattern) {
		next := s.child(at, pattern[i])
		if next < 0 {
			next = int32(len(s.nodes))
			s.nodes = append(s.nodes, addedNode{token: -1})
			s.nodes[at].labels = append(s.nodes[at].labels, pattern[i])
			s.nodes[at].children = append(s.nodes[at].children, next)
		}
		at = next
	}
	s.nodes[at].token = int32(len(s.tokens))
	s.tokens = append(s.tokens, t)
	s.first[pattern[0]] = true
	s.only = -1
	if strings.Count(string(s.nodes[0].labels), "") == 2 {
		s.only = int(s.nodes[0].labels[0])
	}
}

func (s *addedSet) child(at int32, label byte) int32 {
	n := &s.nodes[at]
	if i := strings.IndexByte(view(n.labels), label); i >= 0 {
		return n.children[i]
	}
	return -1
}

func (s *addedSet) empty() bool { return len(s.tokens) == 0 }

// find returns the leftmost, longest token that begins at or after from. If there is no such token, token is nil.
func (s *addedSet) find(text string, from int) (start, end int, token *addedToken) {
	for at := from; at < len(text); at++ {
		if s.only >= 0 {
			next := strings.IndexByte(text[at:], byte(s.only))
			if next < 0 {
				return 0, 0, nil
			}
			at += next
		} else if !s.first[text[at]] {
			continue
		}
		node := int32(0)
		found := int32(-1)
		for i := at; i < len(text); i++ {
			if node = s.child(node, text[i]); node < 0 {
				break
			}
			if t := s.nodes[node].token; t >= 0 {
				found, end = t, i+1
			}
		}
		if found >= 0 {
			return at, end, &s.tokens[found]
		}
	}
	return 0, 0, nil
}

// addedScan iterates over the added tokens of one text and the texts between them. It follows the rules of the
// reference (the official Rust tokenizer) for white space and words beside a token.
type addedScan struct {
	set           *addedSet
	text          string
	specialAsText bool // value of Options.SpecialAsText
	search        int  // position at which the next search begins
	emitted       int  // end of the part of the text that was already returned
	token         *addedToken
	stop          int // end of token, including white space that belongs to it
}

// next returns the next added token, or the text before it. For a text, token is nil.
func (a *addedScan) next() (from, to int, token *addedToken, ok bool) {
	if t := a.token; t != nil { // the previous call found this token, and returned the text before it
		a.token = nil
		a.emitted = a.stop
		return 0, 0, t, true
	}
	for {
		start, end, t := a.set.find(a.text, a.search)
		if t == nil {
			from, a.emitted = a.emitted, len(a.text)
			a.search = len(a.text)
			return from, len(a.text), nil, from != len(a.text)
		}
		a.search = end
		if a.specialAsText && t.special || t.singleWord && !a.standsAlone(start, end) {
			continue
		}
		if t.lstrip {
			start = max(len(strings.TrimRightFunc(a.text[:start], isSpace)), a.emitted)
		}
		if t.rstrip {
			end = len(a.text) - len(strings.TrimLeftFunc(a.text[end:], isSpace))
		}
		if a.emitted < start {
			from = a.emitted
			a.token, a.stop = t, end
			return from, start, nil, true
		}
		a.emitted = end
		return 0, 0, t, true
	}
}

// standsAlone reports whether there is no word character directly before or after a token.
func (a *addedScan) standsAlone(start, end int) bool {
	words := unicodeTables().regexWord
	before, n := utf8.DecodeLastRuneInString(a.text[:start])
	if n > 0 && lookupRun(words, before) != 0 {
		return false
	}
	after, n := utf8.DecodeRuneInString(a.text[end:])
	return n == 0 || lookupRun(words, after) == 0
}
