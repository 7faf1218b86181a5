package mockengine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/internal/engine"
)

// This file imitates vLLM's NixlConnector as a pull (distributed/kv_transfer/kv_connector/v1/nixl, vLLM 0.32): the
// prefill worker keeps the blocks of a request with do_remote_decode and names them in its answer; the decode worker
// gets these names in its request and reads the blocks.

// kvParams is a request's kv_transfer_params.
type kvParams struct {
	remotePrefill, remoteDecode bool
	blocks                      []int32
	engineID, requestID, host   string
	port                        int
	complete                    bool // engine, request, host and port are given
	tokens                      int  // remote_num_tokens
	cached                      int  // remote_prefill_cached_tokens; -1: not given
	ends                        float64
	hasSize                     bool   // tp_size is given
	transferID                  string // Mooncake: transfer_id
	bootstrapURL                string // Mooncake: remote_bootstrap_addr
	decoderID                   string // p2p: remote_decoder.kv_request_id
	source                      kvSource
}

// kvSource is where a request of the tier p2p gets blocks from.
type kvSource struct {
	id, host string
	port     int
	probes   bool // remote_kv_source: what the source lacks is computed; otherwise remote_prefiller
}

// whole reports whether all fields are given; otherwise vLLM ignores them.
func (s *kvSource) whole() bool { return s.id != "" && s.host != "" && s.port != 0 }

// readTransfer reads kv_transfer_params. Fields of an unexpected type count as absent: vLLM hands the object to the
// connector as it is.
func (g *generation) readTransfer(body *fastjson.Value) error {
	if !given(body, "kv_transfer_params") {
		return nil
	}
	v := body.Get("kv_transfer_params")
	if v.Type() != fastjson.TypeObject {
		return errors.New("kv_transfer_params: Input should be a valid dictionary")
	}
	p := &kvParams{
		remotePrefill: v.GetBool("do_remote_prefill"), remoteDecode: v.GetBool("do_remote_decode"),
		engineID: text(v, "remote_engine_id"), requestID: text(v, "remote_request_id"),
		host: text(v, "remote_host"), port: v.GetInt("remote_port"), tokens: v.GetInt("remote_num_tokens"),
		ends: v.GetFloat64("remote_blocks_expiry_time"), cached: -1,
	}
	p.complete = v.Exists("remote_engine_id") && v.Exists("remote_request_id") && v.Exists("remote_host") && v.Exists("remote_port")
	if given(v, "remote_prefill_cached_tokens") {
		p.cached = v.GetInt("remote_prefill_cached_tokens")
	}
	if groups := v.GetArray("remote_block_ids"); len(groups) > 0 {
		for _, id := range groups[0].GetArray() {
			p.blocks = append(p.blocks, int32(id.GetInt()))
		}
	}
	p.hasSize = v.Exists("tp_size")
	p.transferID, p.bootstrapURL = text(v, "transfer_id"), text(v, "remote_bootstrap_addr")
	p.decoderID = text(v, "remote_decoder", "kv_request_id")
	source := v.Get("remote_prefiller")
	if source == nil {
		source = v.Get("remote_kv_source")
		p.source.probes = source != nil
	}
	if source != nil {
		p.source.id, p.source.host, p.source.port = text(source, "kv_request_id"), text(source, "remote_host"), source.GetInt("remote_port")
	}
	g.transfer = p
	if !g.chat || !given(v, "prompt_token_ids") {
		return nil
	}
	// The ids take the place of the rendered messages, unless the messages have media (renderers/online_renderer.py).
	ids, err := tokenList(v.GetArray("prompt_token_ids"))
	if err != nil {
		return fmt.Errorf("kv_transfer_params.prompt_token_ids: %w", err)
	}
	if len(g.prompts[0].features) == 0 && !body.GetBool("echo") {
		g.prompts[0].tokens = ids
	}
	return nil
}

// prepareTransfer sets what the engine model must know about a part's transfer.
func (x *run) prepareTransfer(i int) {
	c, p, q := x.life.exchange, x.transfer, &x.parts[i].request
	if c == nil {
		return
	}
	progress := &x.parts[i].progress
	progress.awaits = make(chan struct{}, 1)
	if c.config.Connector != NIXL {
		if c.config.Connector != Rooms {
			x.prepareMeeting(i)
		}
		return
	}
	if p == nil {
		return
	}
	progress.transferID, progress.mode = x.engineRequestID(i), "pull"
	switch {
	case p.remotePrefill:
		q.Await, q.Received = true, len(q.Prompt)
		q.Pin, progress.decoder = c.config.Bidirectional, true
	case p.remoteDecode:
		q.Pin = true
		if len(p.blocks) > 0 && p.complete && p.tokens > 0 {
			q.Await, q.Received = true, p.tokens
		} else if len(p.blocks) > 0 && p.complete && c.config.Bidirectional {
			c.tellLater(notice{URL: address(p.host, p.port), Request: p.requestID}) // nothing is read (update_state_after_alloc)
		}
	default: // vLLM takes any other object for that of a decode worker
		q.Pin, progress.decoder = c.config.Bidirectional, true
	}
}

// engineRequestID returns the id that the engine gives to a part. vLLM appends random digits to the request's id, and
// before them the number of a completion's prompt.
func (x *run) engineRequestID(i int) string {
	suffix := x.life.newID()[:8]
	if x.chat {
		return x.id + "-" + suffix
	}
	return x.id + "-" + strconv.Itoa(i/x.choices) + "-" + suffix
}

// startTransfers starts the transfer of each part that awaits one.
func (x *run) startTransfers(r *http.Request) {
	for i := range x.parts {
		var transfer func()
		switch p := &x.parts[i]; {
		case p.progress.room != nil:
			transfer = func() { x.awaitReader(r.Context(), i) }
		case p.request.Await && x.bootstrap != nil:
			transfer = func() { x.join(r.Context(), i) }
		case p.request.Await && x.life.cfg.Transfer.Connector == NIXL:
			transfer = func() { x.pull(r.Context(), p) }
		case p.request.Await:
			transfer = func() { x.meet(r.Context(), p) }
		default:
			continue
		}
		x.life.work.Add(1)
		go func() { // ends with the transfer, or with the life
			defer x.life.work.Done()
			transfer()
		}()
	}
}

// pull waits until the engine has blocks for the part, reads the blocks of the other engine into them, and lets the
// part go on.
func (x *run) pull(ctx context.Context, p *part) {
	c, params, q := x.life.exchange, x.transfer, &p.request
	release := notice{URL: address(params.host, params.port), Request: params.requestID}
	if !x.awaitBlocks(ctx, p, release) {
		return
	}
	if !params.remotePrefill && !c.config.Bidirectional || params.remotePrefill && !params.complete {
		// No transfer is registered, so the request waits for ever (seen with vLLM 0.32). Without a field of the
		// address the EngineCore dies with a KeyError when the client leaves.
		<-ctx.Done()
		if !params.complete && x.life.ctx.Err() == nil {
			x.life.killEngine()
		}
		return
	}
	if len(params.blocks) == 0 { // assert num_external_tokens == 0 (pull_scheduler.py)
		x.life.killEngine()
		return
	}
	order, missing := x.rank.missing(q, params.blocks)
	if len(order.Blocks) < (missing+order.BlockSize-1)/order.BlockSize { // assert num_decode_blocks <= len(prefill_group) (base_worker.py)
		x.life.killEngine()
		return
	}
	if missing == 0 || !params.remotePrefill && missing < c.config.RecomputeThreshold {
		c.tell("/mock/kv/release", release)
		x.rank.arrive(q, 0)
		return
	}
	if params.ends > 0 && params.ends < clock() { // _is_turn2_read_expired (pull_worker.py)
		c.count(func(s *transferStats) { s.expired++ })
		x.loadFailed(q)
		return
	}
	order.Engine, order.Request = params.engineID, params.requestID
	order.Bytes, order.GBs = float64(missing)*c.config.KVBytes, c.config.GBs
	// The transfer goes on if the client leaves, as in vLLM. At its end both engines free the blocks.
	p.progress.moving.Store(true)
	result, err := c.read(x.life.ctx, release.URL, order)
	p.progress.moving.Store(false)
	switch {
	case x.life.ctx.Err() != nil:
	case ctx.Err() != nil:
		x.rank.cancel([]*engine.Request{q})
	case err != nil:
		x.loadFailed(q)
	default:
		if !result.Valid {
			x.garble(p)
		}
		x.rank.arrive(q, missing)
	}
}

// awaitBlocks waits until the engine has blocks for the part, and meanwhile renews the lease at the other engine. It
// returns false if the client has left before: then the other engine is told with the engine's next step.
func (x *run) awaitBlocks(ctx context.Context, p *part, release notice) bool {
	c := x.life.exchange
	beat := time.NewTicker(max(c.config.Lease/6, time.Millisecond))
	defer beat.Stop()
	for {
		select {
		case <-p.progress.awaits:
			return true
		case <-beat.C:
			if x.transfer.complete {
				c.tell("/mock/kv/renew", release)
			}
		case <-ctx.Done():
			if x.transfer.complete {
				c.tellLater(release)
			}
			return false
		}
	}
}

// loadFailed carries out vLLM's kv_load_failure_policy.
func (x *run) loadFailed(q *engine.Request) {
	if x.life.exchange.config.Recompute {
		x.rank.arrive(q, 0)
		return
	}
	x.rank.cancel([]*engine.Request{q})
	x.fail("Internal server error")
}

// fail ends the request with an error.
func (x *run) fail(problem string) {
	x.failed.CompareAndSwap(nil, &problem)
	select {
	case x.signal <- struct{}{}:
	default:
	}
}

// garble replaces the words of an answer by others. It stands for an answer that is computed from another prompt's
// blocks, which real engines do not notice. Nothing has read the answer's tokens yet.
func (x *run) garble(p *part) {
	random := splitmix(x.life.salt ^ uint64(len(p.request.Prompt)))
	tokens := p.request.Output
	for i := range tokens {
		if tokens[i] == tokenEnd {
			break
		}
		tokens[i] = appendTokens(nil, " "+shortWords[random.next()%uint64(len(shortWords))])[0]
	}
}

// transferFault returns the status with which a fault answers g, or 0.
func (l *life) transferFault(g *generation) int {
	switch leg := l.legOf(g); {
	case leg == Prefill && l.server.faults.hits(prefillErrors):
		return http.StatusInternalServerError
	case leg == Decode && l.server.faults.hits(decodeRefusals):
		return http.StatusServiceUnavailable
	}
	return 0
}

// legOf returns which leg of a divided request g is; "": it is none.
func (l *life) legOf(g *generation) Role {
	t, d := g.transfer, g.disaggregated
	switch {
	case l.exchange == nil:
	case g.bootstrap != nil:
		return l.exchange.currentRole()
	case d != nil && d.context, t != nil && (t.remoteDecode || t.decoderID != ""):
		return Prefill
	case d != nil, t != nil && (t.remotePrefill || t.source.id != "" && !t.source.probes):
		return Decode
	}
	return ""
}

// refuseDecode tells the prefill worker that a request that the decode worker refuses will read no blocks. vLLM's API
// server does so, too, but the message leaves only with the engine's next step.
func (l *life) refuseDecode(body *fastjson.Value) {
	var g generation
	if g.readTransfer(body) == nil {
		l.releaseRefused(&g)
	}
}

func (l *life) releaseRefused(g *generation) {
	if t := g.transfer; l.exchange != nil && t != nil && t.remotePrefill && t.complete {
		l.exchange.tellLater(notice{URL: address(t.host, t.port), Request: t.requestID})
	}
}

// leaseOut pins the blocks of a request that has ended, and writes the parameters with which another engine reads them.
func (x *exchange) leaseOut(r *rank, q *engine.Request) {
	p := q.Owner.(*progress)
	length := x.config.Lease
	if p.decoder {
		length = x.config.Kept
	}
	key := p.leaseKey
	if key == "" {
		key = p.transferID
	}
	ends := x.pin(key, r, q, length)
	if p.mode == "" { // the answer tells nothing
		return
	}
	blocks, computed := r.leased(q)
	if p.mode == "trtllm" {
		p.params = x.appendDisaggregated(p.params[:0], r, p, q.Output[0])
		return
	}
	dst := append(p.params[:0], `{"do_remote_prefill":`...)
	dst = strconv.AppendBool(dst, !p.decoder)
	dst = append(dst, `,"do_remote_decode":`...)
	dst = strconv.AppendBool(dst, p.decoder)
	dst = append(dst, `,"remote_block_ids":[[`...)
	for i, id := range blocks {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, int64(id), 10)
	}
	dst = append(dst, `]],"remote_engine_id":`...)
	dst = appendString(dst, x.engineID(r.id))
	dst = append(dst, `,"remote_request_id":`...)
	dst = appendString(dst, p.transferID)
	dst = append(dst, `,"remote_host":`...)
	dst = appendString(dst, x.host)
	dst = append(dst, `,"remote_port":`...)
	dst = strconv.AppendInt(dst, int64(x.port+r.id), 10)
	dst = append(dst, `,"tp_size":1,"dcp_size":1,"pp_size":1,"remote_num_tokens":`...)
	dst = strconv.AppendInt(dst, int64(computed), 10)
	switch {
	case p.decoder:
		dst = append(dst, `,"remote_blocks_expiry_time":`...)
		dst = strconv.AppendFloat(dst, clockAt(ends), 'f', 6, 64)
	case p.mode == "pull":
		dst = append(dst, `,"remote_blocks_expiry_time":null`...)
	}
	dst = append(dst, `,"transfer_mode":`...)
	dst = appendString(dst, p.mode)
	if !p.decoder {
		dst = append(dst, `,"remote_prefill_cached_tokens":`...)
		dst = strconv.AppendInt(dst, int64(q.Cached), 10)
	}
	p.params = append(dst, '}')
}

// clock returns the time in the form of remote_blocks_expiry_time. Real engines take a clock of the machine whose zero
// is arbitrary, so engines on one machine have the same one.
func clock() float64              { return clockAt(time.Now()) }
func clockAt(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
