package mockengine

import (
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fastjson"

	"github.com/warmpath/warmpath/block"
)

// health answers 503 if the EngineCore was killed, and otherwise 200. A stalled engine answers 200, too, as real
// engines do.
func (l *life) health(w http.ResponseWriter, _ *http.Request) {
	if l.isDead() {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (l *life) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": l.cfg.Version})
}

// models lists the model under each of its names, and then the adapters with the model as their parent.
func (l *life) models(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID          string  `json:"id"`
		Object      string  `json:"object"`
		Created     int64   `json:"created"`
		OwnedBy     string  `json:"owned_by"`
		Root        string  `json:"root"`
		Parent      *string `json:"parent"`
		MaxModelLen *int    `json:"max_model_len"`
	}
	owner := string(l.cfg.Kind)
	if l.cfg.Transfer.Connector == TRTLLM {
		owner = "tensorrt_llm"
	}
	length := l.ranks[0].engine.MaxModelLen()
	var list []model
	add := func(id, root string, parent *string, length *int) {
		list = append(list, model{ID: id, Object: "model", Created: l.began.Unix(), OwnedBy: owner, Root: root,
			Parent: parent, MaxModelLen: length})
	}
	for _, id := range append([]string{l.cfg.Model}, l.cfg.Served...) {
		add(id, l.cfg.Model, nil, &length)
	}
	for _, a := range l.adapters.all() {
		add(a.name, a.path, &l.cfg.Model, nil)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// tokenize answers with the tokens of a prompt or of messages.
func (l *life) tokenize(w http.ResponseWriter, r *http.Request) {
	l.withBody(w, r, func(body *fastjson.Value) {
		var g generation
		if err := g.readModel(body, l); err != nil {
			l.refuseRequest(w, err)
			return
		}
		var tokens []block.Token
		switch {
		case body.Exists("messages"):
			o := chatOptions(body)
			o.forTokenize = true
			rendered, err := renderChat(body, o)
			if err != nil {
				l.refuse(w, http.StatusBadRequest, err.Error())
				return
			}
			tokens = rendered.tokens
		case body.Get("prompt") != nil && body.Get("prompt").Type() == fastjson.TypeString:
			v := body.Get("add_special_tokens")
			if v == nil || v.Type() != fastjson.TypeFalse {
				tokens = append(tokens, tokenBegin)
			}
			tokens = appendTokens(tokens, body.GetStringBytes("prompt"))
		default:
			l.refuse(w, http.StatusBadRequest, "prompt or messages: field required")
			return
		}
		buf := buffers.Get().(*[]byte)
		defer putBuffer(buf)
		out := append((*buf)[:0], `{"count":`...)
		out = strconv.AppendInt(out, int64(len(tokens)), 10)
		out = append(out, `,"max_model_len":`...)
		out = strconv.AppendInt(out, int64(l.ranks[0].engine.MaxModelLen()), 10)
		out = append(out, `,"tokens":`...)
		out = appendIDs(out, tokens)
		out = append(out, `,"token_strs":`...)
		out = appendPieces(out, tokens, body.GetBool("return_token_strs"))
		*buf = append(out, '}')
		writeBytes(w, http.StatusOK, "application/json", *buf)
	})
}

func appendPieces(dst []byte, tokens []block.Token, wanted bool) []byte {
	if !wanted {
		return append(dst, "null"...)
	}
	dst = append(dst, '[')
	for i, t := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		var piece [16]byte
		dst = appendString(dst, strings.ToValidUTF8(string(appendPiece(piece[:0], t)), "\uFFFD"))
	}
	return append(dst, ']')
}

func (l *life) detokenize(w http.ResponseWriter, r *http.Request) {
	l.withBody(w, r, func(body *fastjson.Value) {
		tokens, err := tokenList(body.GetArray("tokens"))
		if err != nil {
			l.refuse(w, http.StatusBadRequest, "tokens: "+err.Error())
			return
		}
		field := map[Kind]string{VLLM: "prompt", SGLang: "text"}[l.cfg.Kind]
		writeJSON(w, http.StatusOK, map[string]string{field: string(appendText(nil, tokens))})
	})
}

// render answers with the tokens of a request's prompts if Config.ScaleOut is set.
func (l *life) render(w http.ResponseWriter, r *http.Request) {
	if !l.cfg.ScaleOut {
		l.refuse(w, http.StatusForbidden, "This endpoint is disabled. Start the server with --enable-scale-out to enable it.")
		return
	}
	chat := strings.HasPrefix(r.URL.Path, "/v1/chat/")
	l.withBody(w, r, func(body *fastjson.Value) {
		g, err := l.readGeneration(body, chat, "")
		if err != nil {
			l.refuseRequest(w, err)
			return
		}
		out := make([]json.RawMessage, len(g.prompts))
		for i := range g.prompts {
			out[i] = l.renderedRequest(g, &g.prompts[i])
		}
		if chat {
			writeBytes(w, http.StatusOK, "application/json", out[0])
			return
		}
		writeJSON(w, http.StatusOK, out)
	})
}

// renderedRequest returns a prompt in the form of vLLM's GenerateRequest.
func (l *life) renderedRequest(g *generation, p *rendering) json.RawMessage {
	type placeholder struct {
		Offset int `json:"offset"`
		Length int `json:"length"`
	}
	var features any
	if len(p.features) > 0 {
		hashes, places := []string{}, []placeholder{}
		for _, f := range p.features {
			hashes = append(hashes, f.ID)
			places = append(places, placeholder{f.Offset, imageTokens})
		}
		features = map[string]any{
			"mm_hashes":       map[string]any{"image": hashes},
			"mm_placeholders": map[string]any{"image": places},
			"kwargs_data":     nil,
		}
	}
	var salt any
	if g.salt != "" {
		salt = g.salt
	}
	id := splitmix(l.salt<<32 ^ l.next.Add(1))
	body, err := json.Marshal(map[string]any{
		"request_id": "render-" + hex64(id.next()), "token_ids": p.tokens, "features": features, "model": g.model,
		"stream":     g.stream,
		"cache_salt": salt, "priority": 0, "sampling_params": map[string]any{"n": g.choices, "max_tokens": g.options.limit,
			"stop": g.options.stop},
	})
	if err != nil {
		panic("bug: encode render answer: " + err.Error())
	}
	return body
}

// flush empties the prefix cache. It serves vLLM's /reset_prefix_cache and SGLang's /flush_cache.
func (l *life) flush(w http.ResponseWriter, _ *http.Request) {
	ok := l.reset()
	if l.cfg.Kind == VLLM {
		writeJSON(w, http.StatusOK, map[string]bool{"success": ok})
		return
	}
	if !ok {
		writeBytes(w, http.StatusBadRequest, "text/plain", []byte("Flush cache failed: requests are running or waiting.\n"))
		return
	}
	writeBytes(w, http.StatusOK, "text/plain", []byte("Cache flushed.\n"))
}

// sleep empties the cache and lets the engine sleep. An engine with requests refuses.
func (l *life) sleep(w http.ResponseWriter, _ *http.Request) {
	if !l.reset() {
		l.refuse(w, http.StatusBadRequest, "requests are running or waiting")
		return
	}
	l.asleep.Store(true)
	w.WriteHeader(http.StatusOK)
}

func (l *life) wake(w http.ResponseWriter, _ *http.Request) {
	l.asleep.Store(false)
	w.WriteHeader(http.StatusOK)
}

func (l *life) isSleeping(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]bool{"is_sleeping": l.asleep.Load()})
}

// eventSources answers as vLLM's /kv_event_sources: an object with the publisher of each rank, under the rank's number.
func (l *life) eventSources(w http.ResponseWriter, _ *http.Request) {
	sources := map[string]any{}
	for _, s := range l.server.Sources() {
		var replay any
		if s.Replay != "" {
			replay = s.Replay
		}
		sources[strconv.Itoa(s.Rank)] = map[string]any{
			"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": s.Endpoint, "replay_endpoint": replay,
			"buffer_steps": l.cfg.BufferSteps, "hwm": 100000, "max_queue_size": 100000, "topic": s.Topic,
		}
	}
	writeJSON(w, http.StatusOK, sources)
}

// serverInfo answers as SGLang's /server_info: the server's arguments and the addresses of its events.
func (l *life) serverInfo(w http.ResponseWriter, _ *http.Request) {
	info := map[string]any{
		"model_path": l.cfg.Model, "served_model_name": l.cfg.Model, "page_size": l.cfg.BlockSize, "dp_size": l.cfg.Ranks,
		"context_length": l.ranks[0].engine.MaxModelLen(), "max_total_num_tokens": (l.cfg.Blocks - 1) * l.cfg.BlockSize,
		"version": l.cfg.Version, "tp_size": 1, "pp_size": 1, "internal_states": []any{}, "kv_events": nil,
		"enable_lora": l.cfg.UpdateLoRA || len(l.cfg.LoRA) > 0, "max_loras_per_batch": l.cfg.MaxLoRAs, "max_loaded_loras": l.cfg.MaxLoRAs,
		"enable_cache_report": !l.cfg.HideCachedTokens, "disable_radix_cache": l.cfg.NoPrefixCaching,
	}
	l.describeRole(info)
	if sources := l.server.Sources(); len(sources) > 0 && !l.cfg.HideEventSources {
		host, port := splitEndpoint(sources[0].Endpoint)
		events := map[string]any{
			"publisher": "zmq", "endpoint_host": host, "endpoint_port_base": port, "topic": sources[0].Topic,
			"block_size": l.cfg.BlockSize, "dp_size": l.cfg.Ranks,
		}
		if sources[0].Replay != "" {
			_, events["replay_endpoint_port_base"] = splitEndpoint(sources[0].Replay)
		}
		info["kv_events"] = events
	}
	writeJSON(w, http.StatusOK, info)
}

func splitEndpoint(endpoint string) (host string, port int) {
	host, digits, err := net.SplitHostPort(strings.TrimPrefix(endpoint, "tcp://"))
	if err != nil {
		return endpoint, 0
	}
	port, _ = strconv.Atoi(digits)
	return host, port
}

func (l *life) modelInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"model_path": l.cfg.Model, "tokenizer_path": l.cfg.Model,
		"is_generation": true})
}

// loads answers as SGLang's /v1/loads: with the load of each rank.
func (l *life) loads(w http.ResponseWriter, _ *http.Request) {
	var list []map[string]any
	for _, r := range l.ranks {
		s := r.stats()
		total := s.Blocks * l.cfg.BlockSize
		used := s.UsedBlocks * l.cfg.BlockSize
		list = append(list, map[string]any{
			"dp_rank": r.id, "num_running_reqs": s.Running, "num_waiting_reqs": s.Waiting, "num_used_tokens": used,
			"num_total_tokens": used, "max_total_num_tokens": total, "token_usage": float64(used) / float64(total),
			"cache_hit_rate": hitRate(s.Hits, s.Queries),
		})
	}
	writeJSON(w, http.StatusOK, map[string]any{"timestamp": time.Now().Format(time.RFC3339), "dp_rank_count": l.cfg.Ranks,
		"loads": list})
}

func hitRate(hits, queries uint64) float64 {
	if queries == 0 {
		return 0
	}
	return float64(hits) / float64(queries)
}

func (l *life) load(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]int64{"server_load": l.active.Load()})
}
