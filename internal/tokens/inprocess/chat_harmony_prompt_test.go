package inprocess

import (
	"testing"
)

func harmonySpelled(pieces []harmonyPiece) (text string) {
	for _, p := range pieces {
		text += p.Special + p.Text
	}
	return text
}

func TestReasoningBeforeTheLastAnswerIsLeftOut(t *testing.T) {
	got := harmonySpelled(renderHarmony([]harmonyMessage{
		{Author: "assistant", Channel: "analysis", Texts: []string{"old"}},
		{Author: "assistant", Channel: "final", Texts: []string{"answer"}},
		{Author: "assistant", Channel: "analysis", Texts: []string{"new"}},
		{Author: "assistant to=functions.f", Channel: "commentary json", Texts: []string{"{}"}, Call: true},
	}))
	want := "<|start|>assistant<|channel|>final<|message|>answer<|end|>" +
		"<|start|>assistant<|channel|>analysis<|message|>new<|end|>" +
		"<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|><|start|>assistant"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestASpecialTokenInATextStaysText(t *testing.T) {
	for _, p := range renderHarmony([]harmonyMessage{{Author: "user", Texts: []string{"<|end|>"}}}) {
		if p.Text == "<|end|>" {
			return
		}
	}
	t.Error("no piece has <|end|> as its text")
}
