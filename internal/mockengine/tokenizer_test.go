package mockengine

import (
	"bytes"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
)

func TestTokensAreReadable(t *testing.T) {
	f := func(text string, want ...string) {
		t.Helper()
		var got []string
		for _, id := range appendTokens(nil, text) {
			got = append(got, string(appendPiece(nil, id)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: pieces %q, want %q", text, got, want)
		}
	}
	f("")
	f("the cat sat", "the", " cat", " sat")
	f("remembering", "remem", "berin", "g")
	f(" remembering", " reme", "mberi", "ng")
	f("a  b ", "a", " ", " b", " ")
	f("Dr. No, 1963", "D", "r", ". "[:1], " ", "N", "o", ",", " ", "19", "63")
	f("naïve", "na", "ï", "ve")
	f("zzzzz zzzzz", "zzzzz", " zzzz", "z")
}

func TestEachIDIsOnePiece(t *testing.T) {
	seen := map[string]block.Token{}
	for _, id := range []block.Token{byteBase, byteBase + 255, pairBase, pairBase + 65535, letterBase, letterBase + 26,
		letterBase + letterOffset[2], letterBase + letterOffset[3], letterBase + letterOffset[4], letterBase +
			letterOffset[5], vocabulary - 1} {
		piece := string(appendPiece(nil, id))
		if other, dup := seen[piece]; dup || piece == "" {
			t.Errorf("id %d is %q, as is %d", id, piece, other)
		}
		seen[piece] = id
	}
	if vocabulary >= 1<<24 {
		t.Errorf("vocabulary %d is not below 2^24", vocabulary)
	}
	if got := appendText(nil, []block.Token{tokenUser, vocabulary, 63}); string(got) != "<|user|>" {
		t.Errorf("special and unknown ids read %q", got)
	}
}

// checkTokenizer checks the rules in the tokenizer's comment, for one text and one position at which it is cut.
func checkTokenizer(t *testing.T, text []byte, cut int) {
	t.Helper()
	tokens := appendTokens(nil, text)
	if got := appendText(nil, tokens); !bytes.Equal(got, text) {
		t.Fatalf("text %q came back as %q", text, got)
	}
	if len(tokens) > 0 {
		cut = (cut%len(tokens) + len(tokens)) % len(tokens)
		head := appendText(nil, tokens[:cut])
		if got := appendTokens(nil, head); !slices.Equal(got, tokens[:cut]) {
			t.Fatalf("the text of the first %d tokens of %q has tokens %v, want %v", cut, text, got, tokens[:cut])
		}
	}
	joined := appendTokens(nil, append(slices.Clone(text), " more words"...))
	if want := appendTokens(tokens, " more words"); !slices.Equal(joined, want) {
		t.Fatalf("%q joined to a text that begins with a space has tokens %v, want %v", text, joined, want)
	}
}

func FuzzTokenizer(f *testing.F) {
	for _, text := range []string{"", "the quick brown fox", "  two  spaces ", "Ünïcödé 漢字 🎉", "\x00\xff\xfe a",
		"{\"json\": [1, 2.5, null]}\n"} {
		f.Add([]byte(text), 3)
	}
	f.Fuzz(checkTokenizer)
}

func TestEnglishHasAboutFourBytesAToken(t *testing.T) {
	text := "The scheduler admits waiting requests in order, as long as the token budget and the pool allow it to do so."
	if n := len(appendTokens(nil, text)); float64(len(text))/float64(n) < 3 {
		t.Errorf("%d bytes come to %d tokens", len(text), n)
	}
}

func TestAnswersStayWithinTheirBounds(t *testing.T) {
	prompt := appendTokens(nil, "tell me something")
	for choice := range 200 {
		f := func(name string, o answerOptions, tokens, text int, reason string) {
			t.Helper()
			a := answerTo(prompt, choice, &o)
			if len(a.tokens) != tokens || a.text != text || a.reason != reason {
				t.Errorf("%s, choice %d: %d tokens, %d of text, %s; want %d, %d, %s", name, choice, len(a.tokens), a.text,
					a.reason, tokens, text, reason)
			}
			shown := appendText(nil, a.tokens[:a.text])
			if got := appendTokens(nil, shown); !slices.Equal(got, a.tokens[:a.text]) {
				t.Errorf("%s, choice %d: %q does not have the tokens that were generated", name, choice, shown)
			}
		}
		f("ends by itself", answerOptions{length: 20, limit: 100}, 21, 20, "stop")
		f("cut", answerOptions{length: 20, limit: 7}, 7, 7, "length")
		f("cut where the end would be", answerOptions{length: 20, limit: 20}, 20, 20, "length")
		f("room for the end alone", answerOptions{length: 20, limit: 21}, 21, 20, "stop")
		f("ignore the end", answerOptions{length: 5, limit: 33, ignoreEnd: true}, 33, 33, "length")
	}
	a := answerTo(prompt, 0, &answerOptions{length: 50, limit: 100})
	shown := string(appendText(nil, a.tokens[:a.text]))
	b := answerTo(prompt, 0, &answerOptions{length: 50, limit: 100, stop: []string{"\n", shown[20:25]}})
	if got := string(appendText(nil, b.tokens[:b.text])); b.reason != "stop" || b.stop != shown[20:25] || len(got) > 20 ||
		got != shown[:len(got)] {
		t.Errorf("stop string: %q (%s, %q) from %q", got, b.reason, b.stop, shown)
	}
}
