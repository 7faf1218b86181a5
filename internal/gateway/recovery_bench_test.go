package gateway_test

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/warmpath/warmpath/internal/gateway"
)

// BenchmarkStreamedChunks measures what the recovery costs a stream that loses no worker: a chat of 1,000 chunks, each
// in a write of its own, with the recovery off and armed. cpu-ns/chunk is the processor time of the whole process. It
// includes the worker's writes, which are the same for both but for the ids.
func BenchmarkStreamedChunks(b *testing.B) {
	const chunks = 1000
	for _, mode := range []string{gateway.RecoverOff, gateway.RecoverExact} {
		b.Run(mode, func(b *testing.B) {
			f := serve(b, func(s *settings) {
				s.policy, s.facts.Version, s.gateway.StreamRecovery = "round_robin", "0.32.0", mode
			}, streamer(b, chunks), streamer(b, chunks))
			body := `{"model":"m","stream":true,"temperature":0,"max_tokens":2000,"messages":[{"role":"user","content":"hi"}]}`
			w := &discard{}
			b.ReportAllocs()
			before := processorTime(b)
			for b.Loop() {
				w.header = http.Header{}
				r, err := http.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				r.Header.Set("Content-Type", "application/json")
				r.RequestURI = "/v1/chat/completions"
				f.ServeHTTP(w, r)
			}
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N)/chunks, "cpu-ns/chunk")
			if rec := f.Telemetry.Last(1); len(rec) != 1 || rec[0].Finish != "success" {
				b.Fatalf("not served: %+v", rec)
			}
		})
	}
}

// BenchmarkLargeEvent measures an event that comes in pieces of 1 KiB. The time for a byte does not depend on the size
// of the event.
func BenchmarkLargeEvent(b *testing.B) {
	for _, size := range []int{16 << 10, 256 << 10, 4 << 20} {
		b.Run(fmt.Sprint(size>>10, "KiB"), func(b *testing.B) {
			event := largeEvent(size)
			b.SetBytes(int64(len(event)))
			for b.Loop() {
				w := gateway.NewRecovery(&discard{header: http.Header{}})
				for piece := range slices.Chunk(event, 1<<10) {
					if _, err := w.Write(piece); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// largeEvent returns an event of a chat with a text of n bytes.
func largeEvent(n int) []byte {
	return fmt.Appendf(nil, `data: {"id":"x","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null,"token_ids":[7]}]}`+"\n\n", strings.Repeat("a", n))
}

// processorTime returns the processor time of this process in nanoseconds.
func processorTime(b *testing.B) int64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

// streamer returns the URL of a worker that answers each request with a stream of n chunks, with ids if they are asked
// for.
func streamer(b *testing.B, n int) string {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var answers [2][][]byte
	for i := range answers {
		ids := func(list string) string { return map[bool]string{false: "null", true: list}[i == 1] }
		head := `{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1795918144,"model":"m","choices":[{"index":0,`
		add := func(event string) {
			event = "data: " + event + "\n\n"
			answers[i] = append(answers[i], fmt.Appendf(nil, "%x\r\n%s\r\n", len(event), event))
		}
		answers[i] = append(answers[i], []byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"))
		add(head + `"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":` + ids("["+strings.Repeat("12345,", 999)+"7]") + `}`)
		for c := range n {
			add(head + fmt.Sprintf(`"delta":{"content":" word%d"},"logprobs":null,"finish_reason":null,"token_ids":%s}]}`, c, ids(fmt.Sprintf("[%d]", 10000+c))))
		}
		add(head + `"delta":{"content":""},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":` + ids("[2]") + `}]}`)
		answers[i] = append(answers[i], []byte("e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"))
	}
	var serving sync.WaitGroup
	serving.Go(func() { // this goroutine ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { // this goroutine ends with its connection, which the gateway closes
				defer func() { _ = c.Close() }()
				for buf := make([]byte, 64<<10); ; {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					which := answers[0]
					if bytes.Contains(buf[:n], []byte("return_token_ids")) {
						which = answers[1]
					}
					for _, part := range which {
						if _, err := c.Write(part); err != nil {
							return
						}
					}
				}
			})
		}
	})
	b.Cleanup(func() { // runs after the gateway's cleanup
		_ = l.Close()
		serving.Wait()
	})
	return "http://" + l.Addr().String()
}
