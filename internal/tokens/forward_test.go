package tokens

import (
	"context"
	"net/http"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
)

// proven returns a Source that may forward ids to engines. Enough comparisons for the model m had equal ids.
func proven(t *testing.T) *Source {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Forward = ForwardAuto
	s := New(cfg, http.DefaultClient)
	t.Cleanup(s.Close)
	for range checkPasses {
		s.checks.note("m", "", true)
	}
	return s
}

// recent returns a worker whose engine is new enough to accept ids in every dialect.
func recent(k Kind) Worker {
	w := Worker{URL: "http://a", Kind: k}
	if k == VLLM {
		w.Version, w.MaxModelLen = "0.32.0", 100
	}
	return w
}

func TestChatsOfVLLMAreForwardedOnlyToEnginesThatTakeThem(t *testing.T) {
	s := proven(t)
	chat := prompt(api.OpenAIChat, `{"model":"m","messages":[{"role":"user","content":"b"}]}`).Request
	found := Found{Tokens: []block.Token{1}, Outcome: InProcess, Kind: VLLM}
	for version, want := range map[string]bool{"0.32.0": true, "0.33.1.dev2+g1": true, "1.0": true, "0.31.9": false,
		"0.9.2": false, "": false, "unknown": false} {
		to := recent(VLLM)
		to.Version = version
		if _, ok := s.AppendForwarded(nil, &Forward{chat, "m", &found, to}); ok != want {
			t.Errorf("version %q: forwarded is %v", version, ok)
		}
	}
	to := recent(VLLM)
	to.MaxModelLen = 0
	if _, ok := s.AppendForwarded(nil, &Forward{chat, "m", &found, to}); ok {
		t.Error("forwarded to an engine whose limit is not known")
	}
}

func TestIDsReplaceTheTextAndNoOtherByteChanges(t *testing.T) {
	s := proven(t)
	for _, c := range []struct {
		dialect    api.Dialect
		kind       Kind
		body, want string
	}{
		{api.OpenAICompletions, VLLM, ` { "model":"m", "prompt" : "héllo \"w\"" ,"max_tokens": 5,"stop":["x"] } `,
			` { "model":"m", "prompt" : [1,22,333] ,"max_tokens": 5,"stop":["x"] } `},
		{api.OpenAICompletions, VLLM, `{"prompt":"a","model":"m","add_special_tokens":false,"stream":true}`,
			`{"prompt":[1,22,333],"model":"m","add_special_tokens":false,"stream":true}`},
		{api.OpenAIChat, SGLang, "{\n \"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"content\":\"b\", \"role\":\"user\"} ],\"rid\":\"r\"}",
			"{\"input_ids\":[1,22,333],\n " +
				"\"model\":\"m\",\"messages\":[{\"role\":\"system\",\"content\":\"a\"},{\"content\":\"b\", \"role\":\"user\"} " +
				"],\"rid\":\"r\"}"},
		{api.OpenAIChat, VLLM, `{"model":"m","messages":[{"role":"user","content":"b"}],"max_tokens":97}`,
			`{"kv_transfer_params":{"prompt_token_ids":[1,22,333]},"model":"m","messages":[{"role":"user","content":"b"}],"max_tokens":97}`},
	} {
		found := Found{Tokens: []block.Token{1, 22, 333}, Outcome: InProcess, Kind: c.kind}
		got, ok := s.AppendForwarded(nil, &Forward{prompt(c.dialect, c.body).Request, "m", &found, recent(c.kind)})
		if !ok || string(got) != c.want {
			t.Errorf("%s\n got %s, %v\nwant %s", c.body, got, ok, c.want)
		}
		var again api.Request
		if err := api.Read(c.dialect, got, &again); err != nil || len(again.IDs) != 3 &&
			again.Raw(api.FieldKVTransferParams) == nil {
			t.Errorf("what is forwarded reads as %v ids, error %v", again.IDs, err)
		}
	}
}

func TestTheTextIsSentWhenIDsCouldLoseSomething(t *testing.T) {
	s := proven(t)
	text := func(more string) string { return `{"model":"m","prompt":"a"` + more + `}` }
	turns := func(messages, more string) string { return `{"model":"m","messages":[` + messages + `]` + more + `}` }
	const user = `{"role":"user","content":"a"}`
	for _, c := range []struct {
		dialect api.Dialect
		kind    Kind
		body    string
	}{
		{api.OpenAICompletions, VLLM, text(`,"echo":true`)},
		{api.OpenAICompletions, VLLM, text(`,"suffix":"b"`)},
		{api.OpenAICompletions, VLLM, text(`,"prompt_logprobs":1`)},
		{api.OpenAICompletions, VLLM, text(`,"logprobs":1`)},
		{api.OpenAICompletions, VLLM, text(`,"truncate_prompt_tokens":5`)},
		{api.OpenAICompletions, VLLM, text(`,"use_beam_search":true`)},
		{api.OpenAICompletions, VLLM, text(`,"kv_transfer_params":{}`)},
		{api.OpenAICompletions, VLLM, text(`,"not_invented_yet":1`)},
		{api.OpenAICompletions, VLLM, `{"model":"m","prompt":["a"]}`},
		{api.OpenAICompletions, VLLM, `{"model":"adapter","prompt":"a"}`},
		{api.OpenAICompletions, SGLang, text("")},
		{api.OpenAIChat, VLLM, turns(user, `,"kv_transfer_params":{}`)},
		{api.OpenAIChat, VLLM, turns(user, `,"extra_key":"k"`)},
		{api.OpenAIChat, VLLM, turns(user, `,"add_special_tokens":true`)},
		// The prompt and max_tokens together exceed the model's length.
		{api.OpenAIChat, VLLM, turns(user, `,"max_tokens":100`)},
		{api.OpenAIChat, VLLM, turns(user, `,"max_tokens":9223372036854775807`)},
		{api.OpenAIChat, VLLM, turns(user, `,"tools":[]`)},
		{api.OpenAIChat, VLLM, turns(user+`,{"role":"assistant","content":"b"}`, "")},
		{api.OpenAIChat, SGLang, turns(user, `,"tools":[]`)},
		{api.OpenAIChat, SGLang, turns(user, `,"chat_template_kwargs":{}`)},
		{api.OpenAIChat, SGLang, turns(user, `,"response_format":{}`)},
		{api.OpenAIChat, SGLang, turns(user, `,"reasoning_effort":"low"`)},
		{api.OpenAIChat, SGLang, turns(user+`,{"role":"assistant","content":"b"}`, "")},
		{api.OpenAIChat, SGLang, turns(`{"role":"tool","content":"b"}`, "")},
		{api.OpenAIChat, SGLang, turns(`{"role":"user","content":"a","name":"n"}`, "")},
		{api.OpenAIChat, SGLang, turns(`{"role":"user","content":[{"type":"text","text":"a"}]}`, "")},
		{api.OpenAIChat, SGLang, turns(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"u"}}]}`, "")},
		{api.OpenAIChat, SGLang, turns("", "")},
	} {
		found := Found{Tokens: []block.Token{1}, Outcome: InProcess, Kind: c.kind}
		if got, ok := s.AppendForwarded(nil, &Forward{prompt(c.dialect, c.body).Request, "m", &found, recent(c.kind)}); ok ||
			got != nil {
			t.Errorf("%s was forwarded as %s", c.body, got)
		}
	}
}

func TestOnlyProvenIDsMadeInProcessForThatEngineAreForwarded(t *testing.T) {
	s := proven(t)
	r := prompt(api.OpenAICompletions, `{"model":"m","prompt":"a"}`).Request
	f := func(why string, want bool, found Found) {
		t.Helper()
		if _, ok := s.AppendForwarded(nil, &Forward{r, "m", &found, recent(VLLM)}); ok != want {
			t.Errorf("%s: forwarded is %v", why, ok)
		}
	}
	ids := []block.Token{1}
	f("made in process", true, Found{Tokens: ids, Outcome: InProcess, Kind: VLLM})
	f("made for SGLang", false, Found{Tokens: ids, Outcome: InProcess, Kind: SGLang})
	f("made by the engine", false, Found{Tokens: ids, Outcome: Tokenize, Kind: VLLM})
	f("made by the service", false, Found{Tokens: ids, Outcome: Service, Kind: VLLM})
	f("not known", false, Found{Outcome: InProcess, Kind: VLLM})
	s.checks.note("m", "", false)
	f("distrusted", false, Found{Tokens: ids, Outcome: InProcess, Kind: VLLM})
	for range checkPasses {
		s.checks.note("m", "", true)
	}
	f("believed again", true, Found{Tokens: ids, Outcome: InProcess, Kind: VLLM})
	s.cfg.Forward = ForwardOff
	f("off", false, Found{Tokens: ids, Outcome: InProcess, Kind: VLLM})
	s.cfg.Forward = ForwardAuto
	s.checks = checks{}
	for range checkPasses - 1 {
		s.checks.note("m", "", true)
	}
	f("compared nineteen times", false, Found{Tokens: ids, Outcome: InProcess, Kind: VLLM})
}

// made is a Local that returns the same ids for every prompt without tools.
type made []block.Token

func (m made) Find(_ context.Context, p *Prompt) (Found, bool) {
	return Found{Tokens: m, Outcome: InProcess}, !p.Request.Tools
}

func (made) Text(string, []block.Token) string { return "" }
