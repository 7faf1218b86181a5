package api

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

func BenchmarkRead(b *testing.B) {
	for _, size := range []int{250, 33 << 10, 256 << 10} {
		body := chatBody(size)
		b.Run("chat/bytes="+strconv.Itoa(len(body)), func(b *testing.B) {
			var r Request
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if err := Read(OpenAIChat, body, &r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	ids := []byte(`{"model":"m","prompt":[` + strings.Repeat("12345,", 8191) + `1]}`)
	b.Run("ids/n=8192", func(b *testing.B) {
		var r Request
		b.SetBytes(int64(len(ids)))
		b.ReportAllocs()
		for b.Loop() {
			if err := Read(OpenAICompletions, ids, &r); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkWatcher feeds events to a Watcher. There are three kinds of events: events that differ only in their
// content, which contentEvent recognizes; events with changing ids, which contentEvent does not recognize; and events
// that are split in the middle.
func BenchmarkWatcher(b *testing.B) {
	event := `data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1760000000,"model":"mock","choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	other := strings.Replace(event, "chatcmpl-0", "chatcmpl-1", 1)
	f := func(name string, pieces ...string) {
		b.Run(name, func(b *testing.B) {
			var w Watcher
			w.Reset(OpenAIChat, EventStream)
			raw := bytes.Join([][]byte{[]byte(event)}, nil)
			list := [][]byte{raw}
			if len(pieces) > 0 {
				list = nil
				for _, p := range pieces {
					list = append(list, []byte(p))
				}
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				w.Feed(list[i])
				if i++; i == len(list) {
					i = 0
				}
			}
		})
	}
	f("content")
	f("changing", event, other)
	withIDs := strings.Replace(event, `null}]`, `null,"token_ids":[%d]}]`, 1)
	f("ids", fmt.Sprintf(withIDs, 123), fmt.Sprintf(withIDs, 45678))
	f("split", event[:150], event[150:])
}
