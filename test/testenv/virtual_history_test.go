package testenv_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
)

// history describes one run: the configuration and the steps. A seed determines both. Runs of the same history differ
// only in the decisions of Go's scheduler and in random choices (select statements, order of maps, the router's
// jitter).
type history struct {
	Setup setup
	Steps []step
}

// setup is the configuration of the router and the engines.
type setup struct {
	Seed           uint64
	Engines        []engineSetup
	Policy         string
	Shadow         string        `json:",omitempty"`
	Queue          string        // queue.order
	MaxRequests    int           // routing.max_requests
	IndexBytes     int64         // index.bytes
	Attempts       int           // gateway.attempts
	RequestTimeout time.Duration // gateway.request_timeout
	DrainDelay     time.Duration `json:",omitempty"` // gateway.drain_delay
	DrainTimeout   time.Duration // gateway.drain_timeout
	StreamIdle     time.Duration // proxy.stream_idle_timeout
	Reports        time.Duration // reports.interval
	Tokens         time.Duration // tokens.budget
	StopBusy       bool          // true: stop the router while requests are under way
}

// engineSetup is the configuration of one worker.
type engineSetup struct {
	Kind         mockengine.Kind
	Wire         string `json:",omitempty"`
	Ranks        int
	BlockSize    int
	Blocks       int
	CPUBlocks    int  `json:",omitempty"`
	Placeholders bool `json:",omitempty"`
	BufferSteps  int
	NoReplay     bool    `json:",omitempty"`
	NoEvents     bool    `json:",omitempty"`
	Hidden       bool    `json:",omitempty"` // true: the engine does not report the addresses of its events
	ScaleOut     bool    `json:",omitempty"`
	Speed        float64 // factor by which the engine is faster than the modelled hardware
	Model        string
	MaxSequences int
}

// step is one event of a history. The kind Do determines what the other fields mean: see world.play. Steps do not
// depend on each other, so any step can be removed.
type step struct {
	Do     string
	Worker int           `json:",omitempty"` // index of the worker, modulo the number of workers
	N      int           `json:",omitempty"`
	For    time.Duration `json:",omitempty"`
	Seed   uint64        `json:",omitempty"`
	How    string        `json:",omitempty"`
}

// String returns the step's line in a history file.
func (s step) String() string { return line(s) }

func line(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// String returns the history as a file: the setup, then one line for each step.
func (h history) String() string {
	var b strings.Builder
	fmt.Fprintln(&b, line(h.Setup))
	for _, s := range h.Steps {
		fmt.Fprintln(&b, s)
	}
	return b.String()
}

// parse reads a history that String wrote.
func parse(text string) (h history, err error) {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if err := json.Unmarshal([]byte(lines[0]), &h.Setup); err != nil {
		return h, fmt.Errorf("read the setup: %w", err)
	}
	for i, l := range lines[1:] {
		var s step
		if err := json.Unmarshal([]byte(l), &s); err != nil {
			return h, fmt.Errorf("read step %d: %w", i, err)
		}
		h.Steps = append(h.Steps, s)
	}
	return h, nil
}

// draw draws a history. The same arguments always give the same history.
func draw(seed uint64, steps int) history {
	d := dice{rand.New(rand.NewPCG(seed, 0x7669727475616c))}
	h := history{Setup: d.setup(seed)}
	for i := range steps {
		if i > 0 && i%10 == 0 {
			h.Steps = append(h.Steps, d.pause())
		}
		h.Steps = append(h.Steps, d.step())
	}
	return h
}

// pause draws a step that ends all faults: a calm, or a trial, which begins with a calm.
func (d dice) pause() step {
	if d.chance(3) {
		return step{Do: "trial", How: oneOf(d, trials...), N: 2 + d.IntN(4), Worker: d.IntN(5), Seed: d.Uint64N(1 << 20)}
	}
	return step{Do: "calm"}
}

// dice makes the random choices of a history.
type dice struct{ *rand.Rand }

func oneOf[T any](d dice, choices ...T) T { return choices[d.IntN(len(choices))] }

// chance returns true once in n times on average.
func (d dice) chance(n int) bool { return d.IntN(n) == 0 }

func (d dice) setup(seed uint64) setup {
	s := setup{
		Seed: seed,
		Policy: oneOf(d, "marginal", "marginal", "marginal", "kv_aware", "kv_aware", "least_load", "round_robin", "power_of_two", "kv",
			"precise_prefix_cache", "estimated", "cache_aware", "vllm_cache_aware", "prefix_cache_affinity", "consistent_hash"),
		Queue:          oneOf(d, "off", "off", "fcfs", "fair", "shortest", "priority", "deadline"),
		MaxRequests:    oneOf(d, 0, 0, 2, 8),
		IndexBytes:     oneOf[int64](d, 1<<20, 2<<20, 64<<20),
		Attempts:       oneOf(d, 1, 2, 3, 3),
		RequestTimeout: oneOf(d, 20*time.Second, 40*time.Second),
		DrainDelay:     oneOf(d, 0, 0, 3*time.Second),
		DrainTimeout:   oneOf(d, 2*time.Second, 15*time.Second),
		StreamIdle:     oneOf(d, 0, 10*time.Second),
		Reports:        oneOf(d, 0, time.Second, 5*time.Second),
		Tokens:         oneOf(d, 50*time.Millisecond, time.Second),
		StopBusy:       d.chance(2),
	}
	if d.chance(4) {
		s.Shadow = "least_load"
	}
	size := oneOf(d, 16, 16, 32)
	for range 1 + d.IntN(5) {
		e := d.engine(size)
		e.NoEvents = e.NoEvents || slices.Contains(learning, s.Policy) && d.chance(2)
		s.Engines = append(s.Engines, e)
	}
	return s
}

// learning has the policies that remember to which workers prompts were sent.
var learning = []string{"estimated", "cache_aware", "vllm_cache_aware", "prefix_cache_affinity"}

// engine draws a worker. In most cases its block size is size tokens.
func (d dice) engine(size int) engineSetup {
	e := engineSetup{
		Kind:         oneOf(d, mockengine.VLLM, mockengine.VLLM, mockengine.SGLang),
		Ranks:        oneOf(d, 1, 1, 1, 2),
		BlockSize:    size,
		Blocks:       oneOf(d, 40, 100, 400, 2000),
		BufferSteps:  oneOf(d, 20, 10000, 10000),
		NoReplay:     d.chance(5),
		NoEvents:     d.chance(10),
		Hidden:       d.chance(8),
		ScaleOut:     d.chance(3),
		Speed:        oneOf(d, 1.0, 5),
		Model:        "mock",
		MaxSequences: oneOf(d, 2, 8, 64),
	}
	if d.chance(10) {
		e.BlockSize = oneOf(d, 16, 32, 64)
	}
	if e.Kind == mockengine.SGLang {
		e.Wire = oneOf(d, "", "sglang-0.5.23")
	} else {
		e.Wire = oneOf(d, "", "vllm-0.32")
		if d.chance(4) {
			e.CPUBlocks, e.Placeholders = oneOf(d, 50, 500), d.chance(2)
		}
	}
	return e
}

// step draws a step. About two of five steps send requests.
func (d dice) step() step {
	s := step{Worker: d.IntN(5), Seed: d.Uint64N(1 << 20)}
	switch n := d.IntN(100); {
	case n < 34:
		s.Do, s.N = "ask", 1+d.IntN(6)
		s.How = oneOf(d, "ids", "ids", "ids", "text", "chat")
		s.For = oneOf(d, 0, 100*time.Millisecond, time.Second, 5*time.Second)
	case n < 42:
		s.Do, s.N = "leave", 1+d.IntN(4)
		s.How = oneOf(d, "body", "wait", "half", "slow", "deaf")
		s.For = time.Duration(d.IntN(3000)) * time.Millisecond
	case n < 52:
		s.Do, s.For = "sleep", oneOf(d, 50*time.Millisecond, time.Second, 7*time.Second, 30*time.Second)
	case n < 53:
		// All time limits of the router but one are shorter than 6 minutes. The exception is that the router keeps metrics of
		// removed workers for 15 minutes.
		s.Do, s.For = "sleep", 6*time.Minute
		if d.chance(20) {
			s.For = 20 * time.Minute
		}
	case n < 57:
		s.Do, s.How = "cut", oneOf(d, "http", "events", "all", "clients")
	case n < 60:
		s.Do, s.How = "half-close", oneOf(d, "http", "events", "all")
	case n < 63:
		s.Do, s.For = "delay", oneOf(d, 0, 20*time.Millisecond, 400*time.Millisecond, 3*time.Second)
	case n < 66:
		s.Do, s.For = "partition", oneOf(d, time.Second, 8*time.Second, 40*time.Second)
	case n < 71:
		s.Do, s.For = "restart", oneOf(d, 0, time.Second, 20*time.Second)
	case n < 73:
		s.Do = "die"
	case n < 75:
		s.Do = "kill engine"
	case n < 78:
		s.Do, s.How, s.For = "freeze", oneOf(d, "freeze", "stall"), oneOf(d, time.Second, 9*time.Second, 60*time.Second)
	case n < 80:
		s.Do = "become another"
	case n < 84:
		s.Do, s.How = "lie", oneOf(d, "429", "401", "404", "503", "html", "empty", "broken", "done", "garbage", "drip", "silent")
	case n < 86:
		s.Do, s.How = "lie in events", oneOf(d, "cycle", "orphans", "giant", "flood", "bytes")
	case n < 89:
		s.Do, s.N = "drop events", 1+d.IntN(5)
	case n < 91:
		s.Do, s.N = "faults", d.IntN(1<<6)
	case n < 93:
		s.Do = "empty cache"
	case n < 97:
		s.Do, s.How = "reload", oneOf(d, "workers", "workers", "policy", "queue", "broken")
	default:
		s.Do = "look"
	}
	return s
}
