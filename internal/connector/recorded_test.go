package connector

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recording is a file of testdata/recorded: two legs that real engines served.
type recording struct {
	name      string
	Connector string
	Chat      bool
	Client    json.RawMessage
	Prefill   struct{ Sent, Answer json.RawMessage }
	Decode    struct{ Sent, Answer json.RawMessage }
}

func recordings(t testing.TB) (all []recording) {
	files, err := filepath.Glob("testdata/recorded/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r := recording{name: strings.TrimSuffix(filepath.Base(path), ".json")}
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		all = append(all, r)
	}
	return all
}

// TestRecordedAnswersAreCarried: for what real engines answered, the decode leg is what those engines accepted.
func TestRecordedAnswersAreCarried(t *testing.T) {
	var kept []byte
	for _, r := range recordings(t) {
		c, _ := Find(r.Connector)
		p := Pair{RequestID: "R", Chat: r.Chat, Prefill: End{URL: "http://127.0.0.1:1"}, Decode: End{URL: "http://127.0.0.1:2"}}
		prefill, err := c.AppendPrefill(nil, r.Client, &p)
		if err == nil && kept != nil && strings.HasPrefix(r.name, "both-") {
			back := p
			back.Prefill, back.Decode = p.Decode, p.Prefill
			prefill, err = c.AppendFetch(nil, prefill, &back, kept)
		}
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
			continue
		}
		same(t, r.name+": the prefill leg", lastMember(prefill, "kv_transfer_params"), r.Prefill.Sent, "")
		decode, err := c.AppendDecode(nil, r.Client, &p, r.Prefill.Answer)
		if r.name == "push-sequential" {
			if err == nil {
				t.Error("a decode leg of NixlPushConnector after its prefill leg, which gets no answer")
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", r.name, err)
			continue
		}
		same(t, r.name+": the decode leg", lastMember(decode, "kv_transfer_params"), r.Decode.Sent, "prompt_token_ids")
		if sent := lastMember(decode, "messages"); r.Chat && !bytes.Equal(sent, lastMember(r.Client, "messages")) {
			t.Errorf("%s: the messages changed: %s", r.name, sent)
		}
		if r.Connector == "nixl_two_way" {
			k, ok := c.Kept(withIDs(t, r.Decode.Answer), r.Chat)
			if kept = k.Params; !ok || len(k.Tokens) == 0 || k.Blocks != (len(k.Tokens)+31)/32 {
				t.Errorf("%s: of the decode leg's answer is kept: %+v", r.name, k)
			}
		}
	}
}

// withIDs returns a recorded answer as if its ids had been asked for: the recorded requests did not.
func withIDs(t *testing.T, answer []byte) []byte {
	t.Helper()
	var a map[string]any
	if err := json.Unmarshal(answer, &a); err != nil {
		t.Fatal(err)
	}
	usage := a["usage"].(map[string]any)
	a["prompt_token_ids"] = make([]int, int(usage["prompt_tokens"].(float64)))
	a["choices"].([]any)[0].(map[string]any)["token_ids"] = make([]int, int(usage["completion_tokens"].(float64)))
	out, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// same compares two JSON objects. The member ours may be in one of them only.
func same(t *testing.T, what string, got, want []byte, ours string) {
	t.Helper()
	var g, w map[string]any
	if err := json.Unmarshal(got, &g); err != nil {
		t.Fatalf("%s: %v in %s", what, err, got)
	}
	if err := json.Unmarshal(want, &w); err != nil {
		t.Fatal(err)
	}
	if g[ours] == nil || w[ours] == nil {
		delete(g, ours)
		delete(w, ours)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("%s differs from what the engine accepted:\n%s", what, diff)
	}
}

// TestCarriedBytesAreTheEngines: numbers, spaces and members that nobody knows arrive at the other engine as they were.
func TestCarriedBytesAreTheEngines(t *testing.T) {
	c, _ := Find("nixl")
	opaque := `"later": { "a":[1.50,1E3 , 12345678901234567890],"b\u00e9":"\ud83d\ude00" }`
	answer := `{"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":"e",` +
		`"remote_request_id":"r","remote_host":"h","remote_port":1,"tp_size":1,` + opaque + `}}`
	body, err := c.AppendDecode([]byte("before"), []byte(`{"prompt":"x"}`), &Pair{}, []byte(answer))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(opaque, `: { "a"`, `:{ "a"`, 1); !strings.Contains(string(body), want) || !strings.HasPrefix(string(body), `before{`) {
		t.Errorf("%s\ndoes not have %s", body, want)
	}
}
