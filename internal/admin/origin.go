package admin

import (
	"fmt"
	"strings"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/tokens"
)

// origins are texts for the source of a prompt's ids.
var origins = map[tokens.Outcome]string{
	tokens.Given:     "the ids are in the body",
	tokens.InProcess: "the ids are made in the router",
	tokens.Cached:    "the ids are remembered from an earlier request",
	tokens.Shared:    "the ids are the answer to another request's question",
	tokens.Beginning: "the ids of the prompt's beginning are remembered from earlier requests, the rest is estimated",
	tokens.Render:    "an engine rendered the ids for this request",
	tokens.Tokenize:  "an engine tokenized the prompt for this request",
	tokens.Service:   "the tokenizer service made the ids",
}

// missing are texts for the reason why a prompt has no ids.
var missing = map[tokens.Outcome]string{
	tokens.Batch:       "the body has several prompts",
	tokens.Off:         "no engine is asked (tokens.budget is 0)",
	tokens.TooLong:     "the body is longer than tokens.max_prompt_bytes",
	tokens.Refused:     "the engine does not tokenize this body, or demands a client's key, which explain cannot send",
	tokens.Unrendered:  "the engine's prompt depends on more than the body, and no engine here renders it for the router",
	tokens.Unsupported: "no worker of the model tokenizes",
	tokens.NoWorker:    "no worker of the model can be asked now",
	tokens.Limited:     "the engines had as many questions as they may, or seem to be frozen, or all questions together take the memory that they may",
	tokens.TimedOut:    "no answer came within the time that a match of this prompt is worth",
	tokens.Failed:      "every worker that was asked failed",
}

// lacking says what a body without a prompt lacks, and what to add. It returns "" for a body with a prompt.
func lacking(d api.Dialect, body []byte) string {
	if d != api.OpenAIChat && d != api.OpenAICompletions {
		return ""
	}
	var r api.Request
	if err := api.Read(d, body, &r); err != nil || r.Form != api.PromptNone || r.Raw(api.FieldPromptEmbeds) != nil {
		return ""
	}
	chat, completions := api.OpenAIChat.Path(), api.OpenAICompletions.Path()
	if d == api.OpenAIChat {
		return fmt.Sprintf("the body has no messages: add messages for a request to %s, or prompt for a request to %s", chat, completions)
	}
	return fmt.Sprintf("the body has no prompt: add prompt for a request to %s, or explain a body with messages as a request to %s",
		completions, chat)
}

// originOf returns a text: the source of an explained prompt's ids, or the reason why it has none; and the usual source
// of ids for the prompt's model. lacks is the result of lacking.
func originOf(e *gateway.Explanation, models []TokenModel, lacks string) string {
	if lacks != "" && e.TokensMissing == tokens.Refused {
		return "there are no ids: " + lacks
	}
	said := origins[e.TokenSource]
	switch {
	case said != "":
	case e.TokenSource == tokens.Text:
		said = "there are no ids: " + missing[e.TokensMissing] + "; the prompt is matched by its text, which finds only what this router sent before"
	default:
		said = "there are no ids: " + missing[e.TokenSource]
	}
	switch e.TokenSource {
	case tokens.Given, tokens.Service, tokens.Batch, tokens.Off: // the model's files do not matter
		return said
	}
	var all []string
	for i := range models {
		if models[i].Model == e.Record.Base {
			all = append(all, models[i].describe())
		}
	}
	if len(all) == 0 {
		return said
	}
	return said + ". " + strings.Join(all, ". ")
}

// describe returns a text about the source of the ids of m, and what to do about it.
func (m *TokenModel) describe() string {
	said := ""
	switch m.Source {
	case "given":
		return fmt.Sprintf("The router makes the ids of %s (%s) from %s, which was named", m.Model, m.Engine, m.Folder)
	case "files":
		return fmt.Sprintf("The router makes the ids of %s (%s) from %s, which it found: the engine agreed in %d prompts", m.Model, m.Engine,
			m.Folder, m.Prompts)
	case "search":
		said = fmt.Sprintf("The engines (%s) are asked for the ids of %s for now", m.Engine, m.Model)
	default:
		said = fmt.Sprintf("The engines (%s) are asked for the ids of %s", m.Engine, m.Model)
	}
	if m.Why != "" {
		said += ": " + m.Why
	}
	if m.Advice != "" {
		said += "; what to do: " + m.Advice
	}
	return said
}
