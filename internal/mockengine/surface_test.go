package mockengine

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// decode sends a request, checks the status, and returns the decoded answer.
func decode(t *testing.T, s *Server, path string, body any, status int) object {
	t.Helper()
	got, data := call(t, s, path, body)
	var out object
	if err := json.Unmarshal(data, &out); got != status || err != nil {
		t.Fatalf("%s: status %d, %s; want %d", path, got, data, status)
	}
	return out
}

func TestModelsNameTheParentOfAdapters(t *testing.T) {
	s := start(t, func(c *Config) { c.LoRA, c.Served, c.MaxModelLen = []string{"ada"}, []string{"alias"}, 4096 })
	_, data := call(t, s, "/v1/models", nil)
	var list struct {
		Data []struct {
			ID, Root string
			Parent   *string
			Length   *int `json:"max_model_len"`
		}
	}
	if err := json.Unmarshal(data, &list); err != nil || len(list.Data) != 3 {
		t.Fatalf("models: %s", data)
	}
	base, alias, ada := list.Data[0], list.Data[1], list.Data[2]
	if base.ID != "mock" || base.Parent != nil || *base.Length != 4096 || alias.ID != "alias" || alias.Root != "mock" {
		t.Errorf("models: %s", data)
	}
	if ada.ID != "ada" || ada.Parent == nil || *ada.Parent != "mock" || ada.Length != nil {
		t.Errorf("adapter: %s", data)
	}
}

func TestTokenizeRenderAndTheEngineAgree(t *testing.T) {
	s := start(t, func(c *Config) { c.ScaleOut = true })
	bodies := []object{
		{"model": "mock", "messages": []any{userSays("plain")}},
		{"model": "mock", "messages": []any{object{"role": "system", "content": "be brief"}, userSays("q")},
			"tools": []any{object{"type": "function", "function": object{"name": "f"}}}},
		{"model": "mock", "messages": []any{userSays("Größe ▲"),
			object{"role": "assistant", "content": []any{object{"type": "text", "text": "a"}}}}, "continue_final_message": true,
			"add_generation_prompt": false},
		{"model": "mock", "messages": []any{userSays("k")}, "chat_template_kwargs": object{"enable_thinking": false}},
	}
	for i, body := range bodies {
		body["return_token_ids"] = true
		want := complete(t, s, chatPath, body).PromptIDs
		if got := rendered(t, s, body); !slices.Equal(got, want) {
			t.Errorf("body %d: render gives %v, the engine took %v", i, got, want)
		}
		var tokenized struct {
			Count  int
			Tokens []uint32
			Strs   []string `json:"token_strs"`
		}
		body["return_token_strs"] = true
		_, data := call(t, s, "/tokenize", body)
		if err := json.Unmarshal(data, &tokenized); err != nil || !slices.Equal(tokenized.Tokens, want) ||
			tokenized.Count != len(want) || len(tokenized.Strs) != len(want) {
			t.Errorf("body %d: tokenize gives %s, the engine took %v", i, data, want)
		}
	}
	// As in vLLM, /tokenize ignores some fields of a chat request, such as documents. With such a field, /tokenize counts
	// fewer tokens than the engine computes.
	body := object{"model": "mock", "messages": []any{userSays("d")}, "documents": []any{object{"text": "x"}}}
	if decode(t, s, "/tokenize", body, 200)["count"].(float64) >= float64(len(rendered(t, s, body))) {
		t.Error("tokenize knows documents")
	}
	text := "any text: 漢字 and so on"
	tokens := decode(t, s, "/tokenize", object{"model": "mock", "prompt": text, "add_special_tokens": false},
		200)["tokens"]
	if got := decode(t, s, "/detokenize", object{"tokens": tokens}, 200)["prompt"]; got != text {
		t.Errorf("detokenize gives %q, want %q", got, text)
	}
}

func TestRenderIsForbiddenByDefault(t *testing.T) {
	s := start(t, nil)
	for _, path := range []string{chatPath, textPath} {
		if status, _ := call(t, s, path+"/render", object{"model": "mock"}); status != http.StatusForbidden {
			t.Errorf("%s/render: status %d, want 403", path, status)
		}
	}
	s = start(t, func(c *Config) { c.ScaleOut = true })
	status, data := call(t, s, textPath+"/render", object{"model": "mock", "prompt": []any{"a", "b"}})
	var list []object
	if err := json.Unmarshal(data, &list); status != 200 || err != nil || len(list) != 2 {
		t.Errorf("completions render: %d %s", status, data)
	}
	image := object{"role": "user", "content": []any{object{"type": "image_url", "image_url": object{"url": "u"}}}}
	out := decode(t, s, chatPath+"/render", object{"model": "mock", "messages": []any{image}, "cache_salt": "s"}, 200)
	if out["cache_salt"] != "s" || out["features"].(object)["mm_hashes"] == nil {
		t.Errorf("render: %v", out)
	}
}

func TestVLLMSurface(t *testing.T) {
	s := start(t, func(c *Config) { c.Ranks, c.BlockSize, c.Blocks = 2, 32, 100 })
	if v := decode(t, s, "/version", nil, 200)["version"]; v != "0.32.0" {
		t.Errorf("version %v", v)
	}
	if status, _ := call(t, s, "/health", nil); status != 200 {
		t.Errorf("health %d", status)
	}
	for _, missing := range []string{"/server_info", "/v1/loads"} {
		if status, _ := call(t, s, missing, nil); status != 404 {
			t.Errorf("%s: status %d, want 404", missing, status)
		}
	}
	complete(t, s, chatPath, object{"model": "mock", "messages": []any{userSays("x")}})
	_, data := call(t, s, "/metrics", nil)
	for _, want := range []string{
		`vllm:num_requests_running{engine="0",model_name="mock"} 0`,
		`vllm:cache_config_info{block_size="32"`, `num_gpu_blocks="200"`, `kv_cache_size_tokens="3168"`, `engine="1"`,
		"vllm:prefix_cache_queries_total",
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("metrics miss %s", want)
		}
	}
	if decode(t, s, "/reset_prefix_cache", object{}, 200)["success"] != true {
		t.Error("reset refused while idle")
	}
	if n := len(s.CachedHashes(0, 0)) + len(s.CachedHashes(1, 0)); n != 0 {
		t.Errorf("%d blocks are cached after the reset", n)
	}
	if decode(t, s, "/load", nil, 200)["server_load"] != 0.0 {
		t.Error("idle server reports load")
	}
}

func TestSGLangSurface(t *testing.T) {
	s := start(t, func(c *Config) { c.Kind, c.Ranks, c.LoRA = SGLang, 2, []string{"ada"} })
	info := decode(t, s, "/server_info", nil, 200)
	if info["page_size"] != 16.0 || info["dp_size"] != 2.0 || info["kv_events"] != nil {
		t.Errorf("server_info %v", info)
	}
	decode(t, s, "/model_info", nil, 200)
	if loads := decode(t, s, "/v1/loads", nil, 200)["loads"].([]any); len(loads) != 2 {
		t.Errorf("loads %v", loads)
	}
	for _, missing := range []string{"/version", "/kv_event_sources"} {
		if status, _ := call(t, s, missing, nil); status != 404 {
			t.Errorf("%s: status %d, want 404", missing, status)
		}
	}
	body := object{"model": "mock", "messages": []any{userSays(long("sg", 60))}, "routed_dp_rank": 1,
		"return_token_ids": true}
	first := complete(t, s, chatPath, body)
	if first.Usage.Details != nil {
		t.Error("SGLang leaves out a zero of cached tokens")
	}
	if second := complete(t, s, chatPath, body); second.cached() <= 0 {
		t.Errorf("second: cached %d", second.cached())
	}
	if header := complete(t, s, chatPath, body, "X-Data-Parallel-Rank", "0"); header.cached() > 0 {
		t.Error("the header does not win over the body")
	}
	if ids := complete(t, s, chatPath, object{"model": "mock", "input_ids": first.PromptIDs,
		"routed_dp_rank": 1}); ids.cached() <= 0 {
		t.Errorf("as input_ids: cached %d", ids.cached())
	}
	for _, apart := range []string{"extra_key", "cache_salt"} {
		body[apart] = "tenant"
		if c := complete(t, s, chatPath, body); c.cached() > 0 {
			t.Errorf("%s does not keep requests apart", apart)
		}
		delete(body, apart)
	}
	if status, _ := call(t, s, "/flush_cache", nil); status != 200 {
		t.Errorf("flush_cache: status %d", status)
	}
	_, data := call(t, s, "/metrics", nil)
	if !strings.Contains(string(data), `sglang:page_size{dp_rank="1",model_name="mock"} 16`) {
		t.Errorf("metrics: %s", data)
	}
}

func TestTheKeyGuardsV1Only(t *testing.T) {
	s := start(t, func(c *Config) { c.APIKey = "secret" })
	body := object{"model": "mock", "messages": []any{userSays("x")}}
	if status, _ := call(t, s, chatPath, body); status != http.StatusUnauthorized {
		t.Errorf("without key: %d", status)
	}
	complete(t, s, chatPath, body, "Authorization", "Bearer secret")
	decode(t, s, "/tokenize", body, 200)
}

func TestCachedTokensCanBeHidden(t *testing.T) {
	s := start(t, func(c *Config) { c.HideCachedTokens = true })
	if c := complete(t, s, chatPath, object{"model": "mock", "messages": []any{userSays("x")}}); c.Usage.Details != nil {
		t.Errorf("usage %+v", c.Usage)
	}
}
