package mockengine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/internal/engine"
)

// This file imitates SGLang's disaggregation (srt/disaggregation, SGLang 0.5.23): both engines get the same request at
// the same time, with the address of the prefill worker's bootstrap server and a room in which they meet. The prefill
// worker computes nothing before the decode worker has come, and answers when the decode worker has the blocks.

// bootstrap has the fields of a request that say where its two legs meet, one of each for every prompt.
type bootstrap struct {
	hosts       []string
	ports       []int // 0: null
	rooms       []int64
	prefillRank int // disagg_prefill_dp_rank; -1: none
}

// defaultBootstrapPort is the port that an engine takes for a request without a port
// (--disaggregation-bootstrap-port).
const defaultBootstrapPort = 8998

// readBootstrap reads the bootstrap fields of a request to an SGLang. A single value counts for all prompts, but a
// single room is the first of consecutive rooms (managers/io_struct.py).
func (g *generation) readBootstrap(body *fastjson.Value) error {
	if !given(body, "bootstrap_room") {
		return nil
	}
	n := len(g.prompts)
	b := &bootstrap{prefillRank: -1}
	if given(body, "disagg_prefill_dp_rank") {
		b.prefillRank = body.GetInt("disagg_prefill_dp_rank")
	}
	lists := func(name string) []*fastjson.Value {
		v := body.Get(name)
		if v != nil && v.Type() == fastjson.TypeArray {
			return v.GetArray()
		}
		return slices.Repeat([]*fastjson.Value{v}, n)
	}
	hosts, ports, rooms := lists("bootstrap_host"), lists("bootstrap_port"), lists("bootstrap_room")
	if len(hosts) != n || len(ports) != n || len(rooms) != n {
		return fmt.Errorf("bootstrap_host, bootstrap_port and bootstrap_room have %d, %d and %d values for %d prompts",
			len(hosts), len(ports), len(rooms), n)
	}
	single := body.Get("bootstrap_room").Type() != fastjson.TypeArray
	for i := range n {
		room, err := rooms[i].Int64()
		if err != nil {
			return fmt.Errorf("bootstrap_room: %w", err)
		}
		if single {
			room += int64(i)
		}
		b.rooms = append(b.rooms, room)
		b.hosts, b.ports = append(b.hosts, string(hosts[i].GetStringBytes())), append(b.ports, ports[i].GetInt())
	}
	g.bootstrap = b
	return nil
}

// roomKey names the meeting of a room at one rank of the prefill worker. Legs at different ranks do not meet.
func roomKey(rank int, room int64) string { return fmt.Sprintf("room %d at rank %d", room, rank) }

// refusesBootstrap returns the error of a request that does not fit a disaggregated SGLang, or "".
func (l *life) refusesBootstrap(g *generation) string {
	if l.cfg.Kind != SGLang || l.exchange == nil || g.bootstrap != nil {
		return ""
	}
	return fmt.Sprintf("Invalid request: Disaggregated request received without bootstrap room id. req.rid='%s'", g.requestID)
}

// bootstrapRank returns the rank that a request to the prefill worker gets if it names none; -1: any.
func (l *life) bootstrapRank(g *generation) int {
	if g.rank >= 0 || g.bootstrap == nil || l.exchange == nil || l.exchange.currentRole() != Prefill || l.cfg.Transfer.FreeRanks {
		return g.rank
	}
	return int(uint64(g.bootstrap.rooms[0]) % uint64(l.cfg.Ranks))
}

// prepareBootstrap sets what the engine model must know about a part.
func (x *run) prepareBootstrap(i int) {
	c, p := x.life.exchange, &x.parts[i]
	if c == nil || x.bootstrap == nil {
		return
	}
	p.progress.awaits = make(chan struct{}, 1)
	if c.currentRole() == Decode {
		p.request.Await, p.request.Received = true, len(p.request.Prompt)
		return
	}
	p.answer.tokens = p.answer.tokens[:1]
	p.answer.text, p.answer.call, p.answer.reason = min(p.answer.text, 1), nil, "length"
	p.request.Output, p.request.Pin = p.answer.tokens, true
}

// enterRooms brings the prefill worker's parts into their rooms, and waits until a reader is in each. It returns false
// if the request has failed or its client has left; leave must be called in any case.
func (x *run) enterRooms(r *http.Request) (ok bool, leave func()) {
	c := x.life.exchange
	if c == nil || x.bootstrap == nil || c.currentRole() != Prefill {
		return true, func() {}
	}
	var rooms []*room
	leave = func() {
		for i, rm := range rooms {
			c.finish(rm, "Aborted by AbortReq.")
			c.release(rm.key)
			c.leave(rm)
			c.freeRank(x.bootstrap.rooms[i])
		}
	}
	for i := range x.parts {
		number := x.bootstrap.rooms[i/x.choices]
		if x.life.server.faults.hits(wrongRoom) {
			number++
		}
		rm := c.enter(roomKey(x.rank.id, number))
		rooms = append(rooms, rm)
		x.parts[i].progress.room = rm
		c.setRank(number, x.rank.id)
	}
	c.count(func(s *transferStats) { s.waiting++ })
	defer c.count(func(s *transferStats) { s.waiting-- })
	timer := time.NewTimer(c.config.MeetTimeout)
	defer timer.Stop()
	for i, rm := range rooms {
		select {
		case <-rm.reader:
		case <-timer.C:
			c.count(func(s *transferStats) { s.failed++ })
			x.fail(x.bootstrapError("Prefill bootstrap failed for request rank=0 req.rid", "req.bootstrap_room", i,
				x.timeout(i, "Bootstrapping")))
			return false, leave
		case <-r.Context().Done():
			return false, leave
		case <-x.aborted:
			return false, leave
		}
	}
	return true, leave
}

// timeout returns the text of a request whose other leg did not come (common/conn.py).
func (x *run) timeout(i int, state string) string {
	return fmt.Sprintf("Request %d timed out after %.1fs in KVPoll.%s", x.bootstrap.rooms[i/x.choices],
		x.life.exchange.config.MeetTimeout.Seconds(), state)
}

// bootstrapError returns the text of a failed transfer in the form of prefill.py and decode.py.
func (x *run) bootstrapError(begin, roomName string, i int, problem string) string {
	number := x.bootstrap.rooms[i/x.choices]
	return fmt.Sprintf("%s='%s' %s=%d with exception KVTransferError(bootstrap_room=%d): %s",
		begin, x.requestID, roomName, number, number, problem)
}

// awaitReader waits until the decode worker has the blocks of a part of the prefill worker, and then lets the part end.
func (x *run) awaitReader(ctx context.Context, i int) {
	p, c := &x.parts[i], x.life.exchange
	select {
	case <-p.progress.room.leased:
	case <-p.progress.room.over:
	case <-ctx.Done():
		return
	}
	select {
	case <-p.progress.room.over:
	case <-ctx.Done():
		return
	}
	if problem := c.outcome(p.progress.room); problem != "" {
		x.rank.cancel([]*engine.Request{&p.request})
		x.fail(x.bootstrapError("Prefill transfer failed for request rank=0 req.rid", "req.bootstrap_room", i, problem))
		return
	}
	p.progress.advance(true)
}

// join meets the prefill worker in the room of a part, receives the blocks and lets the part go on.
func (x *run) join(ctx context.Context, i int) {
	p, c := &x.parts[i], x.life.exchange
	select {
	case <-p.progress.awaits:
	case <-ctx.Done():
		return
	}
	host, port := x.bootstrap.hosts[i/x.choices], x.bootstrap.ports[i/x.choices]
	if port == 0 {
		port = defaultBootstrapPort
	}
	url, name := address(host, port), fmt.Sprintf("%s:%d", host, port)
	fail := func(begin, problem string) {
		if ctx.Err() == nil {
			c.count(func(s *transferStats) { s.failed++ })
			x.rank.cancel([]*engine.Request{&p.request})
			x.fail(x.bootstrapError(begin+" decode_req.req.rid", "decode_req.req.bootstrap_room", i, problem))
		}
	}
	const handshake, transfer = "Decode handshake failed for request rank=0", "Decode transfer failed for request rank=0"
	info, err := c.prefillInfo(ctx, url, name)
	if err != nil {
		fail(handshake, err.Error())
		return
	}
	if info.PageSize != x.life.cfg.BlockSize { // RuntimeError in the scheduler (common/conn.py)
		x.life.killEngine()
		return
	}
	rank, err := x.prefillRank(ctx, url, i, info)
	if err != nil {
		fail(handshake, err.Error())
		return
	}
	order, missing := x.rank.missing(&p.request, nil)
	order.Room = roomKey(rank, x.bootstrap.rooms[i/x.choices])
	order.Bytes, order.GBs = float64(missing)*c.config.KVBytes, c.config.GBs
	limited, cancel := context.WithTimeout(ctx, c.config.MeetTimeout)
	defer cancel()
	result, err := c.read(limited, url, order)
	switch {
	case err == nil && result.Problem != "":
		fail(transfer, result.Problem)
	case err == nil:
		if !result.Valid {
			x.garble(p)
		}
		p.progress.cached = result.Cached
		x.rank.arrive(&p.request, missing)
	case limited.Err() != nil:
		fail(transfer, x.timeout(i, "WaitingForInput"))
	default:
		fail(transfer, fmt.Sprintf("Lost connection with prefill instance (bootstrap_addr: %s)", name))
	}
}

// engineError is an error in the words of the engine.
type engineError string

func (e engineError) Error() string { return string(e) }

// prefillInfo has the fields that a decode worker uses of a bootstrap server's answer about the whole prefill worker.
type prefillInfo struct {
	DPSize   int  `json:"dp_size"`
	PageSize int  `json:"page_size"`
	Follow   bool `json:"follow_bootstrap_room"`
}

// prefillInfo asks a bootstrap server about its prefill worker, up to 15 times (decode.py, _ensure_prefill_info).
func (x *exchange) prefillInfo(ctx context.Context, url, name string) (info prefillInfo, err error) {
	const tries = 15
	for range tries {
		if err = x.get(ctx, url+"/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1", &info); err == nil {
			return info, nil
		}
		if !sleepUntil(ctx, x.life.dead, time.Now().Add(x.config.RetryEvery)) {
			return info, ctx.Err()
		}
	}
	return info, engineError(fmt.Sprintf("Could not fetch prefill parallel info from %s after %d attempts", name, tries))
}

// prefillRank returns the rank of the prefill worker at which a part's room is: the rank that the request names, the
// rank that follows from the room, or the rank that the bootstrap server knows.
func (x *run) prefillRank(ctx context.Context, url string, i int, info prefillInfo) (int, error) {
	c, number := x.life.exchange, x.bootstrap.rooms[i/x.choices]
	rank := x.bootstrap.prefillRank
	switch {
	case rank >= 0:
	case info.Follow || info.DPSize == 1:
		rank = int(uint64(number) % uint64(max(info.DPSize, 1)))
	default:
		for rank < 0 {
			known := map[string]int{}
			response, err := c.post(ctx, url+"/query_dp_ranks", map[string]any{"bootstrap_rooms": []int64{number}})
			if err == nil {
				err = json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(&known)
				response.Body.Close()
			}
			if r, ok := known[strconv.FormatInt(number, 10)]; err == nil && ok {
				rank = r
			} else if !sleepUntil(ctx, x.life.dead, time.Now().Add(c.config.RetryEvery/10)) {
				return 0, context.Cause(ctx)
			}
		}
	}
	var there struct{}
	if err := c.get(ctx, fmt.Sprintf("%s/route?prefill_dp_rank=%d&prefill_cp_rank=0&target_tp_rank=0&target_pp_rank=0", url, rank), &there); err != nil {
		return 0, engineError(fmt.Sprintf("Could not fetch bootstrap info for: prefill_dp_rank: %d prefill_cp_rank: 0 target_tp_rank: 0 and target_pp_rank 0", rank))
	}
	return rank, nil
}

func (x *exchange) get(ctx context.Context, url string, v any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := x.peers.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	return json.NewDecoder(io.LimitReader(response.Body, 1<<20)).Decode(v)
}

// bootstrapRoutes serves SGLang's bootstrap server (common/conn.py, CommonKVBootstrapServer).
func (x *exchange) bootstrapRoutes(mux *http.ServeMux) {
	plain := func(w http.ResponseWriter, status int, words string) {
		writeBytes(w, status, "text/plain; charset=utf-8", []byte(words))
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { plain(w, http.StatusOK, "OK") })
	mux.HandleFunc("GET /route", func(w http.ResponseWriter, r *http.Request) {
		var numbers [4]int
		for i, name := range []string{"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"} {
			n, err := strconv.Atoi(r.URL.Query().Get(name))
			if err != nil {
				plain(w, http.StatusBadRequest, "Missing inputs for bootstrap server.")
				return
			}
			numbers[i] = n
		}
		l := x.life
		switch f, _ := l.server.faults.get(); {
		case time.Since(l.began) < f.LateBootstrap || x.currentRole() != Prefill:
			plain(w, http.StatusServiceUnavailable, "Prefill server not fully registered yet (0 workers registered).")
		case numbers == [4]int{-1, -1, -1, -1}:
			_, digits, _ := strings.Cut(l.server.Addr(), ":")
			port, _ := strconv.Atoi(digits)
			writeJSON(w, http.StatusOK, map[string]any{
				"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": l.cfg.Ranks, "pp_size": 1, "page_size": l.cfg.BlockSize,
				"kv_cache_dtype": "auto", "follow_bootstrap_room": !l.cfg.Transfer.FreeRanks,
				"enable_dsa_cache_layer_split": false, "decode_allocation_policy": "early", "enable_kv_cache_sharding": false,
				"prefill_http_port": port, "target_tp_rank": nil, "target_tp_ranks": nil, "target_cp_ranks": nil,
				"target_pp_ranks": nil, "required_dst_info_num": nil, "required_prefill_response_num": nil,
			})
		case numbers[0] < 0 || numbers[0] >= l.cfg.Ranks || numbers[1] != 0 || numbers[2] != 0 || numbers[3] != 0:
			plain(w, http.StatusNotFound, fmt.Sprintf("Bootstrap info not found for dp_rank=%d cp_rank=%d tp_rank=%d pp_rank=%d",
				numbers[0], numbers[1], numbers[2], numbers[3]))
		default:
			writeJSON(w, http.StatusOK, map[string]any{"rank_ip": x.host, "rank_port": x.port})
		}
	})
	mux.HandleFunc("POST /register_dp_rank", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Room int64 `json:"bootstrap_room"`
			Rank int   `json:"dp_rank"`
		}
		if readMessage(w, r, &in) {
			x.setRank(in.Room, in.Rank)
			plain(w, http.StatusOK, "OK")
		}
	})
	mux.HandleFunc("POST /query_dp_ranks", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Rooms []json.Number `json:"bootstrap_rooms"` // numbers or strings
		}
		if !readMessage(w, r, &in) {
			return
		}
		known := map[string]int{}
		x.mu.Lock()
		for _, number := range in.Rooms {
			if n, err := number.Int64(); err == nil {
				if rank, ok := x.rankOfRoom[n]; ok {
					known[number.String()] = rank
				}
			}
		}
		x.mu.Unlock()
		writeJSON(w, http.StatusOK, known)
	})
}

func (x *exchange) setRank(number int64, rank int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rankOfRoom[number] = rank
}

func (x *exchange) freeRank(number int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.rankOfRoom, number)
}

// currentRole returns the engine's role, which an SGLang can change while it runs.
func (x *exchange) currentRole() Role {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.role
}

// describeRole adds to an SGLang's /server_info what it says about disaggregation.
func (l *life) describeRole(info map[string]any) {
	t := &l.cfg.Transfer
	info["disaggregation_mode"], info["disaggregation_bootstrap_port"] = "null", defaultBootstrapPort
	info["disaggregation_transfer_backend"], info["enable_pd_role_switch"] = "mooncake", t.SwitchRoles
	info["load_balance_method"] = "round_robin"
	if l.exchange == nil {
		return
	}
	role := l.exchange.currentRole()
	info["disaggregation_mode"], info["disaggregation_bootstrap_port"] = role, l.exchange.port
	info["disaggregation_decode_enable_radix_cache"] = t.DecodeCache
	if role == Prefill && !t.FreeRanks {
		info["load_balance_method"] = "follow_bootstrap_room"
	}
}

// transferMetrics writes an SGLang's metrics of transfers (observability/metrics_collector.py).
func (l *life) transferMetrics(b *strings.Builder, stats []engine.Stats) {
	if l.exchange == nil {
		return
	}
	s, leases := l.exchange.stats()
	kind, awaiting := string(l.exchange.currentRole()), 0
	if l.cfg.Transfer.SwitchRoles {
		kind = "dynamic"
	}
	for i := range stats {
		awaiting += stats[i].Awaiting
	}
	for _, m := range []struct {
		name, kind string
		value      int
	}{
		{"num_prefill_bootstrap_queue_reqs", "gauge", s.waiting}, {"num_prefill_inflight_queue_reqs", "gauge", leases},
		{"num_decode_prealloc_queue_reqs", "gauge", 0}, {"num_decode_transfer_queue_reqs", "gauge", awaiting},
		{"num_transfer_failed_reqs_total", "counter", s.failed},
	} {
		fmt.Fprintf(b, "# TYPE sglang:%s %s\nsglang:%s{engine_type=%q,model_name=%q} %d\n", m.name, m.kind, m.name, kind, l.cfg.Model, m.value)
	}
}

// switchRole serves SGLang's /pd_role_switch (disaggregation/role_switch.py).
func (l *life) switchRole(w http.ResponseWriter, r *http.Request) {
	l.withBody(w, r, func(body *fastjson.Value) {
		old, role, prepare := Role("null"), Role(strings.ToLower(text(body, "new_role"))), body.GetBool("prepare_only")
		if l.exchange != nil {
			old = l.exchange.currentRole()
		}
		words, ok := "ok", false
		switch {
		case !l.cfg.Transfer.SwitchRoles:
			words = "--enable-pd-role-switch is not set on this server"
		case role != Prefill && role != Decode:
			words = fmt.Sprintf("invalid new_role='%s'", role)
		case role == old:
			ok = true
		case l.active.Load() > 0:
			words = "instance is not idle; drain all requests before switching"
		case prepare:
			words, ok = "ready", true
		default:
			ok = true
			l.reset() // the switch drops the prefix cache
			l.exchange.mu.Lock()
			l.exchange.role = role
			l.exchange.mu.Unlock()
		}
		status := http.StatusOK
		if !ok {
			status = http.StatusBadRequest
		}
		writeJSON(w, status, map[string]any{"rid": nil, "success": ok, "message": words, "old_role": old, "new_role": role,
			"safe_to_restore": !ok || words == "ready"})
	})
}
