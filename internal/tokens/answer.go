package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/warmpath/warmpath/block"
)

// answer is what an engine said, or what two answers have in common (see beginning.go).
type answer struct {
	tokens   []block.Token
	features []block.Feature
	// Of a place where lists part, as long as one answer alone is known: that answer, and the text that its list went
	// on with.
	from key
	head []byte
}

// size is the memory that a remembered answer takes, in bytes.
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

// decodeRender reads vLLM's answer to render: one GenerateRequest, or for completions a list with one of them. Of its
// features only identifiers and places are read; kwargs_data, which may be megabytes, is stepped over.
func decodeRender(data []byte) (*answer, error) {
	i := skipSpace(data, 0)
	if i < len(data) && data[i] == '[' {
		i = skipSpace(data, i+1)
		end := skipValue(data, i)
		if end < 0 {
			return nil, errShape
		}
		if rest := skipSpace(data, end); rest >= len(data) || data[rest] != ']' {
			return nil, errors.New("answer holds several prompts")
		}
		data = data[i:end]
	}
	return decodeIDs(data, "token_ids")
}

func decodeIDs(data []byte, field string) (*answer, error) {
	var (
		a     answer
		bad   error
		found bool
	)
	err := eachField(data, func(name, value []byte) bool {
		switch string(name) {
		case field:
			found = true
			a.tokens, bad = parseIDs(value)
		case "features":
			a.features, bad = parseFeatures(value)
		}
		return bad == nil
	})
	switch {
	case err != nil:
		return nil, err
	case bad != nil:
		return nil, bad
	case !found:
		return nil, errNoTokens
	}
	for _, f := range a.features { // one that is folded into no block would let two images pass for one
		if f.Offset < 0 || f.Offset >= len(a.tokens) {
			return nil, fmt.Errorf("an item is placed at %d of %d tokens", f.Offset, len(a.tokens))
		}
	}
	return &a, nil
}

// parseIDs reads a JSON array of token ids. It allocates once, at most two bytes of ids for each byte of data.
func parseIDs(data []byte) ([]block.Token, error) {
	if len(data) < 2 || data[0] != '[' || data[len(data)-1] != ']' {
		return nil, errNoTokens
	}
	count := 1
	for _, c := range data {
		if c == ',' {
			count++
		}
	}
	ids := make([]block.Token, 0, count)
	i := skipSpace(data, 1)
	if i == len(data)-1 {
		return ids, nil
	}
	for {
		id, digits := uint64(0), 0
		for ; i < len(data) && data[i] >= '0' && data[i] <= '9'; i++ {
			if id = id*10 + uint64(data[i]-'0'); id > math.MaxUint32 {
				return nil, errors.New("token id is beyond 32 bits")
			}
			digits++
		}
		i = skipSpace(data, i)
		if digits == 0 || i >= len(data) || data[i] != ',' && i != len(data)-1 {
			return nil, fmt.Errorf("token id %d is not a number", len(ids))
		}
		ids = append(ids, block.Token(id))
		if i == len(data)-1 {
			return ids, nil
		}
		i = skipSpace(data, i+1)
	}
}

// parseFeatures reads render's multimodal part: per modality a list of hashes and a list of places, side by side.
func parseFeatures(data []byte) ([]block.Feature, error) {
	if string(data) == "null" {
		return nil, nil
	}
	var hashes, places []byte
	err := eachField(data, func(name, value []byte) bool {
		switch string(name) {
		case "mm_hashes":
			hashes = value
		case "mm_placeholders":
			places = value
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read features: %w", err)
	}
	if hashes == nil || places == nil {
		return nil, nil
	}
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
