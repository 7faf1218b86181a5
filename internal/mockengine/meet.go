package mockengine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
)

// This file imitates the connectors of vLLM 0.32 in which the reader of blocks may come before the blocks are computed:
// NixlPushConnector (kv_connector/v1/nixl/push_scheduler.py), MooncakeConnector (kv_connector/v1/mooncake) and the tier
// "p2p" of OffloadingConnector (v1/kv_offload/tiering/p2p). The decode worker names a transfer, and waits at the
// prefill worker until the blocks of this transfer are there. The file also imitates a store that engines share: each
// engine takes from it the blocks that it lacks.

// randomSuffix is what vLLM appends to the ids of requests (get_base_request_id in nixl/utils.py).
var randomSuffix = regexp.MustCompile(`-[0-9a-f]{8}$`)

// prepareMeeting sets what the engine model must know about a part, for the connectors of this file.
func (x *run) prepareMeeting(i int) {
	c, t, p := x.life.exchange, x.transfer, &x.parts[i]
	q := &p.request
	if c.config.Connector == Shared {
		q.Await, q.Received = true, len(q.Prompt)/x.life.cfg.BlockSize*x.life.cfg.BlockSize
		return
	}
	if c.config.Connector == TRTLLM {
		x.prepareDisaggregated(p)
		return
	}
	if t == nil {
		return
	}
	p.progress.transferID = x.engineRequestID(i)
	key := ""
	switch c.config.Connector {
	case NIXLPush:
		if t.remoteDecode {
			key, p.progress.mode = "push "+randomSuffix.ReplaceAllString(p.progress.transferID, ""), "push"
		}
		q.Await = t.remotePrefill
	case Mooncake:
		if t.remoteDecode && t.transferID != "" && p.answer.reason == "length" {
			key = "mooncake " + t.transferID
		}
		q.Await = t.remotePrefill
	case P2P:
		if t.decoderID != "" {
			key = "p2p " + t.decoderID
		}
		q.Await = t.source.whole()
	}
	if key != "" {
		q.Pin, p.progress.leaseKey = true, key
	}
	if q.Await {
		q.Received = len(q.Prompt)
		if t.source.probes {
			q.Received = len(q.Prompt) / x.life.cfg.BlockSize * x.life.cfg.BlockSize
		}
	}
}

// meet waits until the engine has blocks for the part, receives what the connector brings, and lets the part go on.
func (x *run) meet(ctx context.Context, p *part) {
	c := x.life.exchange
	select {
	case <-p.progress.awaits:
	case <-ctx.Done():
		return
	}
	order, missing := x.rank.missing(&p.request, nil)
	order.Bytes, order.GBs = float64(missing)*c.config.KVBytes, c.config.GBs
	side, known := x.meetingPlace(ctx, order)
	if !known {
		return
	}
	if missing == 0 {
		c.tell("/mock/kv/release", notice{URL: side, Request: order.Room})
		x.rank.arrive(&p.request, 0)
		return
	}
	// The request keeps its blocks until the transfer ends, even if its client leaves: so do vLLM's connectors.
	p.progress.moving.Store(true)
	result, err := c.read(x.life.ctx, side, order)
	p.progress.moving.Store(false)
	switch {
	case x.life.ctx.Err() != nil:
	case ctx.Err() != nil:
		x.rank.cancel([]*engine.Request{&p.request})
	case order.Probe:
		x.rank.arrive(&p.request, result.Found*order.BlockSize) // 0 if err is not nil: the engine computes the rest
	case err != nil && c.config.Connector == P2P:
		x.rank.arrive(&p.request, 0)
	case err != nil || result.Problem != "":
		x.loadFailed(&p.request)
	default:
		if !result.Valid {
			x.garble(p)
		}
		x.rank.arrive(&p.request, missing)
	}
}

// meetingPlace adds to an order what it asks for, and returns the side channel that it goes to. If known is false, the
// request has ended, or waits for ever.
func (x *run) meetingPlace(ctx context.Context, o *readOrder) (side string, known bool) {
	c, t := x.life.exchange, x.transfer
	switch c.config.Connector {
	case NIXLPush:
		if !t.complete || !t.hasSize { // KeyError in the scheduler (push_scheduler.py)
			x.life.killEngine()
			return "", false
		}
		o.Engine, o.Room = t.engineID, "push "+randomSuffix.ReplaceAllString(t.requestID, "")
		return address(t.host, t.port), true
	case Mooncake:
		if c.config.Role == Prefill { // assert not self.is_kv_producer (mooncake_connector.py)
			x.life.killEngine()
			return "", false
		}
		if t.transferID == "" || t.engineID == "" || t.bootstrapURL == "" { // no transfer is registered
			<-ctx.Done()
			return "", false
		}
		o.Engine, o.Room = t.engineID, "mooncake "+t.transferID
		side, err := c.workerOf(ctx, t.bootstrapURL, t.engineID)
		if err != nil && ctx.Err() == nil {
			c.count(func(s *transferStats) { s.failed++ })
			x.fail("Internal server error")
		}
		return side, err == nil
	case TRTLLM:
		side, err := x.disaggregated.contextServer()
		if err != nil {
			x.fail(err.Error())
			return "", false
		}
		o.Room = "trtllm " + x.disaggregated.ctxID
		return side, true
	case P2P:
		o.Room, o.Probe = "p2p "+t.source.id, t.source.probes
		return address(t.source.host, t.source.port), true
	default: // Shared
		o.Probe = true
		if c.config.Store == "" {
			return address(c.host, c.port), true
		}
		return "http://" + c.config.Store, true
	}
}

// mooncakeRank is a rank in the answer of Mooncake's bootstrap server: the address of each worker by its ranks of
// tensor and pipeline parallelism.
type mooncakeRank struct {
	EngineID string                       `json:"engine_id"`
	Workers  map[string]map[string]string `json:"worker_addr"`
}

// workerOf asks a bootstrap server for the address of an engine.
func (x *exchange) workerOf(ctx context.Context, bootstrap, engineID string) (string, error) {
	ranks := map[string]mooncakeRank{}
	if err := x.get(ctx, bootstrap+"/query", &ranks); err != nil {
		return "", err
	}
	for _, r := range ranks {
		if r.EngineID == engineID {
			worker, err := url.Parse(r.Workers["0"]["0"])
			if err != nil {
				return "", err
			}
			return "http://" + worker.Host, nil
		}
	}
	return "", fmt.Errorf("no engine %s at %s", engineID, bootstrap)
}

// mooncakeRoutes serves Mooncake's bootstrap server (mooncake_utils.py), where the ranks of this engine are registered.
func (x *exchange) mooncakeRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /query", func(w http.ResponseWriter, _ *http.Request) {
		ranks := map[string]mooncakeRank{}
		for r := range x.life.cfg.Ranks {
			ranks[strconv.Itoa(r)] = mooncakeRank{EngineID: x.engineID(r),
				Workers: map[string]map[string]string{"0": {"0": strings.Replace(address(x.host, x.port), "http", "tcp", 1)}}}
		}
		writeJSON(w, http.StatusOK, ranks)
	})
}

// storeRoutes serves the store of KV blocks that engines share: the hashes of the blocks in it.
func (x *exchange) storeRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /mock/kv/store", func(w http.ResponseWriter, r *http.Request) {
		var hashes []engine.Hash
		if !readMessage(w, r, &hashes) {
			return
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		for _, h := range hashes {
			if len(x.store) < maxStored {
				x.store[h] = true
			}
		}
	})
}

// maxStored bounds the number of blocks in a shared store.
const maxStored = 1 << 20

// put sends the blocks that a step stored to the shared store.
func (x *exchange) put(events []engine.Event) {
	var hashes []engine.Hash
	for i := range events {
		if events[i].Kind == engine.Stored {
			hashes = append(hashes, events[i].Hashes...)
		}
	}
	if len(hashes) == 0 {
		return
	}
	side := "http://" + x.config.Store
	if x.config.Store == "" {
		side = address(x.host, x.port)
	}
	ctx, cancel := context.WithTimeout(x.life.ctx, time.Second)
	defer cancel()
	response, err := x.post(ctx, side+"/mock/kv/store", hashes)
	if err != nil {
		x.count(func(s *transferStats) { s.failed++ })
		return
	}
	response.Body.Close()
}

// serveProbe sends the first of the wanted blocks that this engine or its store has.
func (x *exchange) serveProbe(w http.ResponseWriter, r *http.Request, o *readOrder) {
	found := 0
	for found < len(o.Hashes) && x.hasBlock(o.Hashes[found]) {
		found++
	}
	if len(o.Hashes) > 0 {
		o.Bytes *= float64(found) / float64(len(o.Hashes))
	}
	if !x.sendBlocks(r.Context(), w, o) {
		panic(http.ErrAbortHandler)
	}
	_ = json.NewEncoder(w).Encode(readResult{Valid: true, Found: found})
}

func (x *exchange) hasBlock(h engine.Hash) bool {
	if x.config.Connector == Shared {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.store[h]
	}
	for _, r := range x.life.ranks {
		if r.caches(h) {
			return true
		}
	}
	return false
}
