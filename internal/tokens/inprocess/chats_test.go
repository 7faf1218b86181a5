//go:build linux

package inprocess

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/test/testenv"
)

// BenchmarkChatFigures prints how long requests wait for their ids, and how much of this time is processor time. It
// plays 40 conversations of 5 turns with 4 system prompts of 4,000 tokens, from 6 clients, with the files of the model
// in test/engines. It runs three times: alone, then together with two other processes that only compute, and then with
// eight such processes, because the first two still run. The wait minus the processor time is the time that the
// operating system gave to other processes.
func BenchmarkChatFigures(b *testing.B) {
	b.ReportMetric(0, "ns/op") // the figures are in the log, and -v prints the whole log
	dir := testenv.Installed(b, "engines/vllm/tiny-llama", "make test-engines")
	for _, beside := range []int{0, 2, 6} {
		for range beside {
			burner := exec.Command("sh", "-c", "while :; do :; done")
			if err := burner.Start(); err != nil {
				b.Fatal(err)
			}
			defer func() { _ = burner.Process.Kill(); _ = burner.Wait() }()
		}
		models, err := Open([]Path{{Path: dir}})
		if err != nil {
			b.Fatal(err)
		}
		all := playChats(b, models)
		for _, kind := range []string{"new system prompt", "new conversation", "growing conversation", ""} {
			var wall, cpu []time.Duration
			for _, c := range all {
				if kind == "" || c.kind == kind {
					wall, cpu = append(wall, c.wall), append(cpu, c.cpu)
				}
			}
			slices.Sort(wall)
			within := 0
			for within < len(wall) && wall[within] <= time.Millisecond {
				within++
			}
			b.Logf("%d beside, %-20s %4d requests: waited %s, %.1f %% within 1 ms; processor %s", beside, named(kind),
				len(wall), spread(wall), 100*float64(within)/float64(len(wall)), spread(cpu))
		}
	}
}

func named(kind string) string {
	if kind == "" {
		return "all"
	}
	return kind
}

func spread(d []time.Duration) string {
	slices.Sort(d)
	at := func(q float64) float64 { return d[min(len(d)-1, int(q*float64(len(d))))].Seconds() * 1e3 }
	return fmt.Sprintf("p50 %.3f p90 %.3f p99 %.3f max %.3f ms", at(.5), at(.9), at(.99), at(1))
}

// timed is one request's wait for its ids: the elapsed time and the processor time.
type timed struct {
	kind      string
	wall, cpu time.Duration
}

// playChats plays the conversations through a token source. All clients begin at the same time.
func playChats(t testing.TB, models *Models) (all []timed) {
	const clients, talks, turns, systems = 6, 40, 5, 4
	source := tokens.New(tokens.DefaultConfig(), nil)
	source.Local = NewFinder(FinderParts{Given: models})
	defer source.Close()
	system := make([]string, systems)
	r := rand.New(rand.NewPCG(1, 1))
	for i := range system {
		system[i] = prose(r, 4000)
	}
	var mu sync.Mutex
	seen := map[int]bool{}
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			runtime.LockOSThread() // the kernel counts processor time by thread
			defer runtime.UnlockOSThread()
			r := rand.New(rand.NewPCG(2, uint64(client)))
			type message struct {
				Role    string `json:"role"`
				Content string `json:"content"`
			}
			history := map[int][]message{}
			var order []int
			for talk := client; talk < talks; talk += clients {
				history[talk] = []message{{"system", system[talk%systems]}}
				for range turns {
					order = append(order, talk)
				}
			}
			r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			for _, talk := range order {
				kind := "growing conversation"
				if len(history[talk]) == 1 {
					kind = "new conversation"
					mu.Lock()
					if !seen[talk%systems] {
						kind = "new system prompt"
					}
					seen[talk%systems] = true
					mu.Unlock()
				}
				history[talk] = append(history[talk], message{"user", prose(r, 655-200+r.IntN(400))})
				body, err := json.Marshal(map[string]any{"model": "tiny", "messages": history[talk], "max_tokens": 32,
					"stream": true})
				if err != nil {
					t.Error(err)
					return
				}
				// This pause stands for the time in which an engine computes the answer.
				<-time.After(time.Duration(20+r.IntN(40)) * time.Millisecond)
				var read api.Request
				if err := api.Read(api.OpenAIChat, body, &read); err != nil {
					t.Error(err)
					return
				}
				began, used := time.Now(), threadTime()
				found := source.Find(t.Context(), tokens.Prompt{Request: &read, Model: "tiny"}, nil)
				took := timed{kind: kind, wall: time.Since(began), cpu: threadTime() - used}
				if found.Outcome != tokens.InProcess {
					t.Errorf("outcome %s", found.Outcome)
				}
				mu.Lock()
				all = append(all, took)
				mu.Unlock()
				history[talk] = append(history[talk], message{"assistant", prose(r, 32)})
			}
		})
	}
	wg.Wait()
	return all
}

// prose returns a text of about this many tokens of the tiny model.
func prose(r *rand.Rand, tokens int) string {
	words := strings.Fields(`able about access action add after again all allow also always and any apply array ask attention auto back base batch
		before begin below best between block body book both build but by cache call can case cause change check class clean clear close code come
		common compute config contain content context control copy core correct cost count cover create current data date day decode default`)
	var b strings.Builder
	for range int(float64(tokens) / 1.363) {
		b.WriteString(words[r.IntN(len(words))])
		b.WriteByte(' ')
	}
	return strings.TrimSpace(b.String())
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	const thread = 3 // CLOCK_THREAD_CPUTIME_ID
	var ts syscall.Timespec
	if _, _, e := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, thread, uintptr(unsafe.Pointer(&ts)), 0); e != 0 {
		return 0
	}
	return time.Duration(ts.Nano())
}
