package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	modelled "github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/loadgen"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/workload"
)

// fitted has measurements of the engines, which the simulator uses.
type fitted struct {
	Engine string `json:"engine"`
	Time   string `json:"time"`
	// Profile is an engine profile in the form that `warmpath sim --profile` reads.
	Profile json.RawMessage `json:"profile"`
	// Frontend is the work of the engine's API server, in milliseconds of processor time. It is not in Profile, because a
	// profile has only the times of passes.
	Frontend struct {
		Request float64 `json:"request_ms"`
		Token   float64 `json:"token_ms"`
		Pass    float64 `json:"pass_ms"`
		Output  float64 `json:"output_ms"`
		End     float64 `json:"end_ms"`
	} `json:"frontend"`
	// Hop is the part of a chat's time on an idle engine that neither passes nor the API server's work explain, in
	// milliseconds.
	Hop     float64            `json:"hop_ms"`
	Quality []loadgen.Residual `json:"quality"`
}

// frontend returns the settings of the simulator's model of the API server, which shares cores with the engine.
func (f *fitted) frontend() sim.Frontend {
	front := &f.Frontend
	return sim.Frontend{Request: lasting(front.Request), Token: lasting(front.Token), Pass: lasting(front.Pass), Output: lasting(front.Output), End: lasting(front.End), Shared: true}
}

// lasting converts a number of milliseconds to a Duration.
func lasting(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// fitAll starts two engines and fits a profile to them. It measures both at the same time, because both work at the
// same time in a run.
func fitAll(ctx context.Context, args []string) error {
	b, f := benchFlags("fit")
	kindName := f.String("engine", "vllm", "vllm or sglang")
	out := f.String("profile", "engines-profile.json", "file for the profile")
	if err := f.Parse(args); err != nil {
		return err
	}
	b.kind = kind(*kindName)
	if err := b.open(); err != nil {
		return err
	}
	defer b.stop()
	if err := b.raise(ctx, false); err != nil {
		return err
	}
	return b.fit(ctx, *out)
}

// fit measures the running engines and writes the result to path.
func (b *bench) fit(ctx context.Context, path string) error {
	points := make([][]loadgen.Point, len(b.running))
	errs := make([]error, len(b.running))
	var group sync.WaitGroup
	for i, e := range b.running {
		group.Go(func() {
			l := loadgen.DefaultLadder()
			// 16 requests of 4,096 tokens would fill the cache.
			l.Sequences, l.Contexts = []int{1, 2, 4, 8, 12}, []int{512, 4096}
			l.Nonce = uint64(i+1) << 40
			cfg := loadgen.DefaultConfig()
			cfg.Targets, cfg.Model, cfg.Vocabulary = []loadgen.Target{{URL: e.url}}, model, 4000
			points[i], errs[i] = l.Climb(ctx, cfg)
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fit := fitted{Engine: string(b.kind), Time: time.Now().UTC().Format(time.RFC3339)}
	line, overhead, quality, err := loadgen.FitPoints(slices.Concat(points...), batchTokens)
	if err != nil {
		return err
	}
	fit.Quality = quality.Errors
	p := modelled.Profiles()[0]
	p.Name, p.About = string(b.kind)+"-cpu", "tiny random Llama on a CPU, two engines at work on two cores"
	p.Source = fmt.Sprintf("fitted to ladders on two engines at once on %s", fit.Time)
	p.KVTokens, p.BlockSize, p.MaxModelLen, p.MaxBatchTokens, p.MaxSequences = cacheTokens, blockSize, 32768, batchTokens, 16
	p.Timing = line
	if fit.Profile, err = p.JSON(); err != nil {
		return err
	}
	if err := fit.chats(ctx, b.running[0], line); err != nil {
		return err
	}
	say("fitted: %+v, %.1f ms a request with token ids; API server %+v ms, hop %.1f ms", line, overhead, fit.Frontend, fit.Hop)
	data, err := json.MarshalIndent(fit, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

const (
	cacheTokens = 65536 // size of the KV cache in tokens, as set by serve.sh (KVBYTES) and serve_sglang.sh (--max-total-tokens)
	batchTokens = 2048  // vLLM's default of max_num_batched_tokens for a server on a CPU
)

// chatCost is the cost of chats whose prompt is cached.
type chatCost struct {
	cpu    float64         // processor time for each chat in milliseconds, without the process that makes the passes
	firsts []time.Duration // times to the first token
}

// chats measures chats whose prompts are cached, and computes the work of the API server from them. It measures short
// and long prompts, short and long answers, and one client and several clients.
func (f *fitted) chats(ctx context.Context, e *engine, line modelled.Linear) error {
	const short, long, few, many, several = 1000, 8000, 2, 66, 8
	var err error
	cost := func(prompt, output, clients int) (c chatCost) {
		if err == nil {
			c, err = playCached(ctx, e, prompt, output, clients)
		}
		return c
	}
	base, longPrompt, longAnswer, parallel := cost(short, few, 1), cost(long, few, 1), cost(short, many, 1), cost(short, many, several)
	if err != nil {
		return err
	}
	front := &f.Frontend
	front.Token = max(0, (longPrompt.cpu-base.cpu)/(long-short))
	// alone is the cost of one token of an answer with one client: Pass + Output.
	alone := (longAnswer.cpu - base.cpu) / (many - few)
	// together is the cost of one token of an answer with several clients: Pass/several + Output.
	together := (parallel.cpu - base.cpu) / (many - few)
	front.Pass = max(0, (alone-together)*several/(several-1))
	front.Output = max(0, alone-front.Pass)
	front.Request = max(0, base.cpu-short*front.Token-few*(front.Pass+front.Output))
	pass := line.Base + line.Sequence + (line.Token+line.Attention*short)*blockSize/2
	f.Hop = spreadOf(base.firsts).P50 - front.Request - short*front.Token - front.Pass - front.Output - pass
	if f.Hop < 0 { // the API server does a part of its work after the first token
		front.End = min(-f.Hop, front.Request)
		front.Request -= front.End
		f.Hop = 0
	}
	return nil
}

// playCached plays one cached prompt of the given number of tokens with several clients at the same time.
func playCached(ctx context.Context, e *engine, prompt, output, clients int) (c chatCost, err error) {
	const chats = 24
	client, text := newClient(e.url, model), newWriter(1, "fit", prompt).text(prompt)
	ask := func() (answer, error) { return client.chat(ctx, []message{{"user", text}}, output) }
	if _, err := ask(); err != nil { // the engine computes the prompt for this request, and has it cached for later requests
		return c, err
	}
	before := frontTicks(e.pgid)
	var group sync.WaitGroup
	var mu sync.Mutex
	for range clients {
		group.Go(func() {
			for range chats / clients {
				a, failed := ask()
				mu.Lock()
				err = cmp.Or(err, failed)
				c.firsts = append(c.firsts, a.first)
				mu.Unlock()
			}
		})
	}
	group.Wait()
	c.cpu = float64(frontTicks(e.pgid)-before) * 1000 / hertz / chats
	return c, err
}

// likeness maps a router to the policy in the simulator that behaves like the router.
var likeness = map[string]string{"nginx": "round_robin", "smg": "cache_aware", "warmpath": "marginal"}

// played is the simulator's result for a set.
type played struct {
	hits, mean, p50 float64
}

// imitate plays a round of a set on modelled engines. ok is false if the simulator cannot play the set, for example
// because it has a restart.
func imitate(fit *fitted, s set, router string, round int, scale float64, seed uint64, answer float64) (out played, ok bool, err error) {
	policy, known := likeness[router]
	// For an engine with ranks, the simulator's cache_aware is not like SMG: in the measurements SMG had only the hits of
	// round robin there, although its policy chooses ranks.
	dpAware := s.ranks && router == "smg"
	if !known || s.event != nothing || s.work == nil || dpAware {
		return out, false, nil
	}
	p, err := modelled.ReadProfile(fit.Profile)
	if err != nil {
		return out, false, err
	}
	w := asWorkload(scaled(s.work, scale).plan(newWriter(seed, workName(s), round), s.clients), answer)
	cfg := sim.Config{Workload: w, Seed: seed, Routers: max(1, s.replicas), Groups: []sim.Group{{Count: 2, Profile: p, Frontend: fit.frontend()}},
		Hop: lasting(fit.Hop / 2)}
	if s.ranks {
		cfg.Groups[0].Count, cfg.Groups[0].Ranks, cfg.Groups[0].Declared = 1, 2, 2
	}
	if cfg.Policy, err = sim.ParsePolicy(policy); err != nil {
		return out, false, err
	}
	run, err := sim.Run(context.Background(), cfg, nil)
	if err != nil {
		return out, false, err
	}
	if run.Requests.Answered != len(w.Requests) {
		return out, false, fmt.Errorf("laboratory: %s: %d of %d requests were answered", s.name, run.Requests.Answered, len(w.Requests))
	}
	return played{hits: 100 * run.HitRate, mean: run.TTFT.Mean, p50: run.TTFT.P50}, true, nil
}

// asWorkload returns a plan as a workload for the simulator: each step of a client follows the client's step before it.
// The prompt of the next turn contains the answer's text, but not the generated token ids: the tokenizer splits the
// text of a random model into other tokens than the model has generated. (With a real model this is rare.) The
// parameter answer is the number of these tokens for each generated token.
func asWorkload(p plan, answer float64) *workload.Workload {
	const perMessage = 5 // number of tokens that the template adds to a message
	w := &workload.Workload{Name: "engines", Source: "bench/engines"}
	last := make([]int, len(p))
	talks := map[int][]workload.Segment{}
	turns := map[int]int{}
	for i := range slices.MaxFunc(p, func(a, b []step) int { return len(a) - len(b) }) {
		for c, lane := range p {
			if i >= len(lane) {
				continue
			}
			s := lane[i]
			segments := talks[s.talk]
			for _, m := range s.adds {
				n := int(math.Round(float64(strings.Count(m.Content, " ")+1)*wordTokens)) + perMessage
				segments = append(segments, workload.Segment{ID: contentID(m.Content), Tokens: n})
			}
			r := workload.Request{ID: len(w.Requests), Session: s.talk, Turn: turns[s.talk], After: -1, Think: s.pause, Output: s.output, Segments: segments}
			if i > 0 {
				r.After = last[c]
			}
			for _, seg := range segments {
				r.Input += seg.Tokens
			}
			last[c] = r.ID
			w.Requests = append(w.Requests, r)
			turns[s.talk]++
			repeated := workload.Segment{ID: contentID(fmt.Sprint("answer ", s.talk, " ", turns[s.talk])), Tokens: int(answer*float64(s.output)) + perMessage}
			talks[s.talk] = append(slices.Clip(segments), repeated)
		}
	}
	return w
}

// contentID returns the id of a workload segment with this text. The id is never 0.
func contentID(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64() | 1
}

// readFitted reads the file that fit wrote. It returns nil without an error if the file does not exist.
func readFitted(path string) (*fitted, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var f fitted
	d := json.NewDecoder(bytes.NewReader(data))
	// Without this check, a file of another version would give the API server a cost of 0.
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%s: %w; `run.sh fit` measures it anew", path, err)
	}
	return &f, nil
}

// answerFactor returns how many tokens of the next turn's prompt stand for one generated token of an answer. It
// computes the factor from the lengths of the prompts.
func answerFactor(r *result, s set) float64 {
	inputs := func(factor float64) (sum float64) {
		w := asWorkload(scaled(s.work, r.Scale).plan(newWriter(r.Seed, workName(s), r.Round), s.clients), factor)
		for i := range w.Requests {
			sum += float64(w.Requests[i].Input)
		}
		return sum
	}
	none := inputs(0)
	if one := inputs(1) - none; one > 0 && r.Prompt > 0 {
		return max(0, (float64(r.Prompt)-none)/one)
	}
	return 0
}

// beside writes the simulator's figures next to the measured figures of the same work.
func (f *fitted) beside(b *strings.Builder, all []section) error {
	var p struct {
		Linear modelled.Linear `json:"linear"`
	}
	if err := json.Unmarshal(f.Profile, &p); err != nil {
		return err
	}
	fmt.Fprintf(b, "\n## The laboratory beside it\n\n"+
		"`warmpath sim` plays the same requests on its engine model (the laboratory). The profile was fitted to these engines\n"+
		"while both worked (%s, `bash bench/engines/run.sh fit`):\n"+
		"\n"+
		"- An engine step takes %.2f ms, and in addition %.4f ms for each prompt token, %.2g ms for each pair of a prompt token and\n"+
		"  a token before it, %.2f ms for each sequence, and %.2g ms for each token of a sequence's context.\n"+
		"- An engine's API server shares one core with the engine steps. It works %.1f ms for each chat, %.4f ms for each prompt\n"+
		"  token, %.2f ms for each engine step, %.2f ms for each token of an answer, and %.1f ms at the end of an answer.\n"+
		"- On an idle engine a request takes %.1f ms in addition to these times.\n"+
		"\n"+
		"The laboratory models no time of routers and clients. So the mean of this time is subtracted from the measured times to\n"+
		"the first token. Each cell has two medians of the rounds: measured / laboratory. If they are more than 15 %% apart, they\n"+
		"are **bold**. Restarts are not modelled. SMG with two ranks is left out: it has the hits of round robin there, but the\n"+
		"laboratory's `cache_aware` would have more.\n\n",
		f.Time, p.Linear.Base, p.Linear.Token, p.Linear.Attention, p.Linear.Sequence, p.Linear.Context,
		f.Frontend.Request, f.Frontend.Token, f.Frontend.Pass, f.Frontend.Output, f.Frontend.End, f.Hop)
	b.WriteString("| set | router (laboratory's policy) | hits, % | first token: mean, ms | p50, ms |\n|---|---|---|---|---|\n")
	for _, s := range all {
		if s.engine != f.Engine {
			continue
		}
		for _, k := range routers {
			var hits, mean, p50, labHits, labMean, labP50 []float64
			for _, round := range s.rounds {
				r := s.by[k.name][round]
				if r == nil {
					continue
				}
				lab, ok, err := imitate(f, s.set, k.name, round, s.scale, r.Seed, answerFactor(r, s.set))
				if err != nil {
					return err
				}
				if !ok {
					continue
				}
				way := r.way()
				hits, mean, p50 = append(hits, r.hits()), append(mean, r.First.Mean-way), append(p50, r.First.P50-way)
				labHits, labMean, labP50 = append(labHits, lab.hits), append(labMean, lab.mean), append(labP50, lab.p50)
			}
			if len(hits) == 0 {
				continue
			}
			fmt.Fprintf(b, "| %s | %s (`%s`) | %s | %s | %s |\n", s.title(), k.name, likeness[k.name],
				pair("%.1f", hits, labHits), pair("%.0f", mean, labMean), pair("%.0f", p50, labP50))
		}
	}
	return nil
}

// pair returns the medians of the measured figures and of the simulator's figures as text. The text is bold when the
// two medians differ by more than 15 %.
func pair(format string, measured, lab []float64) string {
	m, l := median(measured), median(lab)
	text := fmt.Sprintf(format+" / "+format, m, l)
	if m <= 0 || math.Abs(l/m-1) > .15 {
		return "**" + text + "**"
	}
	return text
}

// median returns the median of at least one figure.
func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
