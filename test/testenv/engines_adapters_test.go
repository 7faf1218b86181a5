package testenv_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// TestAdaptersOfARealVLLMAreLoadedOnDemand has two adapters and one slot. Each change of the adapter unloads the other;
// the blocks of the first are found again when it returns.
func TestAdaptersOfARealVLLMAreLoadedOnDemand(t *testing.T) {
	besideAnother(t)
	dir := root(t, "vllm")
	client := testenv.StartClient(t)
	engine := begin(t, "one", launch{
		kind: "vllm",
		args: []string{"--enable-lora", "--max-loras", "1", "--max-lora-rank", "8"},
		env:  []string{"MODEL=" + dir + "/tiny-turns", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"},
	})
	engine.await(t)
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	text := fmt.Sprintf("adapter_slots: 1\nadapters:\n- {name: a, base: tiny, path: %s/lora-a}\n- {name: b, base: tiny, path: %s/lora-b}\n"+
		"- {name: lost, base: tiny, path: /no/such/adapter}\n", dir, dir)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	gateway := testenv.Serve(t, "--config", file, "--worker", engine.url)
	gateway.Ready(t)
	k := &clientTalk{client: client, gateway: gateway}
	waitTrust(t, gateway, "exact", 1)
	messages := []chatMessage{say("user", sentences("on demand", 150))}
	for round := range 2 {
		for _, model := range []string{"tiny", "a", "b"} {
			r := k.chat(t, model, messages, nil)
			what := fmt.Sprintf("model %s, round %d", model, round)
			r.exact(t, what)
			if hit := r.cached > 0; hit != (round == 1) && !r.blind {
				t.Errorf("%s: %d tokens cached", what, r.cached)
			}
		}
	}
	for _, want := range []string{`warmpath_adapter_orders_total{order="load",outcome="done"} 4`, `warmpath_adapter_orders_total{order="unload",outcome="done"} 3`} {
		if _, metrics := send(t, "GET", gateway.Admin+"/metrics", ""); !strings.Contains(metrics, want) {
			t.Errorf("no %s", want)
		}
	}
	status, answer := send(t, "POST", gateway.URL+"/v1/chat/completions", `{"model":"lost","messages":[{"role":"user","content":"hi"}]}`)
	if status != 503 || !strings.Contains(answer, "adapter_not_loaded") || !strings.Contains(answer, "/no/such/adapter") {
		t.Errorf("an adapter that is not there: %d %s", status, answer)
	}
}
