package tokens

import (
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
)

func TestIDsAreReadFromEverySpellingOfAnAnswer(t *testing.T) {
	for _, text := range []string{
		`{"count":3,"tokens":[1,20,4294967295]}`,
		" {\n \"tokens\" : [ 1 ,\n20 , 4294967295 ] , \"rest\" : {\"a\":[\"]\"]} } \n",
		`[{"tokens":[9]` + `,"tokens":[1,20,4294967295],"features":null}]`,
	} {
		a, err := decodeTokenize([]byte(text))
		if err != nil || !slices.Equal(a.tokens, []block.Token{1, 20, 4294967295}) {
			t.Errorf("%s: %+v, %v", text, a, err)
		}
	}
	if a, err := decodeTokenize([]byte(`{"tokens":[ ]}`)); err != nil || a.tokens == nil || len(a.tokens) != 0 {
		t.Errorf("no ids: %+v, %v", a, err)
	}
}

func TestAnUnexpectedAnswerIsRefused(t *testing.T) {
	for _, text := range []string{``, `null`, `7`, `"x"`, `[]`, `{}`, `[{}]`, `{"count":3}`, `{"tokens":null}`,
		`{"tokens":{}}`, `{"tokens":["1"]}`,
		`{"tokens":[-1]}`, `{"tokens":[1.5]}`, `{"tokens":[4294967296]}`, `{"tokens":[99999999999999999999]}`,
		`{"tokens":[1,]}`, `{"tokens":[1`,
		`{"tokens":[1]`, `{"tokens":[1]]`, `[{"tokens":[1]},{"tokens":[2]}]`, `{"tokens":[1],"x":nul}`,
		`{"tokens":[1],"features":7}`,
		`{"tokens":[1],"features":{"mm_hashes":7,"mm_placeholders":{}}}`,
		`{"tokens":[1],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{}}}`} {
		if a, err := decodeTokenize([]byte(text)); err == nil {
			t.Errorf("%s: %v is accepted", text, a.tokens)
		}
	}
}
