package tokenizer

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/block"
)

// BenchmarkAppend encodes a text with a small model, and the mixed corpus with published models, if they are installed.
// One round encodes all texts once.
func BenchmarkAppend(b *testing.B) {
	b.Run("tiny", func(b *testing.B) {
		benchmarkAppend(b, tiny().parse(b),
			[]string{strings.Repeat("<|im_start|>user\nhello world, it's 12 the é 你好\n<|im_end|>\n", 200)})
	})
	for _, name := range []string{"llama3_1", "qwen3", "deepseek_v3", "gemma3", "gptoss", "llama2", "mon", "bert"} {
		b.Run(name, func(b *testing.B) {
			tok, dir := loadGolden(b, name)
			benchmarkAppend(b, tok, corpus(b, dir, "mixed"))
		})
	}
}

func benchmarkAppend(b *testing.B, tok *Tokenizer, docs []string) {
	var ids []block.Token
	size, tokens := 0, 0
	for _, d := range docs {
		size += len(d)
		ids, _ = tok.Append(ids[:0], d, Options{})
		tokens += len(ids)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		for _, d := range docs {
			ids, _ = tok.Append(ids[:0], d, Options{})
		}
	}
	b.ReportMetric(float64(tokens)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mtok/s")
}

// BenchmarkTurnCache encodes a conversation of some 30,000 ids. The cache has all turns except the last turn.
func BenchmarkTurnCache(b *testing.B) {
	tok := tiny().parse(b)
	turns := NewTurnCache(tok, 0)
	texts := conversation(120)
	last := texts[len(texts)-1]
	ids, _, err := turns.Append(nil, texts[len(texts)-2], Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(last)))
	b.ReportAllocs()
	for b.Loop() {
		ids, _, _ = turns.Append(ids[:0], last, Options{})
	}
}

func BenchmarkParse(b *testing.B) {
	file := tiny().json()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(file, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReadFile reads the tokenizer.json of gemma3 (31 MiB) in three ways: as this package does, and with two other
// readers, which build a tree or fill maps.
func BenchmarkReadFile(b *testing.B) {
	dir := cacheFolder(b)
	data := readInstalled(b, filepath.Join(dir, readGolden().Models["gemma3"].Dir, "tokenizer.json"))
	for name, read := range map[string]func() error{
		"jsonscan": func() error {
			_, err := readFile(data)
			return err
		},
		"fastjson": func() error {
			_, err := fastjson.ParseBytes(data)
			return err
		},
		"encoding_json": func() error { // this reader does less work: it does not decode the merges
			var f struct {
				Model struct {
					Vocab  map[string]uint32
					Merges []json.RawMessage
				}
			}
			return json.Unmarshal(data, &f)
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if err := read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
