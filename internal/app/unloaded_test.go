package app_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/mockengine"
)

// Somebody unloads an adapter at its engine. The first 404 makes the router ask the engine for its models: it does not
// wait for the next probe, which comes after a minute by default.
func TestAnAdapterThatWasUnloadedAtItsEngineIsNoticed(t *testing.T) {
	e := engine(t, func(c *mockengine.Config) { c.Kind, c.LoRA, c.UpdateLoRA = mockengine.VLLM, []string{"sql"}, true })
	cfg := settings(e)
	cfg.Health.Interval, cfg.Health.Refresh = 50*time.Millisecond, time.Hour
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	r.exact(1)
	post := func(url, body string) int {
		resp, err := r.client.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	const chat = `{"model":"sql","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`
	if status := post(r.url+"/v1/chat/completions", chat); status != http.StatusOK {
		t.Fatalf("%d before", status)
	}
	if status := post(e.URL()+"/v1/unload_lora_adapter", `{"lora_name":"sql"}`); status != http.StatusOK {
		t.Fatalf("the engine answered %d", status)
	}
	if status := post(r.url+"/v1/chat/completions", chat); status != http.StatusNotFound {
		t.Errorf("%d after", status)
	}
	r.wait("the router knows that the adapter is gone", func() bool {
		_, has := r.Router().Fleet().Snapshot().Pool("sql")
		return !has
	})
}
