package jinja

import (
	"strings"
	"testing"
)

// BenchmarkDecode reads the bodies of two chats. One chat has many short messages, and the other chat has one long
// text.
func BenchmarkDecode(b *testing.B) {
	message := `{"role":"user","content":"How is the weather in Paris today?\nAnd \"tomorrow\"?","name":"ann"},`
	for name, body := range map[string]string{
		"messages": `{"messages":[` + strings.Repeat(message, 500) + `{}],"temperature":0.5,"max_tokens":100}`,
		"text": `{"messages":[{"role":"user","content":"` +
			strings.Repeat("It rains, and naïve people say: it pours. ", 1500) + `"}]}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(body)))
			for b.Loop() {
				if _, err := new(Decoder).Decode([]byte(body)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
