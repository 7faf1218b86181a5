package connector

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// TestHostileAnswersAreRefused: what an engine sends is bounded in size and depth, and is an object with what the other
// engine needs.
func TestHostileAnswersAreRefused(t *testing.T) {
	c, _ := Find("nixl")
	whole := `"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":1,"tp_size":1`
	for _, of := range []struct{ name, answer, want string }{
		{"nothing", ``, "cannot be read"},
		{"no object", `[1]`, "no kv_transfer_params"},
		{"cut off", `{"kv_transfer_params":{` + whole, "cannot be read"},
		{"two values", `{"kv_transfer_params":{` + whole + `}} {}`, "cannot be read"},
		{"not UTF-8", "{\"kv_transfer_params\":{\"x\":\"\xff\"," + whole + `}}`, "cannot be read"},
		{"deep", `{"kv_transfer_params":{"x":` + strings.Repeat("[", 1e6) + strings.Repeat("]", 1e6) + `,` + whole + `}}`, "nested deeper"},
		{"large", `{"kv_transfer_params":{"x":"` + strings.Repeat("x", maxCarried) + `",` + whole + `}}`, "more than 4194304"},
		{"a member twice", `{"kv_transfer_params":{"remote_host":"other",` + whole + `}}`, "twice"},
		{"a member twice, spelled otherwise", `{"kv_transfer_params":{"remote_h\u006fst":"other",` + whole + `}}`, "twice"},
		{"a text as a port", `{"kv_transfer_params":{` + strings.Replace(whole, `"remote_port":1`, `"remote_port":"1"`, 1) + `}}`, "remote_port"},
		{"a negative port", `{"kv_transfer_params":{` + strings.Replace(whole, `"remote_port":1`, `"remote_port":-1`, 1) + `}}`, "remote_port"},
		{"a port above 65535", `{"kv_transfer_params":{` + strings.Replace(whole, `"remote_port":1`, `"remote_port":65536`, 1) + `}}`, "remote_port"},
		{"blocks below 0", `{"kv_transfer_params":{` + strings.Replace(whole, `[[1]]`, `[[1,-1]]`, 1) + `}}`, "remote_block_ids"},
		{"blocks that are no numbers", `{"kv_transfer_params":{` + strings.Replace(whole, `[[1]]`, `[[],["a"]]`, 1) + `}}`, "remote_block_ids"},
		{"no text as a host", `{"kv_transfer_params":{` + strings.Replace(whole, `"h"`, `""`, 1) + `}}`, "remote_host"},
		{"blocks that are no lists", `{"kv_transfer_params":{` + strings.Replace(whole, `[[1]]`, `[1]`, 1) + `}}`, "remote_block_ids"},
	} {
		body, err := c.AppendDecode(nil, []byte(`{"prompt":"x"}`), &Pair{}, []byte(of.answer))
		if err == nil || !strings.Contains(err.Error(), of.want) {
			t.Errorf("%s: %.200s, %.300v; want an error with %q", of.name, body, err, of.want)
		} else if len(err.Error()) > 500 {
			t.Errorf("%s: an error of %d bytes", of.name, len(err.Error()))
		}
	}
}

// TestAForgedIdStaysInsideItsString: an id that a client chose cannot add members.
func TestAForgedIdStaysInsideItsString(t *testing.T) {
	id := "a\",\"bootstrap_host\":\"evil\\\n\x00é"
	for _, name := range Names() {
		c, _ := Find(name)
		p := Pair{RequestID: id, Room: 7, Chat: true, Prefill: knownEnd(), Decode: knownEnd()}
		body, err := c.AppendPrefill(nil, []byte(`{"messages":[]}`), &p)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := json.Unmarshal(body, &got); err != nil || got["bootstrap_host"] == "evil" {
			t.Errorf("%s: %v: %s", name, err, body)
		}
		if _, _, body, ok := c.Abort(fleet.LegDecode, &p, nil); ok && !json.Valid(body) {
			t.Errorf("%s: %s", name, body)
		}
	}
}

// knownEnd returns a worker of which all is known.
func knownEnd() End {
	return End{URL: "http://10.0.0.1:8000", Ranks: 1, Transfer: fleet.Transfer{
		Port: 5600, EngineIDs: []string{"e"}, TensorParallel: 1, PipelineParallel: 1}}
}

// FuzzAnswers gives any answer of an engine and any body of a client to all connectors. Nothing panics; what is written
// is JSON that the dialect reads, and has the client's own members unchanged.
func FuzzAnswers(f *testing.F) {
	for _, r := range recordings(f) {
		f.Add([]byte(r.Client), []byte(r.Prefill.Answer), "R")
		f.Add([]byte(r.Client), []byte(r.Decode.Answer), "R")
	}
	f.Add([]byte(`{"prompt":"x","kv_transfer_params":{"a":1}}`), []byte(`{"choices":[{"finish_reason":"length","disaggregated_params":{"ctx_request_id":1,"first_gen_tokens":[1]}}]}`), "\"")
	f.Add([]byte(`{ }`), []byte(`{"kv_transfer_params":null}`), "")
	f.Add([]byte(`{"messages":[],"max_tok\u0065ns":3}`), []byte(`{"kv_transfer_params":{"...":[]}}`), "x")
	f.Fuzz(func(t *testing.T, body, answer []byte, id string) {
		var r api.Request
		chat := api.Read(api.OpenAIChat, body, &r) == nil
		if !chat && api.Read(api.OpenAICompletions, body, &r) != nil {
			return
		}
		Foreign(body)
		for _, name := range Names() {
			c, _ := Find(name)
			p := Pair{RequestID: id, Room: 1<<63 - 1, Chat: chat, Prefill: knownEnd(), Decode: knownEnd()}
			c.PromptIDs(answer, chat)
			c.Abort(fleet.LegDecode, &p, answer)
			kept, ok := c.Kept(answer, chat)
			prefill, err := c.AppendPrefill(nil, body, &p)
			wellFormed(t, name, body, prefill, err)
			if ok {
				fetch, err := c.AppendFetch(nil, prefill, &p, kept.Params)
				wellFormed(t, name, body, fetch, err)
				release, err := c.AppendRelease(nil, prefill, &p, kept.Params)
				wellFormed(t, name, body, release, err)
				if len(kept.Tokens) == 0 || len(kept.Tokens) > len(answer) {
					t.Fatalf("%d tokens are kept of %q", len(kept.Tokens), answer)
				}
			}
			decode, err := c.AppendDecode(nil, body, &p, answer)
			wellFormed(t, name, body, decode, err)
		}
	})
}

// wellFormed checks a body that was written for a client's body.
func wellFormed(t *testing.T, name string, client, body []byte, err error) {
	t.Helper()
	if err != nil {
		return
	}
	var had, has map[string]json.RawMessage
	if json.Unmarshal(client, &had) != nil {
		return
	}
	if err := json.Unmarshal(body, &has); err != nil {
		t.Fatalf("%s wrote %q for %q: %v", name, body, client, err)
	}
	for _, member := range []string{"model", "messages", "tools", "temperature", "chat_template", "é"} {
		if string(had[member]) != string(has[member]) {
			t.Fatalf("%s: %s was %s and is %s", name, member, had[member], has[member])
		}
	}
}
