package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/proxy"
)

// The orders about adapters, as labels of a metric.
const (
	loadOrder   = "load"
	unloadOrder = "unload"
)

// orderFailure says why a worker did not carry out an order about an adapter.
type orderFailure struct {
	status int    // 0: there was no answer
	words  string // for clients
	cause  error  // for the log
	unable bool   // the engine does not know the order
}

// order tells a worker to load or unload an adapter. All engines but SGLang are asked as vLLM [vLLM 0.32
// entrypoints/serve/lora/api_router.py; SGLang 0.5.23 srt/entrypoints/http_server.py]. A worker that has done it
// already counts as a success.
func (a *adapters) order(ctx context.Context, w *fleet.Worker, what string, one *Adapter) *orderFailure {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.Load().Timeout)
	defer cancel()
	fields := map[string]string{"lora_name": one.Name}
	if what == loadOrder {
		fields["lora_path"] = one.Path
	}
	body, err := json.Marshal(fields)
	if err != nil {
		panic("bug: marshal an order: " + err.Error())
	}
	path := "/v1/" + what + "_lora_adapter"
	if w.Facts.Engine == fleet.EngineSGLang {
		path = "/" + what + "_lora_adapter"
	}
	var reply reply
	attempt := proxy.Attempt{
		Worker: w.URL, Path: path, Body: body, Header: http.Header{"Content-Type": {"application/json"}},
		Unchecked: true, Dialect: api.OpenAIChat, Writer: &reply,
	}
	result := a.g.Client.Forward(ctx, &attempt)
	if result.Class == proxy.Success {
		return nil
	}
	f := &orderFailure{status: result.Status, cause: result.Err}
	switch {
	case result.Answer != nil:
		f.words = wordsOf(result.Answer.Body)
	case result.Status != 0:
		f.words = wordsOf(reply.body.Bytes())
	case ctx.Err() != nil:
		f.words = "the worker did not answer in time (adapter_timeout)"
	default:
		f.words = "the worker did not answer"
	}
	if done(what, f.words) {
		return nil
	}
	if f.status == http.StatusNotFound && !strings.Contains(strings.ToLower(f.words), "adapter") {
		f.unable = true
		f.words = "the engine has no " + path + "; vLLM needs VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment and --enable-lora"
	}
	return f
}

// done reports whether the words of a refusal say that the order was carried out before. The words are vLLM's [0.32
// entrypoints/openai/models/serving.py] and SGLang's [0.5.23 srt/lora/lora_registry.py].
func done(what, words string) bool {
	if what == loadOrder {
		return strings.Contains(words, "has already been loaded") || strings.Contains(words, "already exists")
	}
	return strings.Contains(words, "cannot be found") || strings.Contains(words, "does not exist")
}

// wordsOf returns the message in an engine's answer; the answer itself if it has none.
func wordsOf(body []byte) string {
	var answer struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"` // vLLM
		Reason string `json:"error_message"` // SGLang
	}
	body = body[:min(len(body), maxReply)]
	words := string(bytes.TrimSpace(body))
	if json.Unmarshal(body, &answer) == nil {
		switch {
		case answer.Error.Message != "":
			words = answer.Error.Message
		case answer.Reason != "":
			words = answer.Reason
		}
	}
	if words == "" {
		return "the worker refused without a word"
	}
	return strings.ToValidUTF8(words, "\uFFFD")
}
