package testenv_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// clientTalk is a client of the gateway. It counts its requests. Its answers have the gateway's prediction and the
// engine's report of cached tokens.
type clientTalk struct {
	client  *testenv.Client
	gateway *testenv.Gateway
	asked   int
	blind   int // number of requests that got no token ids within the budget, which can happen on a busy machine
}

// reply is an answer with the gateway's decision about it.
type reply struct {
	*testenv.Answer
	worker    string
	predicted int
	cached    int
	trust     string
	// blind means that the request got no token ids in time, so the gateway routed it by text or by load and predicted
	// nothing.
	blind bool
}

type chatMessage map[string]any

func say(role, text string) chatMessage { return chatMessage{"role": role, "content": text} }

// settle waits until the sequence numbers of all holders do not change for a moment, because then all events have
// arrived.
func (k *clientTalk) settle(t *testing.T) {
	t.Helper()
	last, since := "", time.Now()
	testenv.WaitFor(t, 20*time.Second, "the events to arrive", func() error {
		var workers any
		testenv.JSON(t, k.gateway.Admin+"/admin/workers", &workers)
		now := sequences(workers)
		if now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < 120*time.Millisecond {
			return fmt.Errorf("sequence numbers moved %v ago: %s", quiet, now)
		}
		return nil
	})
}

// sequences returns the workers' URLs and all sequence numbers in an answer of /admin/workers, as text.
func sequences(v any) string {
	var b strings.Builder
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, item := range v {
				walk(item)
			}
		case map[string]any:
			for _, key := range []string{"url", "last_sequence"} {
				if value, ok := v[key]; ok {
					fmt.Fprint(&b, value, " ")
				}
			}
			for _, item := range v {
				if list, ok := item.([]any); ok {
					walk(list)
				}
			}
		}
	}
	walk(v)
	return b.String()
}

// chat sends a request to /v1/chat/completions.
func (k *clientTalk) chat(t *testing.T, model string, messages []chatMessage, extra map[string]any) *reply {
	t.Helper()
	body := map[string]any{"model": model, "messages": messages, "max_tokens": 12, "temperature": 0}
	return k.ask(t, "chat", body, extra)
}

// complete sends a request to /v1/completions.
func (k *clientTalk) complete(t *testing.T, model string, prompt any, extra map[string]any) *reply {
	t.Helper()
	return k.ask(t, "completions", map[string]any{"model": model, "prompt": prompt, "max_tokens": 12, "temperature": 0}, extra)
}

func (k *clientTalk) ask(t *testing.T, call string, body, extra map[string]any) *reply {
	t.Helper()
	arguments := map[string]any{}
	for name, value := range extra {
		switch name { // the OpenAI client's method has arguments for these fields; all other fields are extra
		case "tools", "tool_choice", "stream", "stream_options", "max_tokens", "stop":
			body[name] = value
		default:
			arguments[name] = value
		}
	}
	if stream, _ := body["stream"].(bool); stream {
		body["stream_options"] = map[string]any{"include_usage": true}
	}
	answer := k.client.Do(t, testenv.Call{Call: call, Base: k.gateway.URL + "/v1", Body: body, Extra: arguments})
	k.asked++
	if answer.Error != nil {
		t.Fatalf("request %d: %s %d: %s", k.asked, answer.Error.Type, answer.Error.Status, answer.Error.Message)
	}
	predicted, err := strconv.Atoi(answer.Header("X-Warmpath-Match"))
	if err != nil {
		t.Fatalf("request %d: header X-Warmpath-Match is %q", k.asked, answer.Header("X-Warmpath-Match"))
	}
	k.settle(t)
	r := &reply{Answer: answer, worker: answer.Header("X-Warmpath-Worker"), predicted: predicted,
		cached: answer.Usage.Cached(), trust: answer.Header("X-Warmpath-Trust")}
	if source := k.lastSource(t); source == "timeout" || source == "text" {
		r.blind = true
		k.countBlind(t)
	}
	return r
}

// countBlind counts a request without token ids, and fails the test if there are more than five.
func (k *clientTalk) countBlind(t *testing.T) {
	t.Helper()
	if k.blind++; k.blind > 5 {
		t.Errorf("the tokens of %d of %d requests did not come within the budget", k.blind, k.asked)
	}
}

// lastSource returns the source of the last request's token ids.
func (k *clientTalk) lastSource(t *testing.T) string {
	t.Helper()
	var last struct {
		Decisions []struct {
			Source string `json:"token_source"`
		} `json:"decisions"`
	}
	testenv.JSON(t, k.gateway.Admin+"/admin/decisions?n=1", &last)
	if len(last.Decisions) == 0 {
		t.Fatal("the gateway remembers no decision")
	}
	return last.Decisions[0].Source
}

// exact fails the test if the prediction differs from the engine's report, unless the request was blind.
func (r *reply) exact(t *testing.T, what string) {
	t.Helper()
	if r.predicted != r.cached && !r.blind {
		t.Errorf("%s: predicted %d cached tokens, the engine reports %d (worker %s, trust %s, prompt %d)",
			what, r.predicted, r.cached, r.worker, r.trust, r.Usage.PromptTokens)
	}
}

// neverOver fails the test if the prediction is above the engine's report.
func (r *reply) neverOver(t *testing.T, what string) {
	t.Helper()
	if r.predicted > r.cached {
		t.Errorf("%s: predicted %d cached tokens, more than the %d that the engine reports", what, r.predicted, r.cached)
	}
}

// sentences returns n groups of three words. The same topic gives the same words, and different topics give different
// words.
func sentences(topic string, n int) string {
	words := []string{"engine", "cache", "block", "worker", "token", "prefix", "route", "index", "event", "batch", "model", "layer"}
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s %s %d ", topic, words[(i*7+len(topic))%len(words)], i)
	}
	return b.String()
}

func pretty(v any) string {
	out, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(out)
}
