package tokenizer

import (
	"errors"
	"unicode/utf8"

	"github.com/warmpath/warmpath/block"
)

// wordPiece is BERT's model. It takes the longest piece that begins a word, and then the longest pieces that continue
// it. If pieces cannot cover a word, the whole word is unknown. Goroutines may use it concurrently: only its cache
// changes.
type wordPiece struct {
	starts    *pieceTrie // pieces that begin a word
	continues *pieceTrie // pieces that continue a word, without their prefix (such as ##)
	cache     *wordCache
	unknown   block.Token // token for unknown words; noToken if there is no such token
	maxChars  int         // number of characters; longer words are unknown
}

func newWordPiece(tokens []token, prefix, unknown string, maxChars int) (*wordPiece, *vocabulary, error) {
	v, err := newVocabulary(tokens)
	if err != nil {
		return nil, nil, err
	}
	w := &wordPiece{starts: newPieceTrie(), continues: newPieceTrie(), cache: newWordCache(), unknown: noToken,
		maxChars: maxChars}
	if id, ok := v.id(unknown); ok {
		w.unknown = id
	}
	for _, t := range tokens {
		id, _ := v.id(t.text)
		w.starts.add(t.text, id)
		if len(t.text) > len(prefix) && t.text[:len(prefix)] == prefix {
			w.continues.add(t.text[len(prefix):], id)
		}
	}
	return w, v, nil
}

func (w *wordPiece) appendWord(dst []block.Token, word string, _ *scratch) ([]block.Token, error) {
	if len(word) > maxCachedBytes {
		return w.appendPieces(dst, word)
	}
	key := keyOf(word)
	if found, ok := w.cache.get(&key, dst); ok {
		return found, nil
	}
	before := len(dst)
	dst, err := w.appendPieces(dst, word)
	if err == nil {
		w.cache.put(&key, dst[before:])
	}
	return dst, err
}

func (w *wordPiece) appendPieces(dst []block.Token, word string) ([]block.Token, error) {
	before := len(dst)
	trie := w.starts
	covered := 0
	if len(word) <= w.maxChars || utf8.RuneCountInString(word) <= w.maxChars {
		for covered < len(word) {
			end, id := trie.longest(word, covered)
			if end < 0 {
				break
			}
			dst = append(dst, id)
			covered = end
			trie = w.continues
		}
	}
	if covered == len(word) {
		return dst, nil
	}
	if w.unknown == noToken {
		return dst[:before], errors.New("a word is not in the vocabulary, and neither is the model's unknown token")
	}
	return append(dst[:before], w.unknown), nil
}

// longest returns the end and the id of the longest piece that begins at position at. If no piece begins there, end is
// -1.
func (t *pieceTrie) longest(word string, at int) (end int, id block.Token) {
	end = -1
	node := int32(0)
	for i := at; i < len(word); i++ {
		if node = t.child(node, word[i]); node < 0 {
			break
		}
		if found := t.token[node]; found != noToken {
			end, id = i+1, found
		}
	}
	return end, id
}

// wordLevel is a model that only has tokens for whole words.
type wordLevel struct {
	vocab   *vocabulary
	unknown block.Token // token for unknown words; noToken if there is no such token
}

func (w *wordLevel) appendWord(dst []block.Token, word string, _ *scratch) ([]block.Token, error) {
	if id, ok := w.vocab.id(word); ok {
		return append(dst, id), nil
	}
	if w.unknown == noToken {
		return dst, errors.New("a word is not in the vocabulary, and neither is the model's unknown token")
	}
	return append(dst, w.unknown), nil
}
