package tokenizer

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestWordsMergeLowestRankFirstAndSpecialTokensStandAlone(t *testing.T) {
	tok := tiny().parse(t)
	f := func(text string, opts Options, want string) {
		t.Helper()
		if got := pieceList(t, tok, text, opts); got != want {
			t.Errorf("%q: got %s want %s", text, got, want)
		}
	}
	f("hello world", Options{}, "hello Ġworld")
	f("hello", Options{AddSpecial: true}, "<|bos|> hello")
	f("<|im_start|>hello<|im_end|>", Options{}, "<|im_start|> hello <|im_end|>")
	f("<|im_end|>", Options{SpecialAsText: true}, "< | i m _ e n d | >")
	f("e\u0301", Options{}, "Ã ©")
	f("aaaaaaaaa", Options{}, "aaaaaaaa a")
	f("", Options{AddSpecial: true}, "<|bos|>")
	f("\xff", Options{}, "ï ¿ ½")
	f("\n\n", Options{}, "ĊĊ")
}

func TestDecodingReturnsTheText(t *testing.T) {
	tok := tiny().parse(t)
	for _, text := range []string{"hello world", "it's é 你好 👍🏽\n", "<|im_start|>hello<|im_end|>"} {
		ids, err := tok.Append(nil, text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Decode(ids, false); got != text {
			t.Errorf("got %q want %q", got, text)
		}
	}
	ids, _ := tok.Append(nil, "<|im_start|>hello<|im_end|>", Options{})
	if got := tok.Decode(ids, true); got != "hello" {
		t.Errorf("without special tokens: got %q", got)
	}
	// Id 160 is a byte that is only a part of a character. The last id has no token.
	if got := tok.Decode([]block.Token{ids[1], 160, 1 << 30}, false); got != "hello\ufffd" {
		t.Errorf("got %q", got)
	}
}

func TestUnknownComponentsAreRefusedByName(t *testing.T) {
	f := func(name string, change func(s tinySpec)) {
		t.Helper()
		s := tiny()
		change(s)
		_, err := Parse(s.json(), nil)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want an error that names %s, got %v", name, err)
		}
	}
	unknown := map[string]any{"type": "Quux"}
	f(`unknown normalizer "Quux"`, func(s tinySpec) { s["normalizer"] = unknown })
	f(`unknown pre_tokenizer "Quux"`, func(s tinySpec) { s["pre_tokenizer"] = unknown })
	f(`unknown pre_tokenizer "UnicodeScripts"`,
		func(s tinySpec) { s["pre_tokenizer"] = map[string]any{"type": "UnicodeScripts"} })
	f(`unknown post_processor "Quux"`, func(s tinySpec) { s["post_processor"] = unknown })
	f(`unknown decoder "Quux"`, func(s tinySpec) { s["decoder"] = unknown })
	f(`unknown model "Quux"`, func(s tinySpec) { s["model"].(map[string]any)["type"] = "Quux" })
	f("dropout", func(s tinySpec) { s["model"].(map[string]any)["dropout"] = 0.1 })
	f("case-insensitive", func(s tinySpec) {
		s["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": "(?i:ss)"},
			"behavior": "Isolated"}
	})
	f("over the limit of 8192", func(s tinySpec) {
		s["pre_tokenizer"] = map[string]any{"type": "Split",
			"pattern": map[string]any{"Regex": strings.Repeat(`\p{L}`, 2000)}, "behavior": "Isolated"}
	})
	f("the vocabulary does not have", func(s tinySpec) { s["model"].(map[string]any)["merges"] = []string{"q q"} })
	f("behavior", func(s tinySpec) {
		s["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"String": "x"},
			"behavior": "Odd"}
	})
}

func TestBothEncodingsOfMergesAreTheSame(t *testing.T) {
	s := tiny()
	want := pieceList(t, s.parse(t), "hello world the", Options{})
	m := s["model"].(map[string]any)
	var pairs [][]string
	for _, line := range m["merges"].([]string) {
		pairs = append(pairs, strings.Split(line, " "))
	}
	m["merges"] = pairs
	if got := pieceList(t, s.parse(t), "hello world the", Options{}); got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

func TestConfigurationAddsTokensAndLeavesThePostProcessorAlone(t *testing.T) {
	f := func(config, text, want string) {
		t.Helper()
		tok, err := Load(fstest.MapFS{"tokenizer.json": {Data: tiny().json()},
			"tokenizer_config.json": {Data: []byte(config)}})
		if err != nil {
			t.Error(err)
			return
		}
		if got := pieceList(t, tok, text, Options{AddSpecial: true}); got != want {
			t.Errorf("%s: got %s want %s", config, got, want)
		}
	}
	f(`{}`, "hello", "<|bos|> hello")
	f(`{"add_bos_token": false}`, "hello", "<|bos|> hello")
	f(`{"add_eos_token": true, "eos_token": {"content": "<|im_end|>"}}`, "hello", "<|bos|> hello")
	f(`{"added_tokens_decoder": {"1003": {"content": "<x>", "special": false}}}`, "<x>", "<|bos|> <x>")
	f(`{"pad_token": "<pad>"}`, "<pad>", "<|bos|> <pad>")
}

func TestAFolderWithoutATokenizerIsRefused(t *testing.T) {
	if _, err := Load(fstest.MapFS{}); !errors.Is(err, ErrNoTokenizer) {
		t.Errorf("got %v", err)
	}
	if _, err := Load(fstest.MapFS{"other.tiktoken": {Data: []byte("YQ== 0")}}); err == nil ||
		!strings.Contains(err.Error(), `"other"`) {
		t.Errorf("got %v", err)
	}
}

func TestSteadyStateAllocatesNothing(t *testing.T) {
	if testenv.Race() {
		t.Skip("under the race detector a sync.Pool drops values at random")
	}
	tok := tiny().parse(t)
	text := strings.Repeat("<|im_start|>user\nhello world, it's 12 aaaaa the é e\u0301\u0323 你好你好\n<|im_end|>\n", 50)
	dst := make([]block.Token, 0, 10000)
	turns := NewTurnCache(tok, 0)
	if n := testing.AllocsPerRun(50, func() {
		if _, err := tok.Append(dst, text, Options{}); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("Append allocates %.0f times", n)
	}
	if n := testing.AllocsPerRun(50, func() {
		if _, _, err := turns.Append(dst, text, Options{}); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("TurnCache.Append allocates %.0f times", n)
	}
}

func TestManyGoroutinesShareOneTokenizer(t *testing.T) {
	tok := tiny().parse(t)
	turns := NewTurnCache(tok, 1<<16)
	texts := conversation(40)
	want := make([][]block.Token, len(texts))
	fresh := tiny().parse(t)
	for i, s := range texts {
		want[i], _ = fresh.Append(nil, s, Options{})
	}
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 25 {
				i := r.IntN(len(texts))
				got, err := tok.Append(nil, texts[i], Options{})
				if err != nil || !slices.Equal(got, want[i]) {
					t.Errorf("text %d differs, %v", i, err)
				}
				if got, _, err = turns.Append(nil, texts[i], Options{}); err != nil || !slices.Equal(got, want[i]) {
					t.Errorf("text %d differs from the turn cache, %v", i, err)
				}
			}
		})
	}
	all.Wait()
}

// conversation returns the text of a growing chat after each turn. Each text begins with the text before it in the
// list.
func conversation(turns int) []string {
	r := rand.New(rand.NewPCG(7, 7))
	words := []string{"hello", " world", " the", "é", "你好", "\n", "<", "|im_", " 12", "aaaa", "'s", "<|im_end|",
		"e\u0301", "\xff", "\xe4\xbd"}
	var text strings.Builder
	var out []string
	for range turns {
		for _, role := range []string{"user", "assistant"} {
			text.WriteString("<|im_start|>" + role + "\n")
			for range r.IntN(400) {
				text.WriteString(words[r.IntN(len(words))])
			}
			text.WriteString("<|im_end|>\n")
		}
		out = append(out, text.String()+"<|im_start|>assistant\n")
	}
	return out
}

func TestAGrowingConversationHasTheIDsOfAColdEncoding(t *testing.T) {
	tok := tiny().parse(t)
	for _, budget := range []int{0, 1, 1 << 15} { // bytes: with 0, the default, the cache holds all stretches; with 1 no stretch; with 1<<15 some
		turns := NewTurnCache(tok, budget)
		for i, text := range conversation(30) {
			for _, opts := range []Options{{}, {AddSpecial: true}, {SpecialAsText: true}} {
				want, _ := tok.Append(nil, text, opts)
				got, reuse, err := turns.Append(nil, text, opts)
				if err != nil || !slices.Equal(got, want) {
					t.Fatalf("turn %d: differs, %v", i, err)
				}
				if budget == 0 && i > 5 && !opts.SpecialAsText && reuse.Known.Tokens < len(got)/2 {
					t.Errorf("turn %d: only %d of %d ids reused", i, reuse.Known.Tokens, len(got))
				}
			}
		}
		if s := turns.Stats(); budget > 0 && s.Bytes > budget {
			t.Errorf("%d bytes kept of %d allowed", s.Bytes, budget)
		}
	}
}

func TestTokensThatOverlapOthersAreNoCuts(t *testing.T) {
	s := tiny()
	token := func(content string, more map[string]any) map[string]any {
		m := map[string]any{"id": 2000 + len(s["added_tokens"].([]any)), "content": content, "special": true,
			"normalized": false}
		for k, v := range more {
			m[k] = v
		}
		return m
	}
	for _, a := range []map[string]any{token("<a>", nil), token("<a><b>", nil), token("x<", nil), token("<c>", nil),
		token("<d>", map[string]any{"rstrip": true}), token("[E]", nil),
		token("[F]", map[string]any{"single_word": true})} {
		a["id"] = 2000 + len(s["added_tokens"].([]any))
		s["added_tokens"] = append(s["added_tokens"].([]any), a)
	}
	tok := s.parse(t)
	var got []string
	for _, a := range tok.raw.solid().tokens {
		got = append(got, a.content)
	}
	slices.Sort(got)
	if want := []string{"[E]", "x<"}; !slices.Equal(got, want) {
		t.Errorf("got %q want %q: every other token overlaps one, continues in one, or depends on the character after it", got, want)
	}
}

func TestATenMegabyteWordTakesBoundedTime(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	tok := tiny().parse(t)
	r := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 10<<20)
	for i := range random {
		random[i] = "ahelowrd"[r.IntN(8)]
	}
	for name, text := range map[string]string{"one letter": strings.Repeat("a", 10<<20), "letters": string(random),
		"spaces":    strings.Repeat(" ", 10<<20),
		"line ends": strings.Repeat("\n", 10<<20), "marks": "e" + strings.Repeat("\u0301\u0323", 2<<20),
		"tokens": strings.Repeat("<|im_en", 1<<20)} {
		began := time.Now()
		ids, err := tok.Append(nil, text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		t.Logf("%s: %d ids in %v", name, len(ids), took)
		if took > 2*time.Minute { // the bound is long enough for a busy machine; quadratic time would take days
			t.Errorf("%s takes %v", name, took)
		}
	}
}

func FuzzTokenizerJSON(f *testing.F) {
	f.Add(tiny().json(), []byte(`{"add_bos_token": true, "bos_token": "<|bos|>"}`))
	f.Add([]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["<unk>",0],["a",-1.5]]}}`), []byte(`{}`))
	f.Add([]byte(`{"model":{"type":"WordPiece","vocab":{"[UNK]":0,"a":1}},"pre_tokenizer":{"type":"BertPreTokenizer"}}`), []byte(``))
	f.Add([]byte(`{"model":{"vocab":{"a":4294967295},"merges":[]}}`), []byte(`[]`))
	for _, r := range []string{`a{1,3}?b|(?=x)`, `[^\s&&[a-z]]+`, `(?i:'s)|\p{Han}+`, `(`, `[`, `\`, `a**`} {
		s := tiny()
		s["pre_tokenizer"] = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": r},
			"behavior": "MergedWithNext"}
		f.Add(s.json(), []byte(`null`))
	}
	f.Fuzz(func(t *testing.T, file, config []byte) {
		tok, err := Parse(file, config)
		if err != nil {
			return
		}
		ids, err := tok.Append(nil, "Hello wörld 12 <|im_end|>\n", Options{AddSpecial: true})
		if err == nil {
			tok.Decode(ids, false)
		}
	})
}

func FuzzText(f *testing.F) {
	tok := tiny().parse(f)
	turns := NewTurnCache(tok, 1<<20)
	bare := tiny()
	bare["pre_tokenizer"] = nil // the whole text is one word
	whole := bare.parse(f)
	for _, s := range []string{"hello world", "<|im_start|>x<|im_end|>", "e\u0301\u0323", "\xff\xfe",
		"'ſ 12  \n\n x", strings.Repeat("ab", 600)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		want, err := tok.Append(nil, text, Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := turns.Append(nil, text, Options{})
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("turn cache: got %v, %v want %v", got, err, want)
		}
		if _, err := whole.Append(nil, text, Options{}); err != nil {
			t.Fatal(err)
		}
		for _, id := range want {
			if _, ok := tok.Spelling(id); !ok {
				t.Fatalf("id %d is no token", id)
			}
		}
	})
}

func FuzzRanks(f *testing.F) {
	f.Add([]byte("YQ== 0\nYg== 1\n"), []byte(`{"config":{"pattern":"."},"vocab":[{"rank":0,"token_bytes":"YQ=="}]}`))
	f.Add([]byte("YQ== 4194303\nYQ== 4194304\n"),
		[]byte(`{"config":{"default_vocab_size":4194304,"default_num_special_tokens":4194304}}`))
	var all strings.Builder
	var vocab []string
	for rank := range 259 {
		text := []byte{byte(rank)}
		if rank >= 256 {
			text = [][]byte{[]byte("ab"), []byte("abc"), {0, 0xff}}[rank-256]
		}
		coded := base64.StdEncoding.EncodeToString(text)
		fmt.Fprintf(&all, "%s %d\n", coded, rank)
		vocab = append(vocab, fmt.Sprintf(`{"rank":%d,"token_bytes":"%s"}`, rank, coded))
	}
	f.Add([]byte(all.String()), []byte(`{"config":{"pattern":"a|.","default_vocab_size":261,"default_num_special_tokens":2},"vocab":[`+strings.Join(vocab, ",")+`]}`))
	f.Fuzz(func(t *testing.T, ranks, tekken []byte) {
		// ParseTiktoken would spend nearly all its time compiling a pattern, which does not depend on the input.
		if tokens, err := readRanks(ranks); err == nil {
			if m, err := newRankBPE(tokens); err == nil {
				if _, err := m.appendWord(nil, "abc\x00\xff", &scratch{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if tok, err := ParseTekken(tekken); err == nil {
			if ids, err := tok.Append(nil, "abc\x00\xff<s>", Options{}); err == nil {
				tok.Decode(ids, false)
			}
		}
	})
}

func ExampleTokenizer_Append() {
	var s tinySpec = tiny()
	tok, err := Parse(s.json(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ids, err := tok.Append(nil, "hello world", Options{AddSpecial: true})
	fmt.Println(len(ids), err, tok.Decode(ids, true))
	// Output: 3 <nil> hello world
}

func TestEqualMarksMeanEqualIDs(t *testing.T) {
	tok := tiny().parse(t)
	for _, budget := range []int{0, 1 << 20} { // bytes: with 0, the default, the cache holds all stretches; with 1<<20 some
		turns := NewTurnCache(tok, budget)
		named := map[[2]uint64][]block.Token{}
		r := rand.New(rand.NewPCG(3, 3))
		texts := conversation(25)
		chained := 0
		for range 400 {
			text := texts[r.IntN(len(texts))]
			if r.IntN(4) == 0 { // the conversation continues differently from its middle on
				text = text[:len(text)/2] + "<|im_end|>" + texts[r.IntN(len(texts))]
			}
			opts := Options{AddSpecial: r.IntN(3) == 0}
			ids, reuse, err := turns.Append(nil, text, opts)
			if err != nil {
				t.Fatal(err)
			}
			if reuse.Known.Tokens > reuse.Stable.Tokens || reuse.Stable.Tokens > len(ids) {
				t.Fatalf("%d known of %d stable of %d ids", reuse.Known.Tokens, reuse.Stable.Tokens, len(ids))
			}
			for _, p := range []block.Prefix{reuse.Known, reuse.Stable} {
				if p.Tokens == 0 {
					continue
				}
				if before, seen := named[p.Mark]; !seen {
					named[p.Mark] = slices.Clone(ids[:p.Tokens])
				} else if chained++; !slices.Equal(before, ids[:p.Tokens]) {
					t.Fatalf("a mark stands for %d ids, and for %d other ids", len(before), p.Tokens)
				}
			}
		}
		if chained < 100 {
			t.Errorf("only %d of 400 texts had a known mark", chained)
		}
	}
}
