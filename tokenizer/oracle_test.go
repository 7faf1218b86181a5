package tokenizer

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// enginePython returns the Python interpreter of the vLLM environment that `make test-engines` installs, and the folder
// of this environment.
func enginePython(t *testing.T) (python, folder string) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes half a minute: not with -short")
	}
	folder = testenv.Installed(t, "engines/vllm", "make test-engines")
	return testenv.Installed(t, "engines/vllm/venv/bin/python", "make test-engines"), folder
}

// ask encodes texts with the engine's Python libraries, and returns the ids of each text.
func ask(t *testing.T, python string, request map[string]any) [][]block.Token {
	t.Helper()
	in, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(python, "testdata/oracle.py")
	cmd.Stdin = bytes.NewReader(in)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var ids [][]block.Token
	if err := json.Unmarshal(out, &ids); err != nil {
		t.Fatal(err)
	}
	return ids
}

// sample returns a few texts, and a part of the corpora if they are installed.
func sample(t *testing.T) []string {
	texts := []string{"Hello, world!", "it's I'LL 'ſ 123456", "  \n\n x \r\n", "你好，世界。", "привет мир",
		"e\u0301\u0323 한국어 👨‍👩‍👧", "", " ", strings.Repeat("ab ", 500)}
	dir := filepath.Join(testenv.Cache(t), "tokenizers", "corpus")
	for _, name := range []string{"mixed", "fuzz", "runs"} {
		data, err := os.ReadFile(filepath.Join(dir, name+".json"))
		if err != nil {
			continue
		}
		var docs []string
		if json.Unmarshal(data, &docs) == nil {
			for i := 0; i < len(docs); i += 1 + len(docs)/250 {
				texts = append(texts, docs[i])
			}
		}
	}
	return texts
}

func diffIDs(t *testing.T, tok *Tokenizer, texts []string, opts Options, want [][]block.Token) {
	t.Helper()
	bad := 0
	for i, s := range texts {
		got, err := tok.Append(nil, s, opts)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want[i]) {
			if bad++; bad <= 3 {
				t.Error(firstDifference(tok, s, got, want[i]))
			}
		}
	}
	if bad > 0 {
		t.Errorf("%d of %d texts differ", bad, len(texts))
	}
}

func TestTheRealEnginesTinyModelIsTokenizedAsInPython(t *testing.T) {
	python, dir := enginePython(t)
	model := filepath.Join(dir, "tiny-llama")
	tok, err := Load(os.DirFS(model))
	if err != nil {
		testenv.Missing(t, model, "make test-engines")
	}
	texts := append(sample(t), "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
		"<|bos|><|endoftext|>x<|im_", "<|im_end|>")
	diffIDs(t, tok, texts, Options{}, ask(t, python, map[string]any{"kind": "tokenizers",
		"file": filepath.Join(model, "tokenizer.json"), "texts": texts}))
	diffIDs(t, tok, texts, Options{AddSpecial: true}, ask(t, python,
		map[string]any{"kind": "transformers", "file": model, "texts": texts}))
}

func TestTekkenFilesAreTokenizedAsMistralDoes(t *testing.T) {
	python, dir := enginePython(t)
	files, _ := filepath.Glob(filepath.Join(dir, "venv/lib/python*/site-packages/mistral_common/data/tekken_*.json"))
	if len(files) == 0 {
		testenv.Missing(t, "mistral_common's tekken files", "make test-engines")
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tok, err := Load(fstest.MapFS{"tekken.json": {Data: data}})
		if err != nil {
			t.Fatal(err)
		}
		texts := append(sample(t), "[INST] hi [/INST]</s>")
		want := ask(t, python, map[string]any{"kind": "tekken", "file": file, "texts": texts})
		diffIDs(t, tok, texts, Options{AddSpecial: true, SpecialAsText: true}, want)
	}
}

// ranksOf writes a byte-level vocabulary as a .tiktoken file.
func ranksOf(tok *Tokenizer) []byte {
	var out bytes.Buffer
	v := tok.model.(*bpe).vocab
	for id := range v.known {
		if v.known[id] && tok.added[block.Token(id)].content == "" {
			fmt.Fprintf(&out, "%s %d\n", base64.StdEncoding.EncodeToString(v.text(block.Token(id))), id)
		}
	}
	return out.Bytes()
}

func TestTiktokenRanksGiveTheIDsOfTheSameModelsTokenizerJSON(t *testing.T) {
	hf, dir := loadGolden(t, "gptoss")
	tok, err := Load(fstest.MapFS{"o200k_harmony.tiktoken": {Data: ranksOf(hf)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"mixed", "fuzz", "runs"} {
		compareIDs(t, tok, corpus(t, dir, c), Options{}, readGolden().Models["gptoss"].IDs[c],
			filepath.Join(dir, "ids", "gptoss."+c+".bin"))
	}
	ids, err := tok.Append(nil, "<|start|>user<|message|>hi<|end|>", Options{})
	if want := []block.Token{200006, 1428, 200008, 3686, 200007}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("got %v, %v want %v", ids, err, want)
	}
}

func TestTiktokenPatternsSplitAsTheOriginalsWithPossessiveQuantifiers(t *testing.T) {
	python, _ := enginePython(t)
	hf, _ := loadGolden(t, "gptoss")
	ranks := ranksOf(hf)
	file := filepath.Join(t.TempDir(), "ranks")
	if err := os.WriteFile(file, ranks, 0o600); err != nil {
		t.Fatal(err)
	}
	texts := sample(t)
	for name, original := range map[string]string{
		"cl100k_base": `'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s`,
		"r50k_base":   `'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s`,
	} {
		tok, err := Load(fstest.MapFS{name + ".tiktoken": {Data: ranks}})
		if err != nil {
			t.Fatal(err)
		}
		diffIDs(t, tok, texts, Options{SpecialAsText: true}, ask(t, python,
			map[string]any{"kind": "tiktoken", "file": file, "texts": texts, "pattern": original}))
	}
}
