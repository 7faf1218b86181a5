package mockengine

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/valyala/fastjson"
)

// adapters are the LoRA adapters that are loaded, in the order of their loading.
type adapters struct {
	mu   sync.Mutex // guards list
	list []adapter
}

type adapter struct{ name, path string }

func (a *adapters) all() []adapter {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list)
}

// path returns the path of an adapter, "" if it is not loaded.
func (a *adapters) path(name string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.list {
		if a.list[i].name == name {
			return a.list[i].path
		}
	}
	return ""
}

// add returns false if an adapter of that name is loaded.
func (a *adapters) add(name, path string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.ContainsFunc(a.list, func(x adapter) bool { return x.name == name }) {
		return false
	}
	a.list = append(a.list, adapter{name, path})
	return true
}

// drop returns false if no adapter of that name is loaded.
func (a *adapters) drop(name string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := len(a.list)
	a.list = slices.DeleteFunc(a.list, func(x adapter) bool { return x.name == name })
	return len(a.list) < before
}

// dropOldest keeps at most n adapters.
func (a *adapters) dropOldest(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.list = slices.Delete(a.list, 0, max(len(a.list)-n, 0))
}

// absent is the answer of the engines' HTTP server at a path that they do not have.
func absent(w http.ResponseWriter) {
	writeBytes(w, http.StatusNotFound, "application/json", []byte(`{"detail":"Not Found"}`))
}

// loadAdapter loads an adapter, with vLLM's statuses and texts [vLLM 0.32 entrypoints/openai/models/serving.py] or
// SGLang's [SGLang 0.5.23 srt/managers/tokenizer_control_mixin.py, srt/lora/lora_registry.py].
func (l *life) loadAdapter(w http.ResponseWriter, r *http.Request) {
	if l.cfg.Kind == VLLM && !l.cfg.UpdateLoRA {
		absent(w)
		return
	}
	l.withBody(w, r, func(body *fastjson.Value) {
		name, path := text(body, "lora_name"), text(body, "lora_path")
		switch {
		case l.cfg.Kind == SGLang && !l.cfg.UpdateLoRA && len(l.cfg.LoRA) == 0:
			l.adapterDone(w, http.StatusBadRequest, "LoRA is not enabled. Please set `--enable-lora` to enable LoRA.")
		case name == "" || path == "":
			l.adapterDone(w, http.StatusBadRequest, "Both 'lora_name' and 'lora_path' must be provided.")
		case name == l.cfg.Model || slices.Contains(l.cfg.Served, name):
			l.adapterDone(w, http.StatusBadRequest, fmt.Sprintf("The lora adapter '%s' conflicts with a served base model.", name))
		case strings.Contains(path, "missing"):
			status := map[Kind]int{VLLM: http.StatusNotFound, SGLang: http.StatusBadRequest}[l.cfg.Kind]
			l.adapterDone(w, status, fmt.Sprintf("Loading lora %s failed: No adapter found for %s", name, path))
		case !l.adapters.add(name, path):
			words := "The lora adapter '%s' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True."
			if l.cfg.Kind == SGLang {
				words = "LoRA with name %s already exists."
			}
			l.adapterDone(w, http.StatusBadRequest, fmt.Sprintf(words, name))
		default:
			if l.cfg.Kind == SGLang {
				l.adapters.dropOldest(l.cfg.MaxLoRAs)
			}
			l.adapterDone(w, http.StatusOK, fmt.Sprintf("Success: LoRA adapter '%s' added successfully.", name))
		}
	})
}

// unloadAdapter is the opposite of loadAdapter. Requests under way go on.
func (l *life) unloadAdapter(w http.ResponseWriter, r *http.Request) {
	if l.cfg.Kind == VLLM && !l.cfg.UpdateLoRA {
		absent(w)
		return
	}
	l.withBody(w, r, func(body *fastjson.Value) {
		name := text(body, "lora_name")
		switch {
		case name == "":
			l.adapterDone(w, http.StatusBadRequest, "'lora_name' needs to be provided to unload a LoRA adapter.")
		case l.adapters.drop(name):
			l.adapterDone(w, http.StatusOK, fmt.Sprintf("Success: LoRA adapter '%s' removed successfully.", name))
		case l.cfg.Kind == SGLang:
			l.adapterDone(w, http.StatusBadRequest, fmt.Sprintf("LoRA with name %s does not exist.", name))
		default:
			l.adapterDone(w, http.StatusNotFound, fmt.Sprintf("The lora adapter '%s' cannot be found.", name))
		}
	})
}

// adapterDone answers an order about an adapter: vLLM with a text or an error, SGLang with an object.
func (l *life) adapterDone(w http.ResponseWriter, status int, words string) {
	switch {
	case l.cfg.Kind == SGLang:
		loaded := map[string]string{}
		for _, a := range l.adapters.all() {
			loaded[a.name] = a.path
		}
		reason := any(words)
		if status == http.StatusOK {
			reason = ""
		}
		writeJSON(w, status, map[string]any{"success": status == http.StatusOK, "error_message": reason, "loaded_adapters": loaded})
	case status == http.StatusOK:
		writeBytes(w, status, "text/plain; charset=utf-8", []byte(words))
	default:
		l.refuse(w, status, words)
	}
}
