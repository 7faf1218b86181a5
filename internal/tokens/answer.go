package tokens

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/jsonscan"
)

// answer is an answer of an engine or the service, or a fork. A fork has the first ids of two answers, as far as they
// are equal: see beginning.go.
type answer struct {
	tokens   []block.Token
	features []block.Feature
	// In a fork, tokens is nil until the second answer is known. Until then from and head describe the first answer's
	// prompt: from is the prompt's key, and head is the beginning of the text of its last turn.
	from key
	head []byte
}

// size returns the memory that a remembered answer takes, in bytes.
func (a *answer) size() int64 {
	n := int64(4*cap(a.tokens)+len(a.head)) + entryOverhead
	for _, f := range a.features {
		n += int64(len(f.ID)) + 24
	}
	return n
}

var errNoTokens = errors.New("answer has no token ids")

// decodeTokenize reads vLLM's and SGLang's answer to /tokenize: {"count", "max_model_len", "tokens": [...], …}.
func decodeTokenize(data []byte) (*answer, error) {
	return decodeIDs(data, "tokens")
}

// decodeRender reads vLLM's answer to render. The answer is one GenerateRequest; for completions it is a list with one
// GenerateRequest. Of its features, only the identifiers and offsets are read. The field kwargs_data, which may have
// megabytes, is skipped.
func decodeRender(data []byte) (*answer, error) {
	return decodeIDs(data, "token_ids")
}

// maxAnswerDepth is the greatest depth of nested JSON in an answer. The answer of render repeats parts of the request,
// whose depth is at most 200.
const maxAnswerDepth = 256

// decodeIDs reads an object with ids in field, or a list with one such object.
func decodeIDs(data []byte, field string) (*answer, error) {
	s := jsonscan.New(data, maxAnswerDepth)
	var a answer
	if s.Peek() != '[' {
		a.read(&s, data, field)
	} else if s.Open('[') {
		a.read(&s, data, field)
		if s.Next(']') {
			s.Stop(errors.New("answer holds several prompts"))
		}
	}
	switch {
	case s.Err() != nil:
		return nil, s.Err()
	case a.tokens == nil:
		return nil, errNoTokens
	}
	for _, f := range a.features { // a feature outside of the blocks would give prompts with different images the same keys
		if f.Offset < 0 || f.Offset >= len(a.tokens) {
			return nil, fmt.Errorf("an item is placed at %d of %d tokens", f.Offset, len(a.tokens))
		}
	}
	return &a, nil
}

// read reads an object of data into a. If field has no ids, a.tokens stays nil.
func (a *answer) read(s *jsonscan.Scanner, data []byte, field string) {
	for more := s.Open('{'); more; more = s.Next('}') {
		switch key, _ := s.Key(); string(key) {
		case field:
			a.tokens = readIDs(s, data)
		case "features":
			a.features = readFeatures(s)
		default:
			s.Skip()
		}
	}
}

// readIDs reads an array of token ids in data. It allocates once: four bytes for each comma in the array.
func readIDs(s *jsonscan.Scanner, data []byte) []block.Token {
	if s.Peek() != '[' {
		s.Stop(errNoTokens)
		return nil
	}
	list, _, _ := bytes.Cut(data[s.Pos():], []byte{']'})
	ids := make([]block.Token, 0, bytes.Count(list, []byte{','})+1)
	for more := s.Open('['); more; more = s.Next(']') {
		ids = s.AppendUint32s(ids, math.MaxInt)
		if !jsonscan.IsNumber(s.Peek()) {
			s.Fail("expected a token id")
			break
		}
		id, err := strconv.ParseUint(string(s.Number()), 10, 32)
		if err != nil {
			s.Stop(fmt.Errorf("token id %d is not a whole number of 32 bits", len(ids)))
		}
		ids = append(ids, block.Token(id))
	}
	return ids
}

// readFeatures reads the multimodal part of render's answer. This part has, for each modality, a list of hashes and a
// list of places in the same order.
func readFeatures(s *jsonscan.Scanner) []block.Feature {
	if s.Word("null") {
		return nil
	}
	var hashes, places []byte
	for more := s.Open('{'); more; more = s.Next('}') {
		switch key, _ := s.Key(); string(key) {
		case "mm_hashes":
			hashes = s.Raw()
		case "mm_placeholders":
			places = s.Raw()
		default:
			s.Skip()
		}
	}
	if s.Err() != nil || hashes == nil || places == nil {
		return nil
	}
	features, err := joinFeatures(hashes, places)
	if err != nil {
		s.Stop(err)
	}
	return features
}

// joinFeatures joins the lists of hashes with the lists of places.
func joinFeatures(hashes, places []byte) ([]block.Feature, error) {
	var ids map[string][]string
	if err := json.Unmarshal(hashes, &ids); err != nil {
		return nil, fmt.Errorf("read mm_hashes: %w", err)
	}
	var spans map[string][]struct{ Offset int }
	if err := json.Unmarshal(places, &spans); err != nil {
		return nil, fmt.Errorf("read mm_placeholders: %w", err)
	}
	var out []block.Feature
	for modality, list := range ids {
		if len(list) != len(spans[modality]) {
			return nil, fmt.Errorf("%d %s items at %d places", len(list), modality, len(spans[modality]))
		}
		for i, id := range list {
			out = append(out, block.Feature{ID: id, Offset: spans[modality][i].Offset})
		}
	}
	sortFeatures(out)
	return out, nil
}
