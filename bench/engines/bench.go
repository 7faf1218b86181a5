package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// model is the name under which the engines serve their tiny model.
const model = "tiny"

// bench has the paths of engines and routers, and the running engines.
type bench struct {
	kind     kind
	scripts  string // folder with serve.sh and serve_sglang.sh
	engines  string // folder with the installed engines
	routers  string // folder with the installed peers (routers of other projects)
	warmpath string // path of the warmpath binary
	dir      string // folder for logs
	commit   string
	versions map[string]string
	scale    float64
	seed     uint64

	ports   int
	running []*engine
}

// result is one line of the output: the figures of one run. In a run, one set of requests is played through one router.
type result struct {
	Engine string  `json:"engine"`
	Set    string  `json:"set"`
	Work   string  `json:"work"` // fingerprint of the set
	Router string  `json:"router"`
	Round  int     `json:"round"`
	Scale  float64 `json:"scale"`
	Seed   uint64  `json:"seed"`

	Time     string            `json:"time"`
	Commit   string            `json:"commit"`
	Versions map[string]string `json:"versions"`
	Load     string            `json:"load"` // load averages of the machine at the end of the run
	// Engines is the processor time of the engines in seconds, without restarts.
	Engines float64 `json:"engines_cpu"`
	Routers float64 `json:"routers_cpu"` // processor time of the router and its balancer in seconds
	Others  float64 `json:"others_cpu"`  // average number of cores that other processes used

	Requests  int      `json:"requests"`
	Failed    int      `json:"failed"`    // attempts that failed
	Abandoned int      `json:"abandoned"` // requests that failed at every attempt
	Seconds   float64  `json:"seconds"`   // duration of the run in seconds, without the work of marks with drain
	First     spread   `json:"first_token_ms"`
	Prompt    int      `json:"prompt_tokens"` // prompt tokens of all answers, by their usage
	Cached    int      `json:"cached_tokens"`
	Holders   []tally  `json:"holders"` // counters of the engines, one element for each engine or rank
	Errors    []string `json:"errors,omitempty"`

	Warmpath map[string]float64 `json:"warmpath,omitempty"`
}

// key returns a text that identifies the run. A run is not played if the output file has a result with the same key.
func (r *result) key() string {
	return fmt.Sprint(r.Engine, " ", r.Set, " ", r.Work, " ", r.Router, " ", r.Round, " ", r.Scale, " ", r.Seed)
}

// total returns the sums of the counters over all engines.
func (r *result) total() (all tally) {
	for _, h := range r.Holders {
		all = all.plus(h)
	}
	return all
}

// hits returns the share of prompt tokens that were cached, in percent. It uses the engines' counters.
func (r *result) hits() float64 {
	all := r.total()
	if all.Queried == 0 {
		return 0
	}
	return 100 * all.Hit / all.Queried
}

// least returns the share of the requests that the least used holder got, in percent.
func (r *result) least() float64 {
	sum, least := 0.0, 0.0
	for i, h := range r.Holders {
		sum += h.Requests
		if i == 0 || h.Requests < least {
			least = h.Requests
		}
	}
	if sum == 0 {
		return 0
	}
	return 100 * least / sum
}

// way returns the part of the mean time to the first token that was not spent in the engines, in milliseconds. It
// returns 0 if the engines do not report their part of the time.
func (r *result) way() float64 {
	first := r.total().First
	if first == 0 || r.Requests == 0 {
		return 0
	}
	return max(0, r.First.Mean-1000*first/float64(r.Requests))
}

// byIDs returns the share of prompts that Warmpath matched by token ids, in percent. ok is false for a router that does
// not report this share.
func (r *result) byIDs() (share float64, ok bool) {
	sum, ids := 0.0, 0.0
	for key, v := range r.Warmpath {
		if strings.HasPrefix(key, "warmpath_token_requests_total") {
			sum += v
			if !strings.Contains(key, "missing=") {
				ids += v
			}
		}
	}
	if sum == 0 {
		return 0, false
	}
	return 100 * ids / sum, true
}

// over returns the share of Warmpath's predictions that were above the engine's report, in percent. ok is false if the
// result has no predictions.
func (r *result) over() (share float64, ok bool) {
	at := func(outcome string) float64 { return r.Warmpath["warmpath_predictions_total outcome="+outcome] }
	all := at("over") + at("equal") + at("under")
	if all == 0 {
		return 0, false
	}
	return 100 * at("over") / all, true
}

// readResults reads the lines of a file. A missing file has no lines. It ignores an incomplete last line, which a
// killed process may leave.
func readResults(path string) ([]result, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []result
	for i, line := range strings.SplitAfter(string(b), "\n") {
		if !strings.HasSuffix(line, "\n") || strings.TrimSpace(line) == "" {
			continue
		}
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// appendResult appends a result to the file at path, as one line.
func appendResult(path string, r *result) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	old, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if whole := bytes.LastIndexByte(old, '\n') + 1; whole < len(old) { // a killed process has left an incomplete line
		if err := f.Truncate(int64(whole)); err != nil {
			return err
		}
	}
	_, err = f.Write(append(b, '\n'))
	return err
}

// coresOf returns the cores for engine i of n engines, as an argument of taskset. "" means all cores. Engines do not
// share cores, because in a real fleet each engine has its own machine. On shared cores an idle engine would make the
// other engine faster, which would favour a router that uses only one engine.
func coresOf(i, n, cores int) string {
	if n < 2 || cores < n {
		return ""
	}
	return fmt.Sprintf("%d-%d", i*cores/n, (i+1)*cores/n-1)
}

// raise starts the engines of a set if they do not run. With ranks the set has one engine with two ranks, otherwise two
// engines.
func (b *bench) raise(ctx context.Context, ranks bool) error {
	// If an engine has died in a failed run, start all engines again.
	alive := !slices.ContainsFunc(b.running, func(e *engine) bool { return e.process == nil || e.gone() })
	if alive && len(b.running) > 0 && (b.running[0].ranks > 1) == ranks {
		return nil
	}
	b.stop()
	n, each := 2, 1
	if ranks {
		n, each = 1, 2
	}
	start := time.Now()
	say("starting %d %s with %d rank(s) each", n, b.kind, each)
	for i := range n {
		e := &engine{kind: b.kind, name: fmt.Sprintf("bench-%d-%s%d", b.ports, b.kind, i+1), ports: b.ports + 7*i, ranks: each,
			dir: b.dir, scripts: b.scripts, root: b.engines}
		e.url = fmt.Sprintf("http://127.0.0.1:%d", e.ports)
		e.cores = coresOf(i, n, runtime.NumCPU())
		if err := e.start(); err != nil {
			return err
		}
		b.running = append(b.running, e)
	}
	for _, e := range b.running {
		if err := e.await(ctx); err != nil {
			return err
		}
	}
	say("engines are up after %.0f s", time.Since(start).Seconds())
	return nil
}

// stop ends the engines.
func (b *bench) stop() {
	for _, e := range b.running {
		if e.process != nil {
			e.process.stop(30 * time.Second)
		}
	}
	b.running = nil
}

// errEngine marks an error of an engine. Such an error ends the benchmark.
var errEngine = errors.New("engines")

// once plays a set through a router once.
func (b *bench) once(ctx context.Context, s set, kind routerKind, round int) (*result, error) {
	if err := b.raise(ctx, s.ranks); err != nil {
		return nil, fmt.Errorf("%w: %w", errEngine, err)
	}
	for _, e := range b.running {
		if err := e.empty(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w", errEngine, err)
		}
	}
	d, err := b.deploy(ctx, kind, b.running, s.replicas)
	defer d.stop()
	if err != nil {
		return nil, err
	}
	var meters []*meter
	for _, e := range b.running {
		m, err := newMeter(e)
		if err != nil {
			return nil, err
		}
		meters = append(meters, m)
	}
	r := &run{plan: scaled(s.work, b.scale).plan(newWriter(b.seed, workName(s), round), s.clients), client: newClient(d.url, model)}
	r.marks = b.marks(s, r.plan.requests(), d, meters)
	busy := watchProcessors(b.groups, d.groups)
	took, err := r.play(ctx)
	cpu := busy()
	if err != nil {
		return nil, err
	}
	out := &result{Engine: string(b.kind), Set: s.name, Work: s.fingerprint(), Router: kind.name, Round: round, Scale: b.scale, Seed: b.seed,
		Time: time.Now().UTC().Format(time.RFC3339), Commit: b.commit, Versions: b.versions, Load: loadAverages(),
		Engines: cpu.engines, Routers: cpu.routers, Others: cpu.others,
		Requests: r.plan.requests(), Failed: r.failed, Abandoned: r.abandoned, Seconds: took.Seconds(), First: spreadOf(r.firsts),
		Prompt: r.prompt, Cached: r.cached, Errors: r.errors}
	for _, m := range meters {
		if err := m.fold(); err != nil {
			return nil, err
		}
		out.Holders = append(out.Holders, m.total...)
	}
	if err := d.count(); err != nil {
		return nil, err
	}
	if kind.ours {
		out.Warmpath = d.counted
	}
	return out, nil
}

// workName returns a name for the prompts of a set. Sets that differ only in load or event have the same name, and so
// the same prompts.
func workName(s set) string { return fmt.Sprintf("%+v", s.work) }

// marks returns the marks of a run. A mark is something to do after a number of requests, such as a restart.
func (b *bench) marks(s set, requests int, d *deployment, meters []*meter) []mark {
	switch s.event {
	case routerRestart:
		return []mark{{after: requests / 2, drain: true, do: d.restart}}
	case engineRestart:
		e, m := b.running[1], meters[1]
		return []mark{
			{after: requests * 2 / 5, do: func(context.Context) error {
				if err := m.fold(); err != nil {
					return err
				}
				e.process.stop(30 * time.Second)
				return nil
			}},
			// Some requests are sent while the engine is down. Then all clients wait until the engine serves again, because its
			// start uses most of the machine's processors and must not be measured.
			{after: requests/2 + 1, drain: true, do: func(ctx context.Context) error {
				if err := e.start(); err != nil {
					return err
				}
				if err := e.await(ctx); err != nil {
					return err
				}
				// Wait until the routers use the engine again.
				if err := sleep(ctx, 15*time.Second); err != nil {
					return err
				}
				return m.again()
			}},
		}
	}
	return nil
}

// groups returns the engines' process groups.
func (b *bench) groups() (out []int) {
	for _, e := range b.running {
		out = append(out, e.pgid)
	}
	return out
}

// installed returns the name and version of a Python package, such as smg-1.13.0. dir is the virtual environment of the
// package.
func installed(dir, name string) string {
	found, _ := filepath.Glob(filepath.Join(dir, "lib/python3*/site-packages", strings.ReplaceAll(name, "-", "_")+"-*.dist-info"))
	if len(found) == 0 {
		return name + " (not installed)"
	}
	return strings.TrimSuffix(filepath.Base(found[0]), ".dist-info")
}
