package tokenizer

import (
	"errors"
	"math"

	"github.com/warmpath/warmpath/block"
)

// unigram is sentencepiece's unigram model. Of all ways to cut a word into pieces, unigram takes the way with the best
// sum of scores. Ties are decided as in the reference (tokenizers, models/unigram/model.rs, encode_optimized).
// Goroutines may use it concurrently: only its cache changes.
type unigram struct {
	vocab    *vocabulary
	trie     *pieceTrie
	cache    *wordCache
	scores   []float64 // scores by id
	unkScore float64
	unknown  block.Token // token for unknown characters; noToken if there is no such token
	fallback *[256]block.Token
}

var errNoUnknown = errors.New("the model has no token for a character of the text, and no unknown token")

// unknownPenalty is by how much the score of an unknown character is below the lowest score of all pieces.
const unknownPenalty = 10.0

func newUnigram(tokens []token, scores []float64, unknown block.Token, byteFallback bool) (*unigram, error) {
	v, err := newVocabulary(tokens)
	if err != nil {
		return nil, err
	}
	if unknown != noToken && int(unknown) >= len(tokens) {
		return nil, errors.New("unk_id is not in the vocabulary")
	}
	u := &unigram{vocab: v, trie: newPieceTrie(), cache: newWordCache(), scores: scores, unknown: unknown}
	least := math.Inf(1)
	for i, t := range tokens {
		least = min(least, scores[i])
		id, _ := v.id(t.text) // if several tokens have the same text, id returns the last
		u.trie.add(t.text, id)
	}
	u.unkScore = least - unknownPenalty
	if byteFallback {
		u.fallback, _ = byteTokens(v)
	}
	return u, nil
}

// pathNode has the last piece of the best path to a position in the word. A path is a way to cut the word up to the
// position into pieces.
type pathNode struct {
	score float64
	start int32 // position at which the piece begins; -1: no path reaches the position
	id    block.Token
}

func (u *unigram) appendWord(dst []block.Token, word string, s *scratch) ([]block.Token, error) {
	if len(word) > maxCachedBytes {
		return u.appendBest(dst, word, s)
	}
	key := keyOf(word)
	if found, ok := u.cache.get(&key, dst); ok {
		return found, nil
	}
	before := len(dst)
	dst, err := u.appendBest(dst, word, s)
	if err == nil {
		u.cache.put(&key, dst[before:])
	}
	return dst, err
}

func (u *unigram) appendBest(dst []block.Token, word string, s *scratch) ([]block.Token, error) {
	if len(word) > maxWord {
		return dst, errWordTooLong
	}
	if cap(s.viterbi) < len(word)+1 {
		s.viterbi = make([]pathNode, len(word)+1, 2*len(word)+1)
	}
	best := s.viterbi[:len(word)+1]
	for i := range best {
		best[i] = pathNode{start: -1}
	}
	for at := 0; at < len(word); {
		_, size := decodeRune(word, at)
		here := best[at].score
		single := false
		node := int32(0)
		for end := at; end < len(word); {
			if node = u.trie.child(node, word[end]); node < 0 {
				break
			}
			end++
			id := u.trie.token[node]
			if id == noToken {
				continue
			}
			if score := u.scores[id] + here; best[end].start < 0 || score > best[end].score {
				best[end] = pathNode{score, int32(at), id}
			}
			single = single || end == at+size
		}
		if !single {
			if score := u.unkScore + here; best[at+size].start < 0 || score > best[at+size].score {
				if u.unknown == noToken {
					return dst, errNoUnknown
				}
				best[at+size] = pathNode{score, int32(at), u.unknown}
			}
		}
		at += size
	}
	return u.appendPath(dst, word, best), nil
}

// appendPath appends the ids of the pieces of the best path. Neighbouring unknown characters count as one piece.
func (u *unigram) appendPath(dst []block.Token, word string, best []pathNode) []block.Token {
	// This loop reverses the links: after it, each link leads from the beginning of a piece to its end.
	at := int32(len(word))
	for start, id := best[at].start, best[at].id; at > 0; {
		back := best[start]
		best[start].start, best[start].id = at, id
		at, start, id = start, back.start, back.id
	}
	for int(at) < len(word) {
		to, id := best[at].start, best[at].id
		if id != u.unknown {
			dst = append(dst, id)
			at = to
			continue
		}
		for int(to) < len(word) && best[to].id == u.unknown {
			to = best[to].start
		}
		dst = u.appendUnknown(dst, word[at:to])
		at = to
	}
	return dst
}

// appendUnknown appends the ids of a run of unknown characters. The run as a whole may be in the vocabulary.
func (u *unigram) appendUnknown(dst []block.Token, piece string) []block.Token {
	if id, ok := u.vocab.id(piece); ok {
		return append(dst, id)
	}
	if u.fallback != nil {
		if with, ok := appendBytes(dst, u.fallback, piece); ok {
			return with
		}
	}
	return append(dst, u.unknown)
}

// pieceTrie is a trie over bytes. One hash table holds all edges.
type pieceTrie struct {
	token []block.Token // token of each node
	root  [256]int32
	edges []trieEdge
	used  int
}

type trieEdge struct {
	from uint64 // node <<8 | byte, plus one; zero: the slot is free
	to   int32
}

func newPieceTrie() *pieceTrie {
	t := &pieceTrie{token: []block.Token{noToken}, edges: make([]trieEdge, 1<<12)}
	for i := range t.root {
		t.root[i] = -1
	}
	return t
}

func (t *pieceTrie) add(text string, id block.Token) {
	if text == "" {
		return
	}
	node := int32(0)
	for i := range len(text) {
		next := t.child(node, text[i])
		if next < 0 {
			next = int32(len(t.token))
			t.token = append(t.token, noToken)
			t.link(node, text[i], next)
		}
		node = next
	}
	t.token[node] = id
}

func (t *pieceTrie) link(from int32, b byte, to int32) {
	if from == 0 {
		t.root[b] = to
		return
	}
	if 2*t.used >= len(t.edges) {
		old := t.edges
		t.edges = make([]trieEdge, 2*len(old))
		for _, e := range old {
			if e.from != 0 {
				t.place(e)
			}
		}
	}
	t.place(trieEdge{uint64(from)<<8 + uint64(b) + 1, to})
	t.used++
}

func (t *pieceTrie) place(e trieEdge) {
	mask := len(t.edges) - 1
	i := t.home(e.from)
	for t.edges[i].from != 0 {
		i = (i + 1) & mask
	}
	t.edges[i] = e
}

func (t *pieceTrie) home(from uint64) int {
	return int(from*block.Golden>>32) & (len(t.edges) - 1)
}

// child returns the node to which the edge with byte b leads, or -1 if there is no such edge.
func (t *pieceTrie) child(node int32, b byte) int32 {
	if node == 0 {
		return t.root[b]
	}
	from := uint64(node)<<8 + uint64(b) + 1
	mask := len(t.edges) - 1
	for i := t.home(from); ; i = (i + 1) & mask {
		switch e := &t.edges[i]; e.from {
		case from:
			return e.to
		case 0:
			return -1
		}
	}
}
