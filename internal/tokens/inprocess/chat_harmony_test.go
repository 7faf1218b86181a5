package inprocess

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

var november = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func harmonyText(t *testing.T, body string) (string, error) {
	t.Helper()
	pieces, err := readHarmony([]byte(body), november)
	var b strings.Builder
	for _, p := range pieces {
		b.WriteString(p.Special + p.Text)
	}
	return b.String(), err
}

func TestHarmonyIsWhatVLLMRenders(t *testing.T) {
	t.Run("sample", func(t *testing.T) { compareHarmony(t, testenv.Gunzip(t, "testdata/harmony.json.gz")) })
	t.Run("all", func(t *testing.T) {
		path := testenv.Installed(t, "harmony.json", "make test-engines golden")
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		compareHarmony(t, data)
	})
}

// compareHarmony renders chats, and compares them with the prompts that vLLM made.
func compareHarmony(t *testing.T, data []byte) {
	var golden []struct {
		Body        json.RawMessage
		Text, Error string
	}
	if err := json.Unmarshal(data, &golden); err != nil {
		t.Fatal(err)
	}
	equal := 0
	for i, g := range golden {
		got, err := harmonyText(t, string(g.Body))
		var refused *requestError
		switch {
		case g.Error != "" && !errors.As(err, &refused):
			t.Errorf("chat %d: %v, vLLM refuses: %s\n%s", i, err, g.Error, g.Body)
		case g.Error == "" && (err != nil || got != g.Text):
			t.Errorf("chat %d: error %v\n%s\nvLLM has\n%s", i, err, got, g.Text)
		default:
			equal++
		}
	}
	t.Logf("%d of %d chats are as vLLM's", equal, len(golden))
}

func TestHarmonyHasTurnsToolsAndReasoning(t *testing.T) {
	const system = "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: 2026-11-21\n\nReasoning: "
	const channels = "\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message."
	for body, want := range map[string]string{
		`{"messages":[{"role":"user","content":"hi"}]}`: system + "medium" + channels +
			"<|end|><|start|>user<|message|>hi<|end|><|start|>assistant",
		`{"reasoning_effort":"high","messages":[{"role":"system","content":"Be brief"},{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"dropped"},
			{"role":"user","content":"c"},{"role":"assistant","reasoning":"kept","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"d"}],
			"tools":[{"type":"function","function":{"name":"f","description":"Do it.","parameters":{"type":"object","properties":{"x":{"type":["string","null"],"default":"y"},"n":{"type":"integer","default":1.5}},"required":["n"]}}},
				{"type":"function","function":{"name":"g"}}]}`: system + "high" + channels + "\nCalls to these tools must go to the commentary channel: 'functions'.<|end|>" +
			"<|start|>developer<|message|># Instructions\n\nBe brief\n\n# Tools\n\n## functions\n\nnamespace functions {\n\n// Do it.\ntype f = (_: {\nx?: string | null, // default: \"y\"\nn: number, // default: 1.5\n}) => any;\n\n" +
			"type g = () => any;\n\n} // namespace functions<|end|><|start|>user<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|end|><|start|>user<|message|>c<|end|>" +
			"<|start|>assistant<|channel|>analysis<|message|>kept<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>" +
			"<|start|>functions.f<|channel|>commentary to=assistant<|message|>d<|end|><|start|>assistant",
	} {
		if got, err := harmonyText(t, body); err != nil || got != want {
			t.Errorf("error %v\n%s\nnot\n%s", err, got, want)
		}
	}
	for _, body := range []string{`{"messages":[]}`,
		`{"messages":[{"role":"user","content":"a"}],"reasoning_effort":"none"}`, `[]`,
		`{"messages":[{"content":"a"}]}`,
		`{"messages":[{"role":"assistant","content":"a","tool_calls":null}]}`} {
		var refused *requestError
		if _, err := harmonyText(t, body); !errors.As(err, &refused) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, err := harmonyText(t, `{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"x":{"default":1e300}}}}}]}`); err == nil || errors.As(err, new(*requestError)) {
		t.Errorf("a number that is spelled by the engine only: %v", err)
	}
}

func TestASchemaWithOverlongTypesIsLeftToTheEngine(t *testing.T) {
	const levels = 90
	var properties strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&properties, `,"%d":1`, i)
	}
	schema := strings.Repeat(`{"type":"object","properties":{"p":`, levels) + `{"type":"object","properties":{` +
		properties.String()[1:] + `}}` + strings.Repeat("}}", levels)
	_, err := harmonyText(t, `{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f","parameters":`+schema+`}}]}`)
	if !errors.Is(err, errSchema) {
		t.Errorf("%d bytes of schema: %v", len(schema), err)
	}
}

func FuzzHarmony(f *testing.F) {
	f.Add(`{"messages":[{"role":"system","content":[{"text":"a"},"b"]},{"role":"assistant","tool_calls":[{"function":{}}]},{"role":"tool"}],"tools":[{"type":"function","function":{"name":"f","parameters":{"oneOf":[{"type":["null"]}]}}}]}`)
	f.Add(`{"messages":[{"role":"user","content":null}],"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"p":{"oneOf":[1,{}],"examples":["x"],"default":[{}]}}}}}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		pieces, err := readHarmony([]byte(body), november)
		if err == nil && (len(pieces) == 0 || pieces[len(pieces)-1].Text != "assistant") {
			t.Errorf("%v", pieces)
		}
	})
}
