//go:build unix

package tokenizer

import (
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// BenchmarkModelFigures prints the encoding rate, the load time and the memory of every model, and the same figures for
// the Rust tokenizer's Node binding. Times are CPU time of one core. The benchmark takes minutes.
func BenchmarkModelFigures(b *testing.B) {
	b.ReportMetric(0, "ns/op") // the figures are in the log, and -v prints the whole log
	dir := cacheFolder(b)
	docs := corpus(b, dir, "mixed")
	script, err := filepath.Abs("testdata/rust.mjs")
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for name := range readGolden().Models {
		names = append(names, name)
	}
	slices.Sort(names)
	var tok *Tokenizer
	var ids []block.Token
	for _, name := range names {
		var before, after runtime.MemStats
		tok = nil
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&before)
		data := readInstalled(b, filepath.Join(dir, readGolden().Models[name].Dir, "tokenizer.json"))
		began := testenv.CPUTime(b)
		if tok, err = Parse(data, nil); err != nil {
			b.Fatal(err)
		}
		load := testenv.CPUTime(b) - began
		data = nil
		runtime.GC()
		runtime.ReadMemStats(&after)
		var rates []float64
		for range 5 {
			tokens := 0
			began = testenv.CPUTime(b)
			for _, d := range docs {
				if ids, err = tok.Append(ids[:0], d, Options{}); err != nil {
					b.Fatal(err)
				}
				tokens += len(ids)
			}
			rates = append(rates, float64(tokens)/(testenv.CPUTime(b)-began).Seconds()/1e6)
		}
		cmd := exec.Command("node", script, readGolden().Models[name].Dir)
		cmd.Dir = dir
		rust, _ := cmd.Output()
		b.Logf("%-16s first %5.2f, then %5.2f Mtok/s; load %4d ms; %3d MiB; Rust %s", name, rates[0],
			slices.Max(rates[1:]),
			load.Milliseconds(), int64(after.HeapAlloc-before.HeapAlloc)>>20, strings.TrimSpace(string(rust)))
	}
}

// BenchmarkConversationFigures prints the time of one turn for published models. It measures a turn that is encoded
// without a cache, and a turn that is encoded through the turn cache.
func BenchmarkConversationFigures(b *testing.B) {
	b.ReportMetric(0, "ns/op") // the figures are in the log, and -v prints the whole log
	for name, marks := range map[string][2]string{"qwen3": {"<|im_start|>user\n", "<|im_end|>\n"},
		"llama3_1": {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
		"gemma3":   {"<start_of_turn>user\n", "<end_of_turn>\n"}, "deepseek_v3": {"<｜User｜>", "<｜end▁of▁sentence｜>"},
		"gptoss": {"<|start|>user<|message|>", "<|end|>"}, "mistral_nemo": {"[INST]", "[/INST]"}} {
		tok, dir := loadGolden(b, name)
		docs := corpus(b, dir, "mixed")
		r := rand.New(rand.NewPCG(3, 3))
		r.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
		for _, size := range []int{1000, 8000, 32000, 100000, 128000} {
			var text strings.Builder
			var ids []block.Token
			for _, d := range docs {
				text.WriteString(marks[0] + d + marks[1])
				if text.Len() < 2*size {
					continue
				}
				if ids, _ = tok.Append(ids[:0], text.String(), Options{}); len(ids) >= size {
					break
				}
			}
			before := text.String()
			for at, n := 0, 0; n < 600; at++ {
				d := docs[len(docs)-1-at]
				d = d[:min(len(d), 1500)]
				for len(d) > 0 && d[len(d)-1] >= 0x80 {
					d = d[:len(d)-1]
				}
				text.WriteString(marks[0] + d + marks[1])
				more, _ := tok.Append(nil, marks[0]+d+marks[1], Options{})
				n += len(more)
			}
			after := text.String()
			var cold, warm time.Duration = time.Hour, time.Hour
			var reuse Reuse
			for range 25 {
				began := time.Now()
				ids, _ = tok.Append(ids[:0], after, Options{})
				cold = min(cold, time.Since(began))
				turns := NewTurnCache(tok, 0)
				if _, _, err := turns.Append(ids[:0], before, Options{}); err != nil {
					b.Fatal(err)
				}
				began = time.Now()
				ids, reuse, _ = turns.Append(ids[:0], after, Options{})
				warm = min(warm, time.Since(began))
			}
			b.Logf("%-12s %6d tokens: cold %6d µs, growing %4d µs (%4.1f %%), %d ids new or encoded again", name,
				len(ids), cold.Microseconds(), warm.Microseconds(),
				100*float64(warm)/float64(cold), len(ids)-reuse.Known.Tokens)
		}
	}
}

// BenchmarkHostileFigures prints the CPU time for encoding a word of 10 MiB, for each kind of model.
func BenchmarkHostileFigures(b *testing.B) {
	b.ReportMetric(0, "ns/op") // the figures are in the log, and -v prints the whole log
	r := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 10<<20)
	for i := range random {
		random[i] = byte('a' + r.IntN(26))
	}
	texts := map[string]string{"one letter": strings.Repeat("a", 10<<20), "letters": string(random),
		"spaces": strings.Repeat(" ", 10<<20), "digits": strings.Repeat("7", 10<<20)}
	for _, name := range []string{"llama3_1", "qwen3", "gemma3", "llama2", "bert", "mon"} {
		tok, _ := loadGolden(b, name)
		for _, what := range []string{"one letter", "letters", "spaces", "digits"} {
			began := testenv.CPUTime(b)
			ids, err := tok.Append(nil, texts[what], Options{})
			b.Logf("%-9s 10 MB of %-10s %5d ms, %8d ids, error %v", name, what, (testenv.CPUTime(b) - began).Milliseconds(),
				len(ids), err)
		}
	}
}
