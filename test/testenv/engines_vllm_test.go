package testenv_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/test/testenv"
)

// TestTwoPlainWorkers runs the gateway in front of two engines, with their URLs as its only configuration.
func TestTwoPlainWorkers(t *testing.T) {
	dir := root(t, "vllm")
	client := testenv.StartClient(t)
	lora := []string{"--enable-lora", "--max-loras", "2", "--max-lora-rank", "8",
		"--lora-modules", "a=" + dir + "/lora-a", "b=" + dir + "/lora-b", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"}
	// The first engine serves /render, and the second does not. The events of the first engine have integers as hashes,
	// and the events of the second have bytes.
	model := dir + "/tiny-turns"
	one := begin(t, "one", launch{kind: "vllm", args: append(slices.Clone(lora), "--enable-scale-out"), env: []string{"MODEL=" + model}})
	two := begin(t, "two", launch{kind: "vllm", args: lora, env: []string{"MODEL=" + model, "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0"}})
	one.await(t)
	two.await(t)

	gateway := testenv.Serve(t, "--worker", one.url, "--worker", two.url)
	gateway.Ready(t)
	k := &clientTalk{client: client, gateway: gateway}
	waitTrust(t, gateway, "exact", 2)
	waitFiles(t, gateway, model)

	t.Run("conversations go home", func(t *testing.T) { conversations(t, k, "tiny", "") })
	t.Run("a streamed conversation goes home", func(t *testing.T) { streamed(t, k) })
	t.Run("cache salt keeps tenants apart", func(t *testing.T) { salts(t, k, "") })
	t.Run("tools are part of the prompt", func(t *testing.T) { tools(t, k, "") })
	t.Run("a generated answer is continued", func(t *testing.T) { continued(t, k, "") })
	t.Run("adapters are kept apart", func(t *testing.T) { adapters(t, k, "") })
	t.Run("ids are made in process without a setting", func(t *testing.T) { foundFiles(t, k) })
	t.Run("the same with ids that engines are asked for", func(t *testing.T) { askedIDs(t, k, one, two) })
	t.Run("ids made in process equal the engine's", func(t *testing.T) { sameIDs(t, model, tokens.VLLM, one) })
	t.Run("ids in place of the text change nothing", func(t *testing.T) { forwardingVLLM(t, one, model) })
	t.Run("a reset cache", func(t *testing.T) { reset(t, k, one, two) })
	t.Run("the gateway restarts while the engines keep their caches", func(sub *testing.T) { gatewayRestart(t, sub, k, one, two) })
	t.Run("an engine restarts", func(t *testing.T) { engineRestart(t, k, two) })
	t.Logf("%d requests", k.asked)
}

// conversations plays six conversations of five turns at the same time, turn by turn.
func conversations(t *testing.T, k *clientTalk, model, topic string) {
	const talks, turns = 6, 5
	history := make([][]chatMessage, talks)
	home := make([]string, talks)
	workers := map[string]bool{}
	for turn := range turns {
		for i := range talks {
			if turn == 0 {
				history[i] = []chatMessage{say("system", sentences(fmt.Sprintf("%sagent%d", topic, i), 120))}
			}
			history[i] = append(history[i], say("user", sentences(fmt.Sprintf("talk%dturn%d", i, turn), 30)))
			r := k.chat(t, model, history[i], nil)
			what := fmt.Sprintf("conversation %d turn %d", i, turn)
			r.exact(t, what)
			if turn > 0 && r.worker != home[i] && !r.blind {
				t.Errorf("%s: went to %s, its prefix is on %s", what, r.worker, home[i])
			}
			if turn > 0 && r.cached == 0 && !r.blind {
				t.Errorf("%s: nothing was cached", what)
			}
			home[i] = r.worker
			workers[r.worker] = true
			history[i] = append(history[i], say("assistant", r.Text))
		}
	}
	if len(workers) != 2 {
		t.Errorf("all conversations went to %v: new ones should spread over both workers", workers)
	}
}

func streamed(t *testing.T, k *clientTalk) {
	history := []chatMessage{say("system", sentences("streamed", 100))}
	for turn := range 3 {
		history = append(history, say("user", sentences(fmt.Sprintf("s%d", turn), 40)))
		r := k.chat(t, "tiny", history, map[string]any{"stream": true})
		r.exact(t, fmt.Sprintf("streamed turn %d", turn))
		if r.Chunks < 3 || r.Finish == "" {
			t.Errorf("streamed turn %d: %d chunks, finish %q", turn, r.Chunks, r.Finish)
		}
		history = append(history, say("assistant", r.Text))
	}
}

func salts(t *testing.T, k *clientTalk, topic string) {
	messages := []chatMessage{say("user", sentences(topic+"salted", 150))}
	for round := range 2 {
		for _, salt := range []string{"", "tenant-1", "tenant-2"} {
			extra := map[string]any{}
			if salt != "" {
				extra["cache_salt"] = salt
			}
			r := k.chat(t, "tiny", messages, extra)
			r.exact(t, fmt.Sprintf("salt %q round %d", salt, round))
			if hit := r.cached > 0; hit != (round == 1) {
				t.Errorf("salt %q round %d: %d tokens cached", salt, round, r.cached)
			}
		}
	}
}

func tools(t *testing.T, k *clientTalk, topic string) {
	tool := func(name string) map[string]any {
		return map[string]any{"type": "function", "function": map[string]any{"name": name, "description": sentences(topic+name, 40),
			"parameters": map[string]any{"type": "object", "properties": map[string]any{"city": map[string]any{"type": "string"}}}}}
	}
	extra := map[string]any{"tools": []any{tool("weather"), tool("time")}, "tool_choice": "none"}
	history := []chatMessage{say("system", "You are an agent."), say("user", sentences("ask", 60))}
	first := k.chat(t, "tiny", history, extra)
	first.exact(t, "tools, first turn")
	history = append(history,
		chatMessage{"role": "assistant", "content": "", "tool_calls": []any{map[string]any{"id": "call_1", "type": "function",
			"function": map[string]any{"name": "weather", "arguments": `{"city": "Berlin"}`}}}},
		chatMessage{"role": "tool", "tool_call_id": "call_1", "content": sentences("sunny", 40)})
	second := k.chat(t, "tiny", history, extra)
	second.exact(t, "tools, after the tool's result")
	if second.worker != first.worker || second.cached == 0 {
		t.Errorf("tools: second turn on %s with %d cached, the first was on %s", second.worker, second.cached, first.worker)
	}
	without := k.chat(t, "tiny", history, nil)
	without.exact(t, "the same history without tools")
	if without.cached >= second.cached {
		t.Errorf("without its tools the prompt is another one: %d cached", without.cached)
	}
}

// continued repeats a completion of token ids, and sends a chat that continues an answer of the engine.
func continued(t *testing.T, k *clientTalk, topic string) {
	ids := make([]int, 96)
	for i := range ids {
		ids[i] = 300 + (i+len(topic))*7%2000
	}
	r := k.complete(t, "tiny", ids, map[string]any{"max_tokens": 80, "return_token_ids": true, "ignore_eos": true})
	r.exact(t, "a prompt of ids")
	full := k.complete(t, "tiny", ids, map[string]any{"max_tokens": 80, "ignore_eos": true})
	full.exact(t, "the same prompt again")
	// 96 tokens are three blocks of 32. Engines always compute the last token, so at most two blocks count as cached.
	if full.cached != 64 {
		t.Errorf("a fully cached prompt of 96 tokens reports %d cached tokens, want 64", full.cached)
	}
	messages := []chatMessage{say("user", sentences(topic+"story", 60))}
	story := k.chat(t, "tiny", messages, map[string]any{"max_tokens": 100, "ignore_eos": true})
	story.exact(t, "a story")
	messages = append(messages, say("assistant", story.Text))
	on := k.chat(t, "tiny", messages, map[string]any{"continue_final_message": true, "add_generation_prompt": false})
	on.exact(t, "a continued answer")
	if on.worker != story.worker {
		t.Errorf("the continued answer went to %s, it was generated on %s", on.worker, story.worker)
	}
}

func adapters(t *testing.T, k *clientTalk, topic string) {
	messages := []chatMessage{say("user", sentences(topic+"adapter", 150))}
	for round := range 2 {
		for _, model := range []string{"tiny", "a", "b"} {
			r := k.chat(t, model, messages, nil)
			r.exact(t, fmt.Sprintf("model %s round %d", model, round))
			if hit := r.cached > 0; hit != (round == 1) {
				t.Errorf("model %s round %d: %d tokens cached", model, round, r.cached)
			}
		}
	}
	salted := k.chat(t, "a", messages, map[string]any{"cache_salt": "tenant-1"})
	salted.exact(t, "an adapter with a salt")
	salted = k.chat(t, "a", messages, map[string]any{"cache_salt": "tenant-1"})
	salted.exact(t, "an adapter with a salt, again")
	if salted.cached == 0 {
		t.Error("an adapter with a salt, again: nothing cached")
	}
}

// reset empties the engines' caches. An engine announces the reset with its next step, so only the first prediction
// after the reset may be wrong.
func reset(t *testing.T, k *clientTalk, engines ...*realEngine) {
	messages := []chatMessage{say("user", sentences("reset", 150))}
	first := k.chat(t, "tiny", messages, nil)
	for _, e := range engines {
		e.post(t, "/reset_prefix_cache")
	}
	for i := range len(engines) * 2 { // each engine makes a step, which announces the reset
		k.chat(t, "tiny", []chatMessage{say("user", sentences(fmt.Sprintf("step%d", i), 150))}, nil)
	}
	again := k.chat(t, "tiny", messages, nil)
	again.exact(t, "after the reset was announced")
	if first.worker == again.worker && again.cached != 0 {
		t.Errorf("after a reset %d tokens are cached", again.cached)
	}
	again = k.chat(t, "tiny", messages, nil)
	again.exact(t, "once stored again")
	if again.cached == 0 {
		t.Error("once stored again nothing is cached")
	}
}

// gatewayRestart replaces the gateway by a new process. The new process ends when the parent test whole ends, because
// later subtests use it.
func gatewayRestart(whole, t *testing.T, k *clientTalk, engines ...*realEngine) {
	messages := []chatMessage{say("system", sentences("home", 150)), say("user", "first")}
	before := k.chat(t, "tiny", messages, nil)
	k.gateway.Stop(15)
	args := []string{}
	for _, e := range engines {
		args = append(args, "--worker", e.url)
	}
	k.gateway = testenv.Serve(whole, args...)
	k.gateway.Ready(t)
	waitTrust(t, k.gateway, "exact", len(engines))
	k.settle(t)
	after := k.chat(t, "tiny", append(messages, say("assistant", before.Text), say("user", "second")), nil)
	after.exact(t, "after the gateway's restart")
	if after.worker != before.worker || after.cached == 0 {
		t.Errorf("after the gateway's restart the conversation went to %s with %d cached, before it was on %s", after.worker, after.cached, before.worker)
	}
}

// engineRestart stops an engine and starts it at the same address with an empty cache.
func engineRestart(t *testing.T, k *clientTalk, e *realEngine) {
	messages := []chatMessage{say("user", sentences("restart", 150))}
	var home *reply
	for i := 0; i < 8; i++ { // send prompts until one is routed to e
		messages = []chatMessage{say("user", sentences(fmt.Sprintf("restart%d", i), 150))}
		if home = k.chat(t, "tiny", messages, nil); home.worker == e.url {
			break
		}
	}
	if home.worker != e.url {
		t.Fatalf("no prompt went to %s", e.name)
	}
	e.stop()
	other := k.chat(t, "tiny", messages, nil)
	other.exact(t, "while the engine is away")
	if other.worker == e.url {
		t.Fatalf("a stopped engine answered")
	}
	e.start(t)
	e.await(t)
	testenv.WaitFor(t, 30*time.Second, "the restarted engine to be used again", func() error {
		return workerState(t, k.gateway, e.url)
	})
	waitTrust(t, k.gateway, "exact", 2)
	// In slow start the worker gets a tenth of its share of new prompts at first, and its whole share after 10 s.
	used := time.Now()
	for i := 0; time.Since(used) < 30*time.Second; i++ {
		r := k.chat(t, "tiny", []chatMessage{say("user", sentences(fmt.Sprintf("fresh%d", i), 100))}, nil)
		r.exact(t, fmt.Sprintf("after the engine's restart, prompt %d", i))
		if r.worker == e.url {
			return
		}
	}
	t.Errorf("the restarted engine got no new prompt in 30 s: %s", pretty(stateOf(t, k.gateway)))
}
