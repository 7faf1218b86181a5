package mockengine

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// BenchmarkRequests measures client and server together. Steps take no time (speed 0). The bodies have 8 KB, and most
// of their tokens are cached.
func BenchmarkRequests(b *testing.B) {
	for _, mode := range []struct {
		name   string
		stream bool
	}{{"whole", false}, {"streamed", true}} {
		b.Run(mode.name, func(b *testing.B) {
			s := start(b, nil)
			data, err := json.Marshal(object{"model": "mock", "stream": mode.stream,
				"messages": []any{userSays(strings.Repeat("eight kilobytes of text ", 340))}})
			if err != nil {
				b.Fatal(err)
			}
			c := client(b)
			b.ReportAllocs()
			b.SetParallelism(16)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					response, err := c.Post(s.URL()+chatPath, "application/json", bytes.NewReader(data))
					if err != nil {
						b.Error(err)
						return
					}
					_, err = io.Copy(io.Discard, response.Body)
					response.Body.Close()
					if err != nil || response.StatusCode != http.StatusOK {
						b.Errorf("status %d, %v", response.StatusCode, err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "req/s")
		})
	}
}
