package mockengine

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/valyala/fastjson"
)

// handler returns the HTTP API. While the fault Frozen is on, only /mock/fault answers.
func (l *life) handler() http.Handler {
	mux := http.NewServeMux()
	l.routes(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.gate.enter() {
			panic(http.ErrAbortHandler)
		}
		defer l.gate.leave()
		if r.URL.Path == "/mock/fault" {
			mux.ServeHTTP(w, r)
			return
		}
		if !l.server.faults.hold(r.Context(), frozen) {
			panic(http.ErrAbortHandler)
		}
		if key := l.cfg.APIKey; key != "" && strings.HasPrefix(r.URL.Path, "/v1/") &&
			r.Header.Get("Authorization") != "Bearer "+key {
			writeJSON(w, http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (l *life) routes(mux *http.ServeMux) {
	mux.HandleFunc("POST /mock/fault", l.setFault)
	mux.HandleFunc("GET /mock/fault", l.showFaults)
	mux.HandleFunc("POST /v1/chat/completions", l.generate)
	mux.HandleFunc("POST /v1/completions", l.generate)
	mux.HandleFunc("GET /v1/models", l.models)
	mux.HandleFunc("POST /tokenize", l.tokenize)
	mux.HandleFunc("POST /detokenize", l.detokenize)
	mux.HandleFunc("GET /health", l.health)
	mux.HandleFunc("GET /metrics", l.metrics)
	mux.HandleFunc("POST /v1/messages", l.messages)
	mux.HandleFunc("POST /v1/messages/count_tokens", l.countTokens)
	mux.HandleFunc("POST /v1/responses", l.respond)
	mux.HandleFunc("GET /v1/responses/{id}", l.keptResponse)
	mux.HandleFunc("DELETE /v1/responses/{id}", l.keptResponse)
	mux.HandleFunc("POST /v1/responses/{id}/cancel", l.keptResponse)
	mux.HandleFunc("GET /v1/responses/{id}/input_items", l.inputItems)
	mux.HandleFunc("POST /v1/embeddings", l.embeddings)
	mux.HandleFunc("POST /v1/rerank", l.rerank)
	mux.HandleFunc("POST /v1/score", l.score)
	mux.HandleFunc("POST /classify", l.classify)
	if l.cfg.Kind == SGLang {
		mux.HandleFunc("POST /v1/tokenize", l.tokenize)
		mux.HandleFunc("POST /v1/detokenize", l.detokenize)
		mux.HandleFunc("GET /health_generate", l.health)
		mux.HandleFunc("GET /server_info", l.serverInfo)
		mux.HandleFunc("GET /get_server_info", l.serverInfo)
		mux.HandleFunc("GET /model_info", l.modelInfo)
		mux.HandleFunc("GET /get_model_info", l.modelInfo)
		mux.HandleFunc("GET /v1/loads", l.loads)
		mux.HandleFunc("/flush_cache", l.flush)
		mux.HandleFunc("POST /generate", l.sglangGenerate)
		mux.HandleFunc("POST /release_memory_occupation", l.sleep)
		mux.HandleFunc("POST /resume_memory_occupation", l.wake)
		mux.HandleFunc("POST /v1/classify", l.classify)
		mux.HandleFunc("POST /abort_request", l.abort)
		mux.HandleFunc("POST /pd_role_switch", l.switchRole)
		mux.HandleFunc("POST /load_lora_adapter", l.loadAdapter)
		mux.HandleFunc("POST /unload_lora_adapter", l.unloadAdapter)
		return
	}
	mux.HandleFunc("POST /sleep", l.sleep)
	mux.HandleFunc("POST /wake_up", l.wake)
	mux.HandleFunc("POST /v1/load_lora_adapter", l.loadAdapter)
	mux.HandleFunc("POST /v1/unload_lora_adapter", l.unloadAdapter)
	mux.HandleFunc("GET /is_sleeping", l.isSleeping)
	mux.HandleFunc("POST /rerank", l.rerank)
	mux.HandleFunc("POST /v2/rerank", l.rerank)
	mux.HandleFunc("POST /score", l.score)
	mux.HandleFunc("POST /v1/audio/transcriptions", l.transcribe)
	mux.HandleFunc("POST /v1/audio/translations", l.transcribe)
	mux.HandleFunc("POST /v1/audio/speech", l.speak)
	mux.HandleFunc("POST /v1/images/generations", l.draw)
	mux.HandleFunc("POST /v1/images/edits", l.draw)
	mux.HandleFunc("POST /v1/chat/completions/render", l.render)
	mux.HandleFunc("POST /v1/completions/render", l.render)
	mux.HandleFunc("GET /version", l.version)
	mux.HandleFunc("/ping", l.health)
	mux.HandleFunc("GET /load", l.load)
	mux.HandleFunc("POST /reset_prefix_cache", l.flush)
	if l.cfg.DevMode {
		mux.HandleFunc("GET /server_info", l.vllmServerInfo)
	}
	if !l.cfg.HideEventSources {
		mux.HandleFunc("GET /kv_event_sources", l.eventSources)
	}
}

// bodies pools read buffers. Large buffers are not returned to the pool.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

const keptBody = 1 << 20

// errBodyTooLarge says that a request body is larger than Config.BodyLimit.
var errBodyTooLarge = errors.New("request body is larger than the limit")

// readBody reads the body into buf, at most limit bytes.
func readBody(r *http.Request, buf []byte, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return buf, errBodyTooLarge
	}
	if n := r.ContentLength; n > 0 && int64(cap(buf)) < n+1 {
		buf = make([]byte, 0, min(n+1, keptBody))
	}
	buf = buf[:0]
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if int64(len(buf)) > limit {
			return buf, errBodyTooLarge
		}
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}

var parsers fastjson.ParserPool

// withBody reads and parses the body, and calls f with the result. The result is valid during the call only. If the
// body is invalid, withBody answers the request itself.
func (l *life) withBody(w http.ResponseWriter, r *http.Request, f func(*fastjson.Value)) {
	pooled := bodies.Get().(*[]byte)
	defer func() {
		if cap(*pooled) <= keptBody {
			bodies.Put(pooled)
		}
	}()
	raw, err := readBody(r, *pooled, l.cfg.BodyLimit)
	*pooled = raw
	switch {
	case errors.Is(err, errBodyTooLarge):
		l.refuse(w, http.StatusRequestEntityTooLarge, err.Error())
		return
	case err != nil:
		panic(http.ErrAbortHandler) // a read error means that the client is gone
	}
	// The engines' JSON parser (Python) refuses text that is not UTF-8, but fastjson accepts it.
	if !utf8.Valid(raw) {
		l.refuse(w, http.StatusBadRequest, "body is not UTF-8")
		return
	}
	parser := parsers.Get()
	defer parsers.Put(parser)
	body, err := parser.ParseBytes(raw)
	if err != nil {
		l.refuse(w, http.StatusBadRequest, "body is not JSON: "+err.Error())
		return
	}
	f(body)
}

// refuse answers with an error in the shape of the engine's OpenAI API.
func (l *life) refuse(w http.ResponseWriter, status int, message string) {
	writeBytes(w, status, "application/json", errorBody(nil, status, message))
}

// errorBody appends the error object of the engine's OpenAI API to dst.
func errorBody(dst []byte, status int, message string) []byte {
	kind := map[int]string{
		http.StatusBadRequest:            "BadRequestError",
		http.StatusNotFound:              "NotFoundError",
		http.StatusForbidden:             "ForbiddenError",
		http.StatusRequestEntityTooLarge: "BadRequestError",
	}[status]
	if kind == "" {
		kind = "InternalServerError"
	}
	body, err := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil,
		"code": status}})
	if err != nil {
		panic("bug: encode error body: " + err.Error())
	}
	return append(dst, body...)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		panic("bug: encode answer: " + err.Error())
	}
	writeBytes(w, status, "application/json", body)
}

// writeBytes sends the answer. It ignores an error of Write, because the error means that the client is gone.
func writeBytes(w http.ResponseWriter, status int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
