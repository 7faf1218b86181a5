package harmony

import (
	"strings"
	"time"
)

// Piece is a part of a prompt that is encoded on its own: a special token, or a text without special tokens.
type Piece struct {
	Special string // the token's spelling; "" for a text
	Text    string
}

// Message is one message of a conversation.
type Message struct {
	Author  string   // with the recipient: "assistant to=functions.weather"
	Channel string   // with the content type: "commentary json"; "" is none
	Texts   []string // each is a Piece of its own
	Call    bool     // it ends as the call of a tool
}

// System returns the text of the system message. effort is low, medium or high; the date of now is in the text; tools
// says that the model may call tools.
func System(effort string, now time.Time, tools bool) string {
	text := "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: " +
		now.Format("2006-01-02") + "\n\nReasoning: " + effort +
		"\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message."
	if tools {
		text += "\nCalls to these tools must go to the commentary channel: 'functions'."
	}
	return text
}

// Developer returns the text of the developer message: instructions and tools. Either may be empty.
func Developer(instructions string, tools []Tool) (string, error) {
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

// Render returns the prompt for the assistant's next message. It leaves out the reasoning before the last answer: the
// messages on the channel analysis before the last message on the channel final.
func Render(conversation []Message) []Piece {
	answered := -1
	for i := range conversation {
		if conversation[i].Channel == "final" {
			answered = i
		}
	}
	var out []Piece
	special := func(token string) { out = append(out, Piece{Special: token}) }
	for i := range conversation {
		m := &conversation[i]
		if i < answered && m.Channel == "analysis" {
			continue
		}
		special("<|start|>")
		out = append(out, Piece{Text: m.Author})
		if m.Channel != "" {
			special("<|channel|>")
			out = append(out, Piece{Text: m.Channel})
		}
		special("<|message|>")
		for _, s := range m.Texts {
			if s != "" {
				out = append(out, Piece{Text: s})
			}
		}
		if m.Call {
			special("<|call|>")
		} else {
			special("<|end|>")
		}
	}
	special("<|start|>")
	return append(out, Piece{Text: "assistant"})
}
