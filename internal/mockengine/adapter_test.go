package mockengine

import (
	"strings"
	"testing"
)

func TestAdaptersAreLoadedAndUnloaded(t *testing.T) {
	for kind, prefix := range map[Kind]string{VLLM: "/v1", SGLang: ""} {
		s := start(t, func(c *Config) { c.Kind, c.UpdateLoRA, c.MaxLoRAs = kind, true, 2 })
		does := func(what string, body object, want int, words string) {
			t.Helper()
			if status, text := call(t, s, prefix+what, body); status != want || !strings.Contains(string(text), words) {
				t.Errorf("%s %s %v: %d %s, want %d with %q", kind, what, body, status, text, want, words)
			}
		}
		ask := object{"model": "sql", "messages": []any{userSays("hi")}}
		if status, text := call(t, s, chatPath, ask); status != 404 {
			t.Errorf("%s before the load: %d %s", kind, status, text)
		}
		does("/load_lora_adapter", object{"lora_name": "sql", "lora_path": "/a/sql"}, 200, "")
		if status, text := call(t, s, chatPath, ask); status != 200 {
			t.Errorf("%s after the load: %d %s", kind, status, text)
		}
		if _, text := call(t, s, "/v1/models", nil); !strings.Contains(string(text), `"root":"/a/sql","parent":"mock"`) {
			t.Errorf("%s: models %s", kind, text)
		}
		does("/load_lora_adapter", object{"lora_name": "sql"}, 400, "lora_path")
		does("/load_lora_adapter", object{"lora_name": "x", "lora_path": "/missing"}, map[Kind]int{VLLM: 404, SGLang: 400}[kind], "No adapter found for /missing")
		does("/load_lora_adapter", object{"lora_name": "mock", "lora_path": "/a"}, 400, "conflicts")
		does("/load_lora_adapter", object{"lora_name": "sql", "lora_path": "/a/sql"}, 400, map[Kind]string{VLLM: "has already been loaded", SGLang: "already exists"}[kind])
		does("/unload_lora_adapter", object{"lora_name": "sql"}, 200, "")
		does("/unload_lora_adapter", object{"lora_name": "sql"}, map[Kind]int{VLLM: 404, SGLang: 400}[kind], "sql")
		for _, name := range []string{"x", "y", "z"} {
			does("/load_lora_adapter", object{"lora_name": name, "lora_path": "/a/" + name}, 200, "")
		}
		_, text := call(t, s, "/v1/models", nil)
		if has := strings.Contains(string(text), `"id":"x"`); has != (kind == VLLM) {
			t.Errorf("%s with two slots and three adapters: %s", kind, text)
		}
	}
}

func TestAdaptersAreLoadedOnlyIfAllowed(t *testing.T) {
	s := start(t, nil)
	if status, text := call(t, s, "/v1/load_lora_adapter", object{"lora_name": "sql", "lora_path": "/a/sql"}); status != 404 || !strings.Contains(string(text), `{"detail":"Not Found"}`) {
		t.Errorf("vLLM: %d %s", status, text)
	}
	s = start(t, func(c *Config) { c.Kind = SGLang })
	if status, text := call(t, s, "/load_lora_adapter", object{"lora_name": "sql", "lora_path": "/a/sql"}); status != 400 || !strings.Contains(string(text), "LoRA is not enabled") {
		t.Errorf("SGLang: %d %s", status, text)
	}
}

// TestThePathOfAnAdapterSeparatesBlocks: as in vLLM, an adapter that was loaded again from the same path finds its
// blocks, and one from another path does not.
func TestThePathOfAnAdapterSeparatesBlocks(t *testing.T) {
	s := start(t, func(c *Config) { c.UpdateLoRA = true })
	cached := func() int {
		t.Helper()
		return complete(t, s, chatPath, object{"model": "sql", "messages": []any{userSays(strings.Repeat("word ", 100))}}).Usage.Details.Cached
	}
	load := func(path string) {
		call(t, s, "/v1/unload_lora_adapter", object{"lora_name": "sql"})
		if status, text := call(t, s, "/v1/load_lora_adapter", object{"lora_name": "sql", "lora_path": path}); status != 200 {
			t.Fatalf("%d %s", status, text)
		}
	}
	load("/a")
	cached()
	load("/a")
	if cached() == 0 {
		t.Error("the same path again: nothing is cached")
	}
	load("/b")
	if n := cached(); n != 0 {
		t.Errorf("another path: %d cached tokens", n)
	}
}
