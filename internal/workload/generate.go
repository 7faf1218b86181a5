package workload

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
)

// generator makes a workload from parameters. The parameters' defaults are published values, or our own.
type generator struct {
	about    string
	source   string   // where the defaults are published; "ours": nowhere
	defaults []string // PARAMETER=VALUE, in the order in which help shows them
	make     func(g *generation)
}

// generators has the generators by name: the spec gen:NAME uses the generator NAME.
var generators = map[string]generator{
	"llmd-ladder": {
		about:  "llm-d's precise-prefix guide: groups share a system prompt, a ladder of Poisson stages, each drained before the next",
		source: "llm-d-kv-cache benchmarking/73-capacity",
		defaults: []string{"groups=150", "prompts=5", "system=6000", "question=1200", "output=1000",
			"stages=15x50/3x20/10x20/15x20/20x38/22x34/25x30/30x25/35x21/40x38/43x36/46x33/49x30/52x29/55x27/57x26/60x25", "drain=1"},
		make: sharedPrefix,
	},
	"shared-prefix": {
		about:  "llm-d's shared_prefix_synthetic",
		source: "llm-d guides, inference-perf shared_prefix",
		defaults: []string{"groups=32", "prompts=32", "system=2048", "question=256", "output=256",
			"stages=2x50/5x50/8x50/10x50/12x50/15x50/20x50", "drain=1"},
		make: sharedPrefix,
	},
	"sglang-shared-prefix": {
		about:    "SGLang bench_serving's generated-shared-prefix, each prompt once",
		source:   "SGLang bench_serving defaults",
		defaults: []string{"groups=64", "prompts=16", "system=2048", "question=128", "output=256", "rate=16"},
		make:     sharedPrefix,
	},
	"prefix-repetition": {
		about:    "Ray Serve's PrefixRepetition: a few prefixes, each with many suffixes",
		source:   "Ray Serve prefix-aware routing benchmark (512 + 128)",
		defaults: []string{"groups=10", "prompts=100", "system=512", "question=128", "output=128", "rate=16"},
		make:     sharedPrefix,
	},
	"multi-round-qa": {
		about:    "production-stack's multi-round QA: users with a long history ask round after round",
		source:   "vLLM production-stack multi-round-qa.py",
		defaults: []string{"users=10", "rounds=5", "qps=0.5", "sessions=40", "system=1000", "history=2000", "question=20", "output=100"},
		make:     multiRoundQA,
	},
	"conversations": {
		about:    "sessions with a long context of their own; the defaults are llm-d's peer-to-peer guide",
		source:   "llm-d p2p guide: 192 conversations, 49,152 tokens, 6 turns, 256/256",
		defaults: []string{"sessions=192", "system=0", "context=49152", "turns=6", "question=256", "output=256", "think=0", "rate=4"},
		make:     conversations,
	},
	"interactive-chat": {
		about:    "chats with a shared and an own context and slow users",
		source:   "inference-perf catalogue",
		defaults: []string{"sessions=200", "system=1000", "context=4000", "turns=4", "question=50", "output=300", "think=45", "rate=2"},
		make:     conversations,
	},
	// The published contexts (median 106,700 tokens, at most 990,000) need a model with a window of a million tokens. The
	// simulator's default profile has 131,072, and its engines rejected 80 % of such requests. So the contexts have a
	// quarter of the published median, and at most 100,000 tokens. A turn adds 1,925 tokens, and some sessions would have
	// 300 turns. So a session ends when the window is full. 40 sessions keep 8 such engines busy, and they keep up: under
	// marginal 91 % to 98 % of the requests are within 5 s/100 ms (five seeds). With 48 sessions it is 68 % to 94 %.
	"code-agent": {
		about: "coding agents: a shared system prompt, a code base of lognormal size, many turns with tool pauses, until the window is full",
		source: "inference-perf code-generation (context mean 160 k), contexts of a quarter of the size; turns as in Claude Code sessions " +
			"(p50 44, p90 150)",
		defaults: []string{"sessions=40", "system=3000", "context=26700", "context-sigma=0.9", "context-min=10000", "context-max=100000", "window=131072",
			"turns=44", "turns-sigma=0.957", "question=1500", "output=425", "think=15", "rate=0.1"},
		make: conversations,
	},
	"reasoning": {
		about:    "short prompts, very long answers",
		source:   "inference-perf catalogue (250/1,000/8,000)",
		defaults: []string{"requests=300", "system=250", "question=1000", "output=8000", "rate=1"},
		make:     independent,
	},
	"independent": {
		about:    "prompts that share nothing",
		source:   "ours",
		defaults: []string{"requests=1000", "system=0", "question=1000", "output=200", "rate=10"},
		make:     independent,
	},
	"rag": {
		about:  "a system prompt, passages of skewed popularity in any order, a question",
		source: "sizes of RAGPulse (input mean 2,944, output 283); popularity ours",
		defaults: []string{"requests=2000", "system=600", "documents=8302", "zipf=1", "passages=5", "passage=450", "question=94",
			"output=283", "rate=5"},
		make: rag,
	},
	"rl-rollouts": {
		about:    "reinforcement learning: each step samples every prompt many times at once and waits for all",
		source:   "ours; group sizes as in GRPO",
		defaults: []string{"steps=4", "groups=32", "samples=16", "question=1000", "output=2000", "output-sigma=0.6", "output-max=16000"},
		make:     rollouts,
	},
	"burst": {
		about:    "bursts of one new prefix over background traffic: what speculative entries are for",
		source:   "ours",
		defaults: []string{"bursts=10", "every=20", "size=32", "spread=0.5", "system=4000", "question=100", "output=200", "background=2"},
		make:     bursts,
	},
}

// Generators returns a list of the generators: for each a name, a description, the source of its parameters, and the
// default parameters.
func Generators() [][4]string {
	var out [][4]string
	for _, name := range slices.Sorted(maps.Keys(generators)) {
		g := generators[name]
		out = append(out, [4]string{name, g.about, g.source, strings.Join(g.defaults, ",")})
	}
	return out
}

// generate makes the workload that NAME,PARAMETER=VALUE,… describes.
func generate(spec string, o Options) (*Workload, error) {
	name, rest, _ := strings.Cut(spec, ",")
	kind, ok := generators[name]
	if !ok {
		return nil, fmt.Errorf("there is no generator %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(generators)), ", "))
	}
	values := map[string]string{"seed": strconv.FormatUint(o.Seed, 10)}
	for _, d := range kind.defaults {
		key, value, _ := strings.Cut(d, "=")
		values[key] = value
	}
	for _, part := range strings.Split(rest, ",") {
		if part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		if _, known := values[key]; !ok || !known {
			return nil, fmt.Errorf("%q is not understood; %s takes %s", part, name, strings.Join(slices.Sorted(maps.Keys(values)), ", "))
		}
		values[key] = value
	}
	g := &generation{values: values, budget: cmp.Or(o.Bytes, DefaultBytes)}
	seed := g.count("seed")
	g.base = mix(xxh3.HashString(name) ^ uint64(seed))
	g.random = rand.New(rand.NewPCG(uint64(seed), xxh3.HashString(name)))
	g.w.Name = name
	g.check()
	if len(g.problems) == 0 {
		kind.make(g)
	}
	if err := errors.Join(g.problems...); err != nil {
		return nil, err
	}
	if len(g.w.Requests) == 0 {
		return nil, errors.New("these parameters make no requests")
	}
	g.w.Notes = append(g.w.Notes, fmt.Sprintf("generated: %s, seed %d", kind.source, seed))
	g.w.arrange()
	g.w.numberTurns()
	if o.Limit > 0 && len(g.w.Requests) > o.Limit {
		g.w.limit(o.Limit)
	}
	return &g.w, nil
}

// generation is one run of a generator.
type generation struct {
	w        Workload
	values   map[string]string
	random   *rand.Rand
	base     uint64 // hash of the generator's name and the seed; each pair has segment ids of its own
	last     uint64 // number of segments so far
	bytes    int64  // memory of the requests in bytes
	budget   int64  // largest allowed value of bytes
	problems []error
}

// maxRequests bounds the number of requests of one spec.
const maxRequests = 10_000_000

// full reports whether generation must stop: there are maxRequests requests, the requests exceed the memory budget, or
// a problem was found earlier. In the first two cases full adds a problem.
func (g *generation) full() bool {
	switch {
	case len(g.problems) > 0:
	case len(g.w.Requests) >= maxRequests:
		g.problems = append(g.problems, fmt.Errorf("these parameters make more than %d requests", maxRequests))
	case g.bytes > g.budget:
		g.problems = append(g.problems, fmt.Errorf("these parameters make requests that take more than %d MiB", g.budget>>20))
	default:
		return false
	}
	return true
}

// check refuses parameters that are out of range, before anything is generated.
func (g *generation) check() {
	for _, key := range slices.Sorted(maps.Keys(g.values)) {
		if key == "stages" {
			continue
		}
		if key == "rate" && g.values[key] == "inf" || key == "seed" {
			continue
		}
		v, err := strconv.ParseFloat(g.values[key], 64)
		if err != nil || !(v >= 0) || v > MaxTokens {
			g.problems = append(g.problems, fmt.Errorf("%s=%s: want a number within 0..%d", key, g.values[key], MaxTokens))
		}
	}
}

// number returns the value of a parameter. It returns +Inf for the value inf, and 0 if the generator has no such
// parameter.
func (g *generation) number(key string) float64 {
	v, _ := strconv.ParseFloat(g.values[key], 64) // no error: check has refused values that are not numbers, and an absent key gives 0
	return v
}

func (g *generation) count(key string) int {
	if key == "seed" {
		v, err := strconv.ParseUint(g.values[key], 10, 64)
		if err != nil {
			g.problems = append(g.problems, fmt.Errorf("seed=%s: want a whole number", g.values[key]))
		}
		return int(v)
	}
	return int(g.number(key))
}

// content returns a segment with a new id. tokens may be 0: prompt leaves out empty segments.
func (g *generation) content(tokens int) Segment {
	g.last++
	return Segment{ID: mix(g.base ^ g.last), Tokens: tokens}
}

// prompt returns a request with a prompt of the given segments.
func (g *generation) prompt(output int, segments ...Segment) Request {
	r := Request{ID: len(g.w.Requests), Session: -1, After: -1, Output: max(output, 1)}
	r.Segments = make([]Segment, 0, len(segments))
	g.bytes += requestBytes + 16*int64(len(segments))
	for _, s := range segments {
		if s.Tokens > 0 {
			r.Segments = append(r.Segments, s)
			r.Input += s.Tokens
		}
	}
	if r.Input == 0 || r.Input > MaxTokens {
		g.problems = append(g.problems[:0:0], fmt.Errorf("these parameters make a prompt of %d tokens", r.Input))
	}
	return r
}

// add adds a request to the workload. at is the request's arrival time, in seconds from the start.
func (g *generation) add(r Request, at float64) {
	r.Arrival = time.Duration(at * float64(time.Second))
	g.w.Requests = append(g.w.Requests, r)
}

// exponential draws the time in seconds to the next event of a Poisson process with rate events a second. If rate is
// infinite or not positive, it returns 0.
func (g *generation) exponential(rate float64) float64 {
	if math.IsInf(rate, 1) || rate <= 0 {
		return 0
	}
	return g.random.ExpFloat64() / rate
}

// lognormal draws a number from a log-normal distribution. For key "turns", the parameter turns is the median,
// turns-sigma is the sigma (0: constant), and turns-min and turns-max are the bounds (0: none). Every result is at most
// MaxTokens.
func (g *generation) lognormal(key string) int {
	v := g.number(key)
	if sigma := g.number(key + "-sigma"); sigma > 0 {
		v *= math.Exp(sigma * g.random.NormFloat64())
	}
	if limit := g.number(key + "-max"); limit > 0 {
		v = min(v, limit)
	}
	return int(min(max(v, g.number(key+"-min")), MaxTokens))
}
