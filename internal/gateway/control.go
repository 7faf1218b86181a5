package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
)

// order is a request that changes a worker: flush the cache, sleep or wake up.
type order struct {
	path string // the router's path for the order
	// vllm and sglang are the engines' paths for the order. An engine that is not SGLang gets vLLM's path.
	vllm, sglang string
	empties      bool // the engine's cache is empty after the order
}

// orders has each order by the router's path.
var orders = map[string]order{
	"/flush_cache": {"/flush_cache", "/reset_prefix_cache", "/flush_cache", true},
	"/sleep":       {"/sleep", "/sleep", "/release_memory_occupation", true},
	"/wake_up":     {"/wake_up", "/wake_up", "/resume_memory_occupation", false},
}

const (
	// orderTimeout is how long a worker may take to carry out an order: an engine that falls asleep copies its weights,
	// hundreds of gigabytes, into the machine's memory.
	orderTimeout = 5 * time.Minute
	// ordersAtOnce bounds how many workers carry out an order at the same time.
	ordersAtOnce = 32
	// idleEvery is the time between two looks whether a worker has requests.
	idleEvery = 50 * time.Millisecond
	// settleTime is for how long no request must be under way at a worker before SGLang may be sent to sleep, unless
	// SGLang itself reports that it is idle. SGLang looks every 4 s whether a client has left
	// (SGLANG_REQUEST_STATE_WAIT_TIMEOUT), and computes the request until then.
	settleTime = 5 * time.Second
	// askedFor is the age of a report of load at most: it may describe the engine as it was that long ago.
	askedFor = time.Second
	// maxReply is how much of a worker's answer is shown.
	maxReply = 1 << 10
)

// carriedOut is what one worker answered to an order.
type carriedOut struct {
	Worker string `json:"worker"`
	OK     bool   `json:"ok"`
	Status int    `json:"status,omitempty"` // 0: there was no answer, or the worker was not told
	Answer string `json:"answer,omitempty"`
}

// refuseOrder answers a client that gives an order at the listener for clients.
func (g *Gateway) refuseOrder(w http.ResponseWriter, r *http.Request) {
	if g.cfg.WorkerOrders {
		g.Order(w, r)
		return
	}
	g.refuse(w, api.OpenAIChat, "admin_only", &api.Error{Status: http.StatusForbidden, Type: "permission_error", Code: "admin_only",
		Message: r.URL.Path + " changes workers: send it to the router's admin listener, or have the operator set " +
			"gateway.worker_orders to true"})
}

// Order tells all workers, or the worker that the query names, to flush the cache, to fall asleep or to wake up. The
// path of the request is the order. The answer has each worker's result; its status is 200 if all workers did what they
// were told, else 502.
func (g *Gateway) Order(w http.ResponseWriter, r *http.Request) {
	o := orders[r.URL.Path]
	query := r.URL.Query()
	workers, err := g.named(query)
	if err != nil {
		api.WriteError(w, api.OpenAIChat, err)
		return
	}
	named := query.Has("worker")
	query.Del("worker")
	// Orders are carried out also if the client leaves: half of a fleet asleep helps nobody.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), orderTimeout)
	defer cancel()
	results := make([]carriedOut, len(workers))
	places := make(chan struct{}, ordersAtOnce)
	var all sync.WaitGroup
	for i, worker := range workers {
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			results[i] = g.carryOut(ctx, worker, &o, query, named)
		})
	}
	all.Wait()
	answer := struct {
		Success bool         `json:"success"`
		Error   *orderError  `json:"error,omitempty"`
		Workers []carriedOut `json:"workers"`
	}{Success: true, Workers: results}
	failed := 0
	for _, r := range results {
		if !r.OK {
			failed++
		}
	}
	status := http.StatusOK
	if failed > 0 {
		answer.Success, status = false, http.StatusBadGateway
		answer.Error = &orderError{fmt.Sprintf("%d of %d workers did not do what they were told; workers has the reasons", failed, len(results)),
			"server_error", "worker_failed"}
	}
	writeJSON(w, status, answer)
}

type orderError struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    string `json:"code"`
}

// named returns the worker that ?worker= names, or all workers.
func (g *Gateway) named(query url.Values) ([]*fleet.Worker, error) {
	all := g.Fleet.Snapshot().Workers()
	if !query.Has("worker") {
		if len(all) == 0 {
			return nil, api.NoWorker(nil)
		}
		return all, nil
	}
	for _, w := range all {
		if w.URL == strings.TrimRight(query.Get("worker"), "/") {
			return []*fleet.Worker{w}, nil
		}
	}
	return nil, api.Invalid("worker", "worker must be the URL of a worker, as in /admin/workers, not "+api.Quoted(query.Get("worker")))
}

// carryOut tells a worker to carry out an order. named says that the order is for this worker alone.
//
// SGLang ends if it has requests when it is sent to sleep, or if it is told twice to sleep or to wake up: each breaks a
// condition in its scheduler [SGLang 0.5.23, srt/managers/scheduler_components/weight_updater.py].
func (g *Gateway) carryOut(ctx context.Context, w *fleet.Worker, o *order, query url.Values, named bool) carriedOut {
	if o.path != "/flush_cache" {
		if other, under := g.ordered.LoadOrStore(w.ID, o.path); under {
			return carriedOut{Worker: w.URL, Answer: fmt.Sprintf("it was not told, because the order %s is under way there; try again after the "+
				"answer to that order", other)}
		}
		defer g.ordered.Delete(w.ID)
		now := g.Fleet.Snapshot().ByID(w.ID) // an order before this one may have changed its state
		if now == nil {
			return carriedOut{Worker: w.URL, Answer: "it was not told, because it has left the fleet"}
		}
		w = now
	}
	sglang, path := w.Facts.Engine == fleet.EngineSGLang, o.vllm
	if sglang {
		path = o.sglang
	}
	if sglang && !named {
		told := carriedOut{Worker: w.URL, OK: true}
		switch {
		case o.path == "/wake_up" && !w.Asleep:
			told.Answer = "it was not told, because the router did not send it to sleep, and SGLang ends if it is woken while it is awake; " +
				"to tell it all the same, name it: ?worker=URL"
			return told
		case o.path == "/sleep" && w.Asleep && !query.Has("tags"): // with tags it may fall asleep in parts
			told.Answer = "it was not told, because it sleeps, and SGLang ends if it is sent to sleep twice; " +
				"to tell it all the same, name it: ?worker=URL"
			return told
		}
	}
	if o.path == "/sleep" {
		g.Fleet.SetAsleep(w.ID, true) // before the engine falls asleep, so that it gets no further request
		if sglang && !g.idle(ctx, w) {
			g.Fleet.SetAsleep(w.ID, w.Asleep)
			return carriedOut{Worker: w.URL, Answer: "it was not told, because it has requests under way, and SGLang ends if it is sent to sleep then"}
		}
	}
	var reply reply
	result := g.tell(ctx, w, path, query, &reply)
	out := carriedOut{Worker: w.URL, Status: result.Status, OK: result.Class == proxy.Success && !busy(reply.body.Bytes()), Answer: reply.text()}
	switch {
	case result.Answer != nil:
		out.Answer = string(bytes.TrimSpace(result.Answer.Body[:min(len(result.Answer.Body), maxReply)]))
		if result.Status == http.StatusNotFound {
			out.Answer = fmt.Sprintf("the engine has no %s (vLLM: start it with VLLM_SERVER_DEV_MODE=1, and for sleep with --enable-sleep-mode)", path)
		}
	case result.Err != nil:
		out.Answer = api.CauseOf(result.Err).Error()
	}
	switch {
	case o.path == "/sleep" && !out.OK && result.Status != 0:
		g.Fleet.SetAsleep(w.ID, w.Asleep) // it refused; without an answer it may sleep
	case o.path == "/wake_up" && out.OK && !g.stillAsleep(ctx, w, query):
		g.Fleet.SetAsleep(w.ID, false)
	}
	if o.empties && out.OK {
		g.forgetCache(w)
	}
	g.Log.Info("worker was told", "worker", w.URL, "order", o.path, "ok", out.OK, "status", out.Status)
	return out
}

// tell sends an order to a worker. SGLang has in its body what vLLM has in the query.
func (g *Gateway) tell(ctx context.Context, w *fleet.Worker, path string, query url.Values, into *reply) proxy.Result {
	a := proxy.Attempt{Worker: w.URL, Header: http.Header{}, Unchecked: true, Dialect: api.OpenAIChat, Path: path, Writer: into}
	if w.Facts.Engine == fleet.EngineSGLang {
		a.Body = []byte("{}")
		if tags := query["tags"]; len(tags) > 0 {
			a.Body, _ = json.Marshal(map[string][]string{"tags": tags}) // texts can always be written
		}
		a.Header.Set("Content-Type", "application/json")
	}
	if len(query) > 0 {
		a.Path += "?" + query.Encode()
	}
	return g.Client.Forward(ctx, &a)
}

// idle waits until no request is under way at an SGLang worker. It returns false if ctx ends first.
func (g *Gateway) idle(ctx context.Context, w *fleet.Worker) bool {
	tick := time.NewTicker(idleEvery)
	defer tick.Stop()
	var since time.Time // when the last request of this router had ended; zero: one is under way
	for {
		select {
		case <-ctx.Done():
			return false
		case now := <-tick.C: // not at once: a decision that used an earlier snapshot may still add a request
			snap := g.Fleet.Snapshot()
			switch {
			case requestsAt(snap, w) > 0:
				since = time.Time{}
				continue
			case since.IsZero():
				since = now
			}
			requests, reported := reportedAfter(snap, w, since.Add(askedFor))
			if reported && requests == 0 || !reported && now.Sub(since) >= g.settle {
				return true
			}
		}
	}
}

// reportedAfter returns how many requests the engine has, by its reports after the given time. reported is false if a
// rank has made no report since.
func reportedAfter(snap *fleet.Snapshot, w *fleet.Worker, after time.Time) (requests int64, reported bool) {
	for _, h := range w.Holders {
		r := snap.LoadAt(h, after.UnixNano()).Reported
		if r.At < after.UnixNano() {
			return 0, false
		}
		requests += r.Running + r.Waiting
	}
	return requests, true
}

// stillAsleep reports whether a worker that was told to wake up still sleeps. With tags an engine wakes up in parts:
// weights first, so that they can be replaced, and then the cache. Until both are back, vLLM computes nothing. SGLang
// does not say whether it sleeps; it is awake when it has its cache.
func (g *Gateway) stillAsleep(ctx context.Context, w *fleet.Worker, query url.Values) bool {
	tags := query["tags"]
	if len(tags) == 0 {
		return false
	}
	if w.Facts.Engine == fleet.EngineSGLang {
		return !slices.Contains(tags, "kv_cache")
	}
	var reply reply
	result := g.Client.Forward(ctx, &proxy.Attempt{Worker: w.URL, Method: http.MethodGet, Path: "/is_sleeping", Header: http.Header{},
		Unchecked: true, Dialect: api.OpenAIChat, Writer: &reply})
	var state sleeping
	return result.Class == proxy.Success && json.Unmarshal(reply.body.Bytes(), &state) == nil && state.All
}

// busy reports whether an answer of vLLM's /reset_prefix_cache says that the cache was not reset, because requests use
// it.
func busy(answer []byte) bool {
	return bytes.Contains(bytes.ReplaceAll(answer, []byte(" "), nil), []byte(`"success":false`))
}

// forgetCache empties the router's view of a worker's cache. vLLM announces that its cache is empty only with the next
// step that has events. Blocks that vLLM has outside of the accelerator stay; SGLang drops them, too.
func (g *Gateway) forgetCache(w *fleet.Worker) {
	tiers := block.Tier(1) // the accelerator's
	if w.Facts.Engine == fleet.EngineSGLang {
		tiers = block.NumTiers
	}
	for _, h := range w.Holders {
		for tier := range tiers {
			g.Router.Clear(h, tier)
		}
	}
}

// sleeping is the answer of /is_sleeping, under the same key as vLLM's.
type sleeping struct {
	All     bool             `json:"is_sleeping"` // all workers sleep
	Workers []sleepingWorker `json:"workers,omitempty"`
}

type sleepingWorker struct {
	Worker string `json:"worker"`
	Asleep bool   `json:"is_sleeping"`
}

// isSleeping answers clients as IsSleeping, without the workers if clients must not see their addresses.
func (g *Gateway) isSleeping(w http.ResponseWriter, r *http.Request) {
	if g.cfg.Headers {
		g.IsSleeping(w, r)
		return
	}
	all := !slices.ContainsFunc(g.Fleet.Snapshot().Workers(), func(w *fleet.Worker) bool { return !w.Asleep })
	writeJSON(w, http.StatusOK, sleeping{All: all})
}

// IsSleeping answers which workers are asleep, as far as the router knows.
func (g *Gateway) IsSleeping(w http.ResponseWriter, r *http.Request) {
	workers, err := g.named(r.URL.Query())
	if err != nil {
		api.WriteError(w, api.OpenAIChat, err)
		return
	}
	out := sleeping{All: true, Workers: []sleepingWorker{}}
	for _, w := range workers {
		out.Workers = append(out.Workers, sleepingWorker{w.URL, w.Asleep})
		out.All = out.All && w.Asleep
	}
	writeJSON(w, http.StatusOK, out)
}

// reply keeps the beginning of a worker's answer. It is an http.ResponseWriter.
type reply struct {
	header http.Header
	body   bytes.Buffer
}

func (r *reply) Header() http.Header {
	if r.header == nil {
		r.header = http.Header{}
	}
	return r.header
}

func (r *reply) WriteHeader(int) {}

func (r *reply) Write(b []byte) (int, error) {
	r.body.Write(b[:min(len(b), maxReply-r.body.Len())])
	return len(b), nil
}

func (r *reply) text() string { return string(bytes.TrimSpace(r.body.Bytes())) }
