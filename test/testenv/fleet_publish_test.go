//go:build unix

package testenv_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// ownEngine is one of the example engines of the publisher library, as a process.
type ownEngine struct {
	*testenv.Process
	url, events, replay string
	again               func() *testenv.Process
}

// limits are the bounds of an example engine's cache and publisher: they are small, so that the test exceeds them.
const (
	ownBlocks = 256
	ownSteps  = 1 << 20 // a replay has every message of the test
	ownQueue  = 2       // messages that wait for the thread in Python and C
	ownHWM    = 20      // messages that wait for one subscriber
)

// ownEngines has, for each language, the command of the example engine with the given port and endpoints.
var ownEngines = map[string]func(t *testing.T, port int, events, replay string) []string{
	"Go": func(t *testing.T, port int, events, replay string) []string {
		binary := filepath.Join(t.TempDir(), "engine")
		built(t, "go", "build", "-C", "../../examples", "-o", binary, "./publish")
		return []string{binary, "-listen", fmt.Sprintf("127.0.0.1:%d", port), "-events", events, "-replay", replay,
			"-blocks", fmt.Sprint(ownBlocks), "-buffer-steps", fmt.Sprint(ownSteps), "-hwm", fmt.Sprint(ownHWM)}
	},
	"Python": func(t *testing.T, port int, events, replay string) []string {
		python := testenv.Installed(t, "publish/venv/bin/python", "make interop test-fleet")
		return []string{"env", "PYTHONPATH=../../publish/python/src", "PYTHONDONTWRITEBYTECODE=1", python, "../../publish/examples/engine.py",
			"--listen", fmt.Sprintf("127.0.0.1:%d", port), "--events", events, "--replay", replay, "--blocks", fmt.Sprint(ownBlocks),
			"--buffer-steps", fmt.Sprint(ownSteps), "--queue", fmt.Sprint(ownQueue), "--hwm", fmt.Sprint(ownHWM)}
	},
	"C": func(t *testing.T, port int, events, replay string) []string {
		if exec.Command("gcc", "--version").Run() != nil || exec.Command("pkg-config", "--exists", "libzmq").Run() != nil {
			testenv.Missing(t, "gcc and Debian's libzmq3-dev", "make interop test-fleet")
		}
		binary := filepath.Join(t.TempDir(), "engine")
		sources, err := filepath.Glob("../../publish/c/src/*.c")
		if err != nil || len(sources) == 0 {
			t.Fatalf("sources of the C library: %q, %v", sources, err)
		}
		built(t, "gcc", slices.Concat([]string{"-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror",
			"-I../../publish/c/include", "-o", binary, "../../publish/examples/engine.c"}, sources, []string{"-lzmq", "-pthread"})...)
		return []string{binary, fmt.Sprint(port), events, replay, fmt.Sprint(ownBlocks), fmt.Sprint(ownSteps), fmt.Sprint(ownQueue), fmt.Sprint(ownHWM)}
	},
}

func built(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

func startOwnEngine(t *testing.T, language string) *ownEngine {
	t.Helper()
	port, publishing := testenv.FreePort(t), testenv.FreePort(t)
	e := &ownEngine{url: fmt.Sprintf("http://127.0.0.1:%d", port), events: fmt.Sprintf("tcp://127.0.0.1:%d", publishing),
		replay: fmt.Sprintf("tcp://127.0.0.1:%d", publishing+1)}
	command := ownEngines[language](t, port, e.events, e.replay)
	e.again = func() *testenv.Process {
		p := testenv.Start(t, "the engine in "+language, command[0], command[1:]...)
		testenv.Until(t, "the engine answers", func() bool {
			if p.Exited() {
				t.Fatalf("the engine ended: %s", p.Log())
			}
			return testenv.Reachable(e.url+"/health") == nil
		})
		return p
	}
	e.Process = e.again()
	return e
}

// flood makes the engine compute many random prompts without the router.
func (e *ownEngine) flood(t *testing.T, prompts int) {
	t.Helper()
	resp, err := http.Post(fmt.Sprintf("%s/flood?prompts=%d", e.url, prompts), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("/flood answered %d", resp.StatusCode)
	}
}

func (e *ownEngine) published(t *testing.T) (published, dropped uint64) {
	t.Helper()
	var counts struct{ Published, Dropped uint64 }
	testenv.JSON(t, e.url+"/published", &counts)
	return counts.Published, counts.Dropped
}

// known waits until the router has every event of the engine and trusts what it knows.
func (e *ownEngine) known(t *testing.T, f *mockFleet) {
	t.Helper()
	testenv.WaitFor(t, time.Minute, "the router to know the engine's cache", func() error {
		published, _ := e.published(t)
		workers := f.state(t).Workers
		if len(workers) == 0 || len(workers[0].Holders) == 0 {
			return errors.New("no holder")
		}
		h := workers[0].Holders[0]
		if h.Trust != "exact" || h.LastSequence+1 != published && (published != 0 || h.LastSequence != 0) {
			return fmt.Errorf("trust %s (%s), at %d of %d", h.Trust, h.Why, h.LastSequence, published)
		}
		return nil
	})
}

// complete sends a prompt through the router, and returns what the router predicted and what the engine had cached.
func (f *mockFleet) complete(t *testing.T, prompt []int) answer {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": "toy", "prompt": prompt, "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(f.URL+"/v1/completions", "application/json", strings.NewReader(string(body)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, err, data)
	}
	a := answer{status: resp.StatusCode, trust: resp.Header.Get("X-Warmpath-Trust")}
	a.read(data)
	if _, err := fmt.Sscan(resp.Header.Get("X-Warmpath-Match"), &a.match); err != nil {
		t.Fatalf("X-Warmpath-Match: %v", err)
	}
	return a
}

// agree sends prompts with shared beginnings. Each prediction of the router must be what the engine had cached. The
// last prompt is cached as a whole: its last block does not count, because an engine computes the last token.
func (e *ownEngine) agree(t *testing.T, f *mockFleet, random *rand.Rand, history *[][]int) (hits int) {
	t.Helper()
	for range 15 {
		var prompt []int
		if n := len(*history); n > 0 && random.IntN(4) > 0 {
			old := (*history)[random.IntN(n)]
			prompt = append(prompt, old[:random.IntN(len(old)+1)]...)
		}
		for range 16 + random.IntN(200) {
			prompt = append(prompt, random.IntN(50_000))
		}
		*history = append(*history, prompt)
		e.known(t, f)
		a := f.complete(t, prompt)
		if a.match != a.cached || a.trust != "exact" {
			t.Errorf("predicted %d of %d tokens with trust %s, the engine had %d", a.match, len(prompt), a.trust, a.cached)
		}
		hits += min(a.cached, 1)
	}
	last := (*history)[len(*history)-1]
	whole := last[:len(last)-len(last)%16]
	e.known(t, f)
	if a := f.complete(t, whole); a.match != len(whole)-16 || a.cached != a.match {
		t.Errorf("of %d cached tokens the router predicted %d, and the engine reports %d", len(whole), a.match, a.cached)
	}
	return hits
}

// TestEnginesOfOnesOwnAreKnownExactly follows the example engines of the publisher library: through floods of events
// that exceed the publisher's queue, with a router that is stopped and so reads too slowly, and over a restart of the
// engine and of the router.
func TestEnginesOfOnesOwnAreKnownExactly(t *testing.T) {
	testenv.Binary(t)
	for language := range ownEngines {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			e := startOwnEngine(t, language)
			e.flood(t, 1500) // the router has this history by replay only, and libzmq's default loses such a replay
			args := []string{"--worker", e.url + ",events=" + e.events + ",replay=" + e.replay}
			f := &mockFleet{Gateway: testenv.Serve(t, args...)}
			f.Ready(t)
			random, history := rand.New(rand.NewPCG(1, 2)), [][]int(nil)
			if hits := e.agree(t, f, random, &history); hits == 0 {
				t.Error("no prompt was found in the cache")
			}

			e.flood(t, 300)
			e.agree(t, f, random, &history)

			f.Signal(syscall.SIGSTOP)
			e.flood(t, 3000)
			f.Signal(syscall.SIGCONT)
			e.agree(t, f, random, &history)
			published, dropped := e.published(t)
			if published < 4800 || dropped == 0 && language != "Go" { // in Go there is no thread between the caller and the sockets
				t.Errorf("%d messages published, %d dropped: the queue was never full", published, dropped)
			}
			t.Logf("%d of %d messages dropped", dropped, published)

			e.Stop(syscall.SIGKILL)
			e.Process = e.again()
			e.agree(t, f, random, &history)

			f.Stop(syscall.SIGKILL)
			f.Gateway = testenv.Serve(t, args...)
			f.Ready(t)
			e.agree(t, f, random, &history)
		})
	}
}
