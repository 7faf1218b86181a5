package jsonscan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tokensOf splits text into pieces of the given size. It returns the tokens, and the depth at the end. A returned token
// is the token's text after a prefix that names its kind, such as "key " or "scalar ". Brackets and commas have no
// prefix. Parts of one string, and parts of one scalar, are joined, so that the result does not depend on the size.
func tokensOf(text string, size int) (tokens []string, depth int) {
	var p Pieces
	unfinished := "" // the sign of the last token, if the token may go on
	add := func(sign, part string, more bool) {
		if sign != "" && sign == unfinished {
			tokens[len(tokens)-1] += part
		} else {
			tokens = append(tokens, sign+part)
		}
		if unfinished = sign; !more {
			unfinished = ""
		}
	}
	for len(text) > 0 {
		piece := text[:min(size, len(text))]
		text = text[len(piece):]
		for len(piece) > 0 {
			t, from, to := p.Next([]byte(piece))
			between, part := piece[:from], piece[from:to]
			if strings.Trim(between, " \t\r\n:") != "" || t != None && part == "" {
				panic(fmt.Sprintf("bug: token %d is %q after %q", t, part, between))
			}
			if between != "" {
				unfinished = ""
			}
			piece = piece[to:]
			sign := "value "
			if p.IsKey() {
				sign = "key "
			}
			switch t {
			case String, Unquote:
				add(sign, part, false)
			case Quote, Text, Escape, Control:
				add(sign, part, true)
			case Scalar:
				add("scalar ", part, true)
			case OpenObject, OpenArray, Close, Comma:
				add("", part, false)
			case Unopened:
				add("unopened ", part, false)
			}
		}
	}
	return tokens, p.Depth()
}

func TestPiecesHaveTheSameTokensForEverySplit(t *testing.T) {
	for text, want := range map[string][]string{
		``:                            nil,
		" \n":                         nil,
		`{"a":1}`:                     {"{", `key "a"`, "scalar 1", "}"},
		` { "a" : -1.5e3 , "b":[ ] }`: {"{", `key "a"`, "scalar -1.5e3", ",", `key "b"`, "[", "]", "}"},
		`["a",{"b\"":"c"},"d"]`:       {"[", `value "a"`, ",", "{", `key "b\""`, `value "c"`, "}", ",", `value "d"`, "]"},
		`{"a":{"b":[null]},"c":""}`:   {"{", `key "a"`, "{", `key "b"`, "[", "scalar null", "]", "}", ",", `key "c"`, `value ""`, "}"},
		`"\\\u00e9é"`:                 {`value "\\\u00e9é"`},
		"\"a\nb\"":                    {"value \"a\nb\""},
		`"a`:                          {`value "a`},
		`]{}}`:                        {"unopened ]", "{", "}", "unopened }"},
		`{"a" "b" nonsense`:           {"{", `key "a"`, `value "b"`, "scalar nonsense"},
		`1 2`:                         {"scalar 1", "scalar 2"},
	} {
		for size := 1; size <= len(text)+1; size++ {
			got, _ := tokensOf(text, size)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s in pieces of %d bytes:\n%s", text, size, diff)
			}
		}
	}
}

func TestAKeyIsKnownBelowDeepContainers(t *testing.T) {
	text := `{"a":` + strings.Repeat(`[{"x":`, 50) + "1" + strings.Repeat("}]", 50) + `,"b":2}`
	tokens, depth := tokensOf(text, 7)
	if n := len(tokens); depth != 0 || tokens[n-3] != `key "b"` {
		t.Errorf("depth %d, %q", depth, tokens[n-3:])
	}
}

func FuzzPieces(f *testing.F) {
	for _, text := range []string{"", `{"a":[1,"b\n",{"c":null}],"d":"é"}`, `[[]`, `]`, "\"\x01", `{"a" 1 "b"`, `[1E1000]`} {
		f.Add(text, 3)
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		whole, depth := tokensOf(text, max(1, len(text)))
		pieces, _ := tokensOf(text, 1+size&15)
		if diff := cmp.Diff(whole, pieces); diff != "" {
			t.Fatalf("%q: the tokens depend on the pieces:\n%s", text, diff)
		}
		if !json.Valid([]byte(text)) || strings.Count(text, "{")+strings.Count(text, "[") > 60 {
			return
		}
		if depth != 0 {
			t.Errorf("%s: depth %d at the end", text, depth)
		}
		if diff := cmp.Diff(decoded(t, text), shapes(whole)); diff != "" {
			t.Errorf("%s: - encoding/json, + Pieces:\n%s", text, diff)
		}
	})
}

// decoded returns the tokens that encoding/json finds, in the form of shapes.
func decoded(t *testing.T, text string) (out []string) {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber() // a float64 has no 1E1000
	for {
		token, err := d.Token()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		switch v := token.(type) {
		case json.Delim:
			out = append(out, v.String())
		case string:
			out = append(out, "string")
		default:
			out = append(out, "scalar")
		}
	}
}

// shapes returns tokens without commas, and without the texts of strings and scalars.
func shapes(tokens []string) (out []string) {
	for _, token := range tokens {
		switch word, _, _ := strings.Cut(token, " "); word {
		case ",":
		case "key", "value":
			out = append(out, "string")
		default:
			out = append(out, word)
		}
	}
	return out
}
