package zmtp

import (
	"bytes"
	"fmt"
	"testing"
)

// endless repeats its data, like a connection that always has data.
type endless struct {
	data []byte
	at   int
}

func (e *endless) Read(buf []byte) (int, error) {
	n := copy(buf, e.data[e.at:])
	e.at = (e.at + n) % len(e.data)
	return n, nil
}

// BenchmarkReader measures how fast a byte stream is split into messages, without a network.
func BenchmarkReader(b *testing.B) {
	for _, size := range []int{1000, 20_000} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			message := appendMessage(nil, []byte("kv-events"), make([]byte, 8), make([]byte, size))
			r := newReader(&endless{data: bytes.Repeat(message, 100)}, 64<<10, limits{64 << 20, 64 << 20, 8})
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.next(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSubscriber measures publisher, loopback connection and subscriber together. The benchmark keeps few enough
// messages under way that no message is dropped.
func BenchmarkSubscriber(b *testing.B) {
	for _, size := range []int{1000, 20_000} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			const window = 1000
			tokens := make(chan struct{}, window)
			pub, _ := start(b, PUB, "tcp://127.0.0.1:0", Config{Bind: true, SendQueue: 2 * window, SendQueueBytes: 1 << 30})
			start(b, SUB, pub.Endpoint(), Config{Topics: []string{""}, OnMessage: func(*Peer, [][]byte) { <-tokens }})
			untilSubscribed(b, pub, "", 1)
			seq, body := make([]byte, 8), make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				tokens <- struct{}{}
				pub.Publish([]byte("kv-events"), seq, body)
			}
			for range window { // this loop ends when the subscriber has taken all earlier messages
				tokens <- struct{}{}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
			if d := pub.Stats().Dropped; d > 0 {
				b.Errorf("%d dropped", d)
			}
		})
	}
}
