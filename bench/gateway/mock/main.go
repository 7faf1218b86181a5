// Command mock is a worker that computes nothing. It answers each chat request with a stream of 64 chunks of text, and
// flushes each chunk. It answers a prefill leg over NIXL in one piece, as vLLM does, and takes any decode leg. It also
// answers the requests by which routers learn about a worker. bench/gateway/run.sh measures routers in front of two
// such workers.
//
//	mock -addr 127.0.0.1:9001 -name w1 [-delay 5ms] [-tokens=false]
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	model   = "mock"
	chunks  = 64
	created = 1760000000
	id      = "chatcmpl-0123456789abcdef0123456789abcdef"
)

func main() {
	address := flag.String("addr", "127.0.0.1:9001", "HOST:PORT to listen at")
	name := flag.String("name", "w", "the first chunk's text, and the worker's name")
	delay := flag.Duration("delay", 0, "pause between chunks; GET /setdelay?d=5ms changes it")
	ids := flag.Bool("tokens", true, "answer questions for token ids; the ids are those of no tokenizer")
	flag.Parse()
	w := newWorker(*name)
	w.ids = *ids
	w.delay.Store(int64(*delay))
	log.Printf("%s listens at %s", *name, *address)
	log.Fatal(http.ListenAndServe(*address, w.routes()))
}

type worker struct {
	name              string
	ids               bool         // answers questions for token ids
	first, next, last []byte       // chunks of a stream
	delay             atomic.Int64 // pause between chunks, in ns
	running           atomic.Int64 // number of requests under way
}

func newWorker(name string) *worker {
	chunk := func(delta any, finish any) []byte {
		data, err := json.Marshal(map[string]any{"id": id, "object": "chat.completion.chunk", "created": created, "model": model,
			"choices": []any{map[string]any{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}}})
		if err != nil {
			panic(fmt.Sprintf("bug: encode a chunk: %v", err))
		}
		return fmt.Appendf(nil, "data: %s\n\n", data)
	}
	return &worker{
		name:  name,
		first: chunk(map[string]string{"role": "assistant", "content": name}, nil),
		next:  chunk(map[string]string{"content": " token"}, nil),
		last:  chunk(map[string]string{}, "stop"),
	}
}

func (w *worker) routes() http.Handler {
	mux := http.NewServeMux()
	answer := func(value any, paths ...string) {
		for _, path := range paths {
			mux.HandleFunc(path, func(out http.ResponseWriter, _ *http.Request) { writeJSON(out, value) })
		}
	}
	mux.HandleFunc("/health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/health_generate", func(http.ResponseWriter, *http.Request) {})
	answer(map[string]string{"version": "0.11.0"}, "/version")
	answer(map[string]any{"object": "list", "data": []any{map[string]any{"id": model, "object": "model", "created": created,
		"owned_by": "mock", "root": model, "max_model_len": 131072}}}, "/v1/models")
	answer(map[string]any{"model_path": model, "tokenizer_path": model, "is_generation": true, "preferred_sampling_params": nil,
		"weight_version": "default", "has_image_understanding": false, "has_audio_understanding": false, "model_type": "llama",
		"architectures": []string{"LlamaForCausalLM"}}, "/get_model_info", "/model_info")
	answer(map[string]any{"model_path": model, "model_id": model, "served_model_name": model, "tp_size": 1, "dp_size": 1,
		"load_balance_method": "round_robin", "disaggregation_mode": "null", "version": "0.5.0", "max_total_tokens": 1000000,
		"max_num_reqs": 256, "max_prefill_tokens": 16384, "status": "ready", "internal_states": []any{map[string]any{}}},
		"/get_server_info", "/server_info")
	mux.HandleFunc("/get_load", func(out http.ResponseWriter, _ *http.Request) {
		writeJSON(out, []any{map[string]any{"dp_rank": 0, "num_reqs": w.running.Load(), "num_waiting_reqs": 0, "num_tokens": 0}})
	})
	mux.HandleFunc("/setdelay", func(out http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.URL.Query().Get("d"))
		if err != nil {
			http.Error(out, err.Error(), http.StatusBadRequest)
			return
		}
		w.delay.Store(int64(d))
	})
	mux.HandleFunc("/v1/chat/completions", w.chat)
	if !w.ids {
		return mux
	}
	// Routers ask a vLLM worker for token ids at these two paths.
	mux.HandleFunc("/v1/chat/completions/render", func(out http.ResponseWriter, r *http.Request) {
		ids := tokens(r.Body)
		writeJSON(out, map[string]any{"request_id": "chatcmpl-0", "token_ids": ids, "features": nil,
			"sampling_params": map[string]any{"temperature": 1.0, "max_tokens": chunks}, "model": model, "stream": false, "priority": 0})
	})
	mux.HandleFunc("/tokenize", func(out http.ResponseWriter, r *http.Request) {
		ids := tokens(r.Body)
		writeJSON(out, map[string]any{"count": len(ids), "max_model_len": 131072, "tokens": ids, "token_strs": nil})
	})
	return mux
}

func writeJSON(out http.ResponseWriter, value any) {
	out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(out).Encode(value) // an error means that the client has closed the connection
}

// tokens returns one token id for each 4 bytes of a body. The id depends only on these bytes, so bodies that begin
// alike have ids that begin alike.
func tokens(body io.Reader) []uint32 {
	data, _ := io.ReadAll(body)
	ids := []uint32{}
	for ; len(data) >= 4; data = data[4:] {
		ids = append(ids, (uint32(data[0])|uint32(data[1])<<8|uint32(data[2])<<16|uint32(data[3])<<24)*2654435761>>15)
	}
	return ids
}

func (w *worker) chat(out http.ResponseWriter, r *http.Request) {
	w.running.Add(1)
	defer w.running.Add(-1)
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has closed the connection
	}
	delay := time.Duration(w.delay.Load())
	prompt := len(body) / 4
	if bytes.Contains(body, []byte(`"do_remote_decode":true`)) {
		prefill(out, prompt)
		return
	}
	usage := `"usage":{"prompt_tokens":` + strconv.Itoa(prompt) + `,"completion_tokens":` + strconv.Itoa(chunks) +
		`,"total_tokens":` + strconv.Itoa(prompt+chunks) + `}`
	out.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	out.Header().Set("Cache-Control", "no-cache")
	flusher := out.(http.Flusher)
	for i := range chunks {
		chunk := w.next
		if i == 0 {
			chunk = w.first
		} else if delay > 0 {
			time.Sleep(delay)
		}
		if _, err := out.Write(chunk); err != nil {
			return
		}
		flusher.Flush()
	}
	_, _ = out.Write(w.last)
	fmt.Fprintf(out, `data: {"id":%q,"object":"chat.completion.chunk","created":%d,"model":%q,"choices":[],%s}`+"\n\n", id, created, model, usage)
	flusher.Flush()
	_, _ = io.WriteString(out, "data: [DONE]\n\n")
}

// prefill answers a prefill leg. The fields of kv_transfer_params are those of vLLM 0.32.
func prefill(out http.ResponseWriter, prompt int) {
	blocks := make([]int, (prompt+15)/16)
	for i := range blocks {
		blocks[i] = i + 1
	}
	writeJSON(out, map[string]any{
		"id": id, "object": "chat.completion", "created": created, "model": model,
		"choices": []any{map[string]any{"index": 0, "message": map[string]any{"role": "assistant", "content": " token"}, "finish_reason": "length"}},
		"usage":   map[string]any{"prompt_tokens": prompt, "completion_tokens": 1, "total_tokens": prompt + 1},
		"kv_transfer_params": map[string]any{
			"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [][]int{blocks}, "remote_engine_id": "p0",
			"remote_request_id": id, "remote_host": "127.0.0.1", "remote_port": 5600, "tp_size": 1, "dcp_size": 1, "pp_size": 1,
			"remote_num_tokens": prompt, "remote_blocks_expiry_time": nil, "transfer_mode": "pull", "remote_prefill_cached_tokens": 0,
		},
	})
}
