package testenv_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/test/testenv"
)

// TestSmallCacheAndTwoRanks runs two engines, each with its own gateway: an engine with a small cache, and an engine
// with two data-parallel ranks.
func TestSmallCacheAndTwoRanks(t *testing.T) {
	root(t, "vllm")
	client := testenv.StartClient(t)
	small := begin(t, "small", launch{kind: "vllm", env: []string{"MAXLEN=1024", "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0"},
		args: []string{"--num-gpu-blocks-override", "65"}})
	ranks := begin(t, "ranks", launch{kind: "vllm", args: []string{"--data-parallel-size", "2"}})
	small.await(t)
	ranks.await(t)

	t.Run("evictions are followed", func(t *testing.T) {
		k := &clientTalk{client: client, gateway: testenv.Serve(t, "--worker", small.url)}
		k.gateway.Ready(t)
		waitTrust(t, k.gateway, "exact", 1)
		hits, misses := 0, 0
		for round := range 3 {
			for i := range 7 { // 7 prompts of about 12 blocks do not fit in the engine's 64 blocks
				r := k.chat(t, "tiny", []chatMessage{say("user", sentences(fmt.Sprintf("evict%d", i), 75))}, nil)
				r.exact(t, fmt.Sprintf("round %d prompt %d", round, i))
				again := k.chat(t, "tiny", []chatMessage{say("user", sentences(fmt.Sprintf("evict%d", i), 75)+"again")}, nil)
				again.exact(t, fmt.Sprintf("round %d prompt %d again", round, i))
				if round > 0 && r.cached == 0 {
					misses++
				}
				if again.cached > 0 {
					hits++
				}
			}
		}
		if hits == 0 || misses == 0 {
			t.Errorf("the cache was meant to both keep and evict: %d hits, %d evicted", hits, misses)
		}
	})
	t.Run("two ranks are two holders", func(t *testing.T) {
		k := &clientTalk{client: client, gateway: testenv.Serve(t, "--worker", ranks.url)}
		k.gateway.Ready(t)
		waitTrust(t, k.gateway, "exact", 2)
		history := make([][]chatMessage, 4)
		for turn := range 3 {
			for i := range history {
				history[i] = append(history[i], say("user", sentences(fmt.Sprintf("rank%dturn%d", i, turn), 80)))
				r := k.chat(t, "tiny", history[i], nil)
				r.exact(t, fmt.Sprintf("conversation %d turn %d", i, turn))
				if turn > 0 && r.cached == 0 {
					t.Errorf("conversation %d turn %d: nothing was cached: it went to the other rank", i, turn)
				}
				history[i] = append(history[i], say("assistant", r.Text))
			}
		}
		if used := ranksWithBlocks(t, k.gateway); used != 2 {
			t.Errorf("%d of 2 ranks hold blocks", used)
		}
	})
}

// TestHybridAndOffload runs a gemma-like model with sliding windows, and an engine with a CPU tier.
func TestHybridAndOffload(t *testing.T) {
	dir := root(t, "vllm")
	client := testenv.StartClient(t)
	spec, err := filepath.Abs("../engines/scripts/cpu_offload")
	if err != nil {
		t.Fatal(err)
	}
	hybrid := begin(t, "hybrid", launch{kind: "vllm", env: []string{"MODEL=" + dir + "/gemma3"}})
	offload := begin(t, "offload", launch{kind: "vllm", env: []string{"PYTHONPATH=" + spec, "MAXLEN=1024"},
		args: []string{"--num-gpu-blocks-override", "65", "--kv-transfer-config",
			`{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"CpuCopySpec",` +
				`"spec_module_path":"cpu_offload_spec","cpu_bytes_to_use":33554432,"self_describing_kv_events":true}}`}})
	hybrid.await(t)
	offload.await(t)

	t.Run("a hybrid model's prefix is never over-counted", func(t *testing.T) {
		k := &clientTalk{client: client, gateway: testenv.Serve(t, "--worker", hybrid.url)}
		k.gateway.Ready(t)
		ids := make([]int, 500)
		for i := range ids {
			ids[i] = 300 + i*11%3000
		}
		first := k.complete(t, "tiny", ids, nil)
		first.exact(t, "a new prompt of 500 tokens")
		again := k.complete(t, "tiny", ids, nil)
		again.neverOver(t, "the same prompt")
		if again.cached != 480 {
			t.Errorf("the same prompt reports %d cached tokens, want 480", again.cached)
		}
		short := k.complete(t, "tiny", ids[:200], nil)
		short.neverOver(t, "its own 200-token prefix")
		if short.cached != 0 {
			t.Errorf("its own 200-token prefix reports %d cached tokens, want 0: the window before the cut is gone", short.cached)
		}
		t.Logf("predicted %d of %d and %d of %d, trust %s", again.predicted, again.cached, short.predicted, short.cached, again.trust)
		if again.trust != "degraded" {
			t.Errorf("a hybrid model's trust is %q, want degraded", again.trust)
		}
	})
	t.Run("blocks in the CPU tier count", func(t *testing.T) {
		k := &clientTalk{client: client, gateway: testenv.Serve(t, "--worker", offload.url)}
		k.gateway.Ready(t)
		reloaded := 0
		for round := range 2 {
			for i := range 8 { // all prompts together fit in the CPU tier, but not in the GPU's 64 blocks
				r := k.chat(t, "tiny", []chatMessage{say("user", sentences(fmt.Sprintf("offload%d", i), 75))}, nil)
				r.exact(t, fmt.Sprintf("round %d prompt %d", round, i))
				if round == 1 && r.cached > 0 {
					reloaded++
				}
			}
		}
		if reloaded < 6 {
			t.Errorf("%d of 8 prompts came back from the CPU tier", reloaded)
		}
	})
}

// TestSGLang runs the basic tests with SGLang.
func TestSGLang(t *testing.T) {
	root(t, "sglang")
	client := testenv.StartClient(t)
	one := begin(t, "one", launch{kind: "sglang"})
	two := begin(t, "two", launch{kind: "sglang"})
	one.await(t)
	two.await(t)
	k := &clientTalk{client: client, gateway: testenv.Serve(t, "--worker", one.url, "--worker", two.url)}
	k.gateway.Ready(t)
	waitTrust(t, k.gateway, "exact", 2)
	waitFiles(t, k.gateway, root(t, "sglang")+"/tiny-llama")
	t.Run("conversations go home", func(t *testing.T) { conversations(t, k, "tiny", "") })
	t.Run("ids are made in process without a setting", func(t *testing.T) { foundFiles(t, k) })
	t.Run("ids made in process equal the engine's", func(t *testing.T) { sameIDs(t, root(t, "sglang")+"/tiny-llama", tokens.SGLang, one) })
	t.Run("ids in place of the text change nothing", func(t *testing.T) { forwardingSGLang(t, one, root(t, "sglang")+"/tiny-llama") })
	t.Run("a streamed conversation goes home", func(t *testing.T) { streamed(t, k) })
	t.Run("an extra key is never over-counted", func(t *testing.T) {
		messages := []chatMessage{say("user", sentences("extra", 150))}
		for round := range 2 {
			for _, key := range []string{"", "x", "y"} {
				extra := map[string]any{}
				if key != "" {
					extra["extra_key"] = key
				}
				r := k.chat(t, "tiny", messages, extra)
				r.neverOver(t, fmt.Sprintf("extra key %q round %d", key, round))
			}
		}
	})
	t.Run("a flushed cache", func(t *testing.T) {
		messages := []chatMessage{say("user", sentences("flush", 150))}
		k.chat(t, "tiny", messages, nil)
		one.post(t, "/flush_cache")
		two.post(t, "/flush_cache")
		k.settle(t)
		r := k.chat(t, "tiny", messages, nil)
		r.exact(t, "after a flush")
		if r.cached != 0 {
			t.Errorf("after a flush %d tokens are cached", r.cached)
		}
	})
}
