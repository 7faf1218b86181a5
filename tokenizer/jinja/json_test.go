package jinja

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTextsAreDecodedAsByEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 9))
	pieces := []string{"a", "words and more words ", "é", "\U0001F600", `\"`, `\\`, `\/`, `\n`, `\t`, `\u00e9`,
		`\ud83d\ude00`, "\x7f", "\u0080", "ÿ", " ", `\\\"`, strings.Repeat("x", 100)}
	for range 5000 {
		var b strings.Builder
		for range r.IntN(20) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		source := `"` + b.String() + `"`
		var want string
		if err := json.Unmarshal([]byte(source), &want); err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		v, err := new(Decoder).DecodeText(strings.Repeat(" ", r.IntN(9))+source, Python)
		if err != nil || v.str != want {
			t.Fatalf("%s read as %q, error %v", source, v.str, err)
		}
		cut := source[:1+r.IntN(len(source)-1)]
		if _, err := new(Decoder).DecodeText(cut, Python); err == nil && !json.Valid([]byte(cut)) &&
			utf8.ValidString(cut) {
			t.Fatalf("%s was read", cut)
		}
		at := 1 + r.IntN(len(source)-1)
		broken := source[:at] + string(rune(r.IntN(' '))) + source[at:]
		if _, err := new(Decoder).DecodeText(broken, Python); err == nil && !json.Valid([]byte(broken)) {
			t.Fatalf("%q was read", broken)
		}
	}
}
