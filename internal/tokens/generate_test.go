package tokens

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// The prompt of /generate is a text that no template changes, as that of /v1/completions, under another name.
func TestGenerateIsTokenizedAsACompletion(t *testing.T) {
	read := func(d api.Dialect, body string) *api.Request {
		r := new(api.Request)
		if err := api.Read(d, []byte(body), r); err != nil {
			t.Fatal(err)
		}
		return r
	}
	generate := func(fields string) *api.Request { return read(api.SGLangGenerate, `{`+fields+`}`) }
	r := generate(`"text":"hello","sampling_params":{"max_new_tokens":3}`)
	if got := string(tokenizeBody(r, SGLang)); got != `{"prompt":"hello"}` {
		t.Errorf("the engine is asked %s", got)
	}
	if got := string(AppendPromptText(nil, r)); got != "hello" {
		t.Errorf("the text is %q", got)
	}
	if turnsOf(r).key() != turnsOf(generate(`"text":"hello","stream":true`)).key() {
		t.Error("the same text has another key if its answer is streamed")
	}
	if turnsOf(r).key() == turnsOf(generate(`"text":"hallo"`)).key() {
		t.Error("two texts have one key")
	}
	for _, c := range []struct {
		fields  string
		outcome Outcome
		ids     int
	}{
		{`"text":"hello"`, "", 0},
		{`"text":["a","b"]`, Batch, 0},
		{`"input_ids":[1,2,3]`, Given, 3},
		{`"input_ids":[[1,2,3]]`, Given, 3},
		{`"input_ids":[[1],[2]]`, Batch, 0},
		{`"input_ids":[1,2,3],"image_data":"x"`, Unsupported, 0},
		{`"text":"hello","image_data":"x"`, Unsupported, 0},
		{`"input_embeds":[[0.5]]`, Unsupported, 0},
		{`"stream":true`, Refused, 0},
	} {
		if ids, outcome := InBody(generate(c.fields), SGLang); outcome != c.outcome || len(ids) != c.ids {
			t.Errorf("%s: %d ids, %s", c.fields, len(ids), outcome)
		}
	}
	var states workerStates
	states.all = map[string]*workerState{}
	for kind, want := range map[Kind]endpoint{SGLang: tokenize, VLLM: tokenize} {
		q := &question{dialect: api.SGLangGenerate}
		if all, err := states.endpoints(Worker{URL: "http://a", Kind: kind}, q, time.Now()); err != nil || all[0] != want {
			t.Errorf("kind %v: %v, %v", kind, all, err)
		}
	}
}
