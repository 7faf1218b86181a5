package inprocess

import (
	"strings"
	"time"
)

// Harmony prompts are written as the library openai-harmony writes them (src/encoding.rs of oss-harmony 0.0.10). This
// file copies the library's special cases, because a prompt must have the same tokens. Each piece is encoded
// separately. So if a client writes the spelling of a special token in a text, this spelling remains text.

// harmonyPiece is a part of a prompt that is encoded separately: a special token, or a text without special tokens.
type harmonyPiece struct {
	Special string // the token's spelling; "" for a text
	Text    string
}

// harmonyMessage is one message of a conversation.
type harmonyMessage struct {
	Author  string   // author with the recipient: "assistant to=functions.weather"
	Channel string   // channel with the content type: "commentary json"; "" is none
	Texts   []string // texts of the message; each is a separate harmonyPiece
	Call    bool     // the message is a tool call, and ends with <|call|>
}

// harmonySystem returns the text of the system message. effort is low, medium or high. The text contains the date of
// the time now. tools is true if the model may call tools.
func harmonySystem(effort string, now time.Time, tools bool) string {
	text := "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: " +
		now.Format("2006-01-02") + "\n\nReasoning: " + effort +
		"\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message."
	if tools {
		text += "\nCalls to these tools must go to the commentary channel: 'functions'."
	}
	return text
}

// harmonyDeveloper returns the text of the developer message, which has sections for instructions and for tools. An
// empty section is left out.
func harmonyDeveloper(instructions string, tools []harmonyTool) (string, error) {
	var sections []string
	if instructions != "" {
		sections = append(sections, "# Instructions", instructions)
	}
	if len(tools) > 0 {
		text, err := toolSection(tools)
		if err != nil {
			return "", err
		}
		sections = append(sections, text)
	}
	return strings.Join(sections, "\n\n"), nil
}

// renderHarmony returns the prompt for the assistant's next message. It leaves out the reasoning that came before the
// last answer: the messages on the channel analysis before the last message on the channel final.
func renderHarmony(conversation []harmonyMessage) []harmonyPiece {
	answered := -1
	for i := range conversation {
		if conversation[i].Channel == "final" {
			answered = i
		}
	}
	var out []harmonyPiece
	special := func(token string) { out = append(out, harmonyPiece{Special: token}) }
	for i := range conversation {
		m := &conversation[i]
		if i < answered && m.Channel == "analysis" {
			continue
		}
		special("<|start|>")
		out = append(out, harmonyPiece{Text: m.Author})
		if m.Channel != "" {
			special("<|channel|>")
			out = append(out, harmonyPiece{Text: m.Channel})
		}
		special("<|message|>")
		for _, s := range m.Texts {
			if s != "" {
				out = append(out, harmonyPiece{Text: s})
			}
		}
		if m.Call {
			special("<|call|>")
		} else {
			special("<|end|>")
		}
	}
	special("<|start|>")
	return append(out, harmonyPiece{Text: "assistant"})
}
