package tokenizer

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// smallTokenizers has the content of testdata/sample.json.gz: small tokenizers, and the ids that the official Rust
// tokenizer returns for the texts.
type smallTokenizers struct {
	Texts            []string
	Vocabularies     map[string]map[string]json.RawMessage // the member model of tokenizer.json, by name of the vocabulary
	Models, Features map[string]struct {
		Vocabulary string
		Changes    map[string]json.RawMessage // changes of the model's options
		Parts      map[string]json.RawMessage // other members of tokenizer.json
		IDs        [][]block.Token            // ids of each text
		Special    [][]block.Token            // ids of the first texts, with the tokens around a text
		Decoded    []string                   // text to which the ids of each text decode
	}
}

func TestSmallTokenizersAgreeWithTheRustTokenizer(t *testing.T) {
	var s smallTokenizers
	if err := json.Unmarshal(testenv.Gunzip(t, "testdata/sample.json.gz"), &s); err != nil {
		t.Fatal(err)
	}
	texts := 0
	for name, f := range s.Features {
		s.Models["feature "+name] = f
	}
	for name, m := range s.Models {
		t.Run(name, func(t *testing.T) {
			model := maps.Clone(s.Vocabularies[m.Vocabulary])
			maps.Copy(model, m.Changes)
			file := map[string]any{"model": model}
			for part, value := range m.Parts {
				file[part] = value
			}
			data, err := json.Marshal(file)
			if err != nil {
				t.Fatal(err)
			}
			tok, err := Parse(data, nil)
			if err != nil {
				t.Fatal(err)
			}
			check := func(text string, opts Options, want []block.Token) {
				t.Helper()
				texts++
				got, err := tok.Append(nil, text, opts)
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("error %v; %s", err, firstDifference(tok, text, got, want))
				}
			}
			for i, want := range m.IDs {
				check(s.Texts[i], Options{}, want)
			}
			for i, want := range m.Special {
				check(s.Texts[i], Options{AddSpecial: true}, want)
			}
			for i, want := range m.Decoded {
				if got := tok.Decode(m.IDs[i], false); got != want {
					t.Errorf("decoded %+q, want %+q", got, want)
				}
			}
		})
	}
	t.Logf("%d tokenizers, %d texts", len(s.Models), texts)
}
