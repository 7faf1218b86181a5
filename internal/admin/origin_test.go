package admin

import (
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/tokens"
)

// TestAnExplanationSaysWhereIDsComeFrom: for each outcome the text says whether there are ids, why not, the source of
// the model's ids, and what to do about it.
func TestAnExplanationSaysWhereIDsComeFrom(t *testing.T) {
	asked := TokenModel{Model: "m", Engine: "vllm", Source: "engine", Why: `"/models/m" cannot be read here`, Advice: "name it"}
	for name, c := range map[string]struct {
		source, missing tokens.Outcome
		model           TokenModel
		want            []string
		not             string
	}{
		"given":       {tokens.Given, "", asked, []string{"in the body"}, "asked"},
		"files":       {tokens.InProcess, "", TokenModel{Model: "m", Source: "files", Folder: "/models/m", Prompts: 27}, []string{"made in the router", "/models/m, which it found", "27 prompts"}, "asked"},
		"named":       {tokens.InProcess, "", TokenModel{Model: "m", Source: "given", Folder: "/models/m"}, []string{"made in the router", "/models/m, which was named"}, "asked"},
		"remembered":  {tokens.Cached, "", asked, []string{"remembered", "engines (vllm) are asked", `"/models/m" cannot be read here`, "what to do: name it"}, "no ids"},
		"searching":   {tokens.Tokenize, "", TokenModel{Model: "m", Source: "search", Why: "its files are looked for"}, []string{"tokenized", "for now: its files are looked for"}, "what to do"},
		"text":        {tokens.Text, tokens.TimedOut, asked, []string{"no ids: no answer came", "by its text", "what to do: name it"}, ""},
		"refused":     {tokens.Text, tokens.Refused, asked, []string{"a client's key, which explain cannot send", "what to do: name it"}, ""},
		"a batch":     {tokens.Batch, tokens.Batch, asked, []string{"no ids: the body has several prompts"}, "asked"},
		"other model": {tokens.Cached, "", TokenModel{Model: "other", Source: "engine"}, []string{"remembered"}, "asked"},
	} {
		e := &gateway.Explanation{Record: warmpath.Record{Base: "m"}, TokenSource: c.source, TokensMissing: c.missing}
		got := originOf(e, []TokenModel{c.model}, "")
		for _, want := range c.want {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q lacks %q", name, got, want)
			}
		}
		if c.not != "" && strings.Contains(got, c.not) {
			t.Errorf("%s: %q has %q", name, got, c.not)
		}
	}
}

// TestEachOutcomeHasWords: every outcome except Text has a text in origins or in missing, and none has one in both.
// Without a text, the sentence for the operator would end after "there are no ids: ".
func TestEachOutcomeHasWords(t *testing.T) {
	for _, o := range []tokens.Outcome{tokens.Given, tokens.InProcess, tokens.Cached, tokens.Shared, tokens.Beginning, tokens.Render,
		tokens.Tokenize, tokens.Service} {
		if origins[o] == "" || missing[o] != "" {
			t.Errorf("%s: ids come from %q", o, origins[o])
		}
	}
	for _, o := range []tokens.Outcome{tokens.Batch, tokens.Off, tokens.TooLong, tokens.Refused, tokens.Unsupported, tokens.NoWorker,
		tokens.Limited, tokens.TimedOut, tokens.Failed} {
		if missing[o] == "" || origins[o] != "" {
			t.Errorf("%s: there are no ids, as %q", o, missing[o])
		}
	}
}
