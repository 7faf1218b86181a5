package gateway_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// discard is a client that throws the answer away.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (*discard) WriteHeader(int)               {}

// BenchmarkServe measures one request through the gateway. The worker on loopback answers without delay. With ids, the
// request has token ids, so the figure includes matching.
func BenchmarkServe(b *testing.B) {
	for _, c := range []struct {
		name   string
		prompt int
		change func(*settings)
	}{
		{"ids=0", 0, nil},
		{"ids=4096", 4096, nil},
		{"shadow,ids=4096", 4096, func(s *settings) { s.shadow, s.sample = "least_load", 1 }},
		{"access log,ids=4096", 4096, logging(b, "access")},
		{"decision log,ids=4096", 4096, logging(b, "decision")},
		{"traces not in the sample,ids=4096", 4096, tracing(b, 0)},
		{"traces,ids=4096", 4096, tracing(b, 1)},
		{"queue,ids=0", 0, func(s *settings) { s.queue, s.most = queue.DefaultConfig(), 100; s.queue.Order = queue.Fair }},
	} {
		b.Run(c.name, func(b *testing.B) {
			prompt := c.prompt
			f := benchmarked(b, c.change)
			path, body := "/v1/chat/completions", chat
			if prompt > 0 {
				path, body = "/v1/completions", `{"model":"m","prompt":[`+strings.Repeat("123,", prompt-1)+`7]}`
			}
			w := &discard{}
			b.ReportAllocs()
			for b.Loop() {
				w.header = http.Header{}
				r, err := http.NewRequest(http.MethodPost, path, strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer sk-0123456789abcdef")
				r.Header.Set("Content-Type", "application/json")
				r.RequestURI = path
				f.ServeHTTP(w, r)
			}
			b.StopTimer()
			if n := len(f.Telemetry.Last(1)); n != 1 || f.Telemetry.Last(1)[0].Status != http.StatusOK {
				b.Fatalf("not served: %+v", f.Telemetry.Last(1))
			}
		})
	}
}

// logging makes a gateway write one of the logs into a file.
func logging(b *testing.B, name string) func(*settings) {
	return func(s *settings) {
		s.parts = func(p *gateway.Parts) {
			j := p.Telemetry.NewJournal(name, telemetry.JournalConfig{File: filepath.Join(b.TempDir(), name), Sample: 1}, p.Log)
			runUntilEnd(b, j.Run)
			if name == "access" {
				p.AccessLog = j
			} else {
				p.DecisionLog = j
			}
		}
	}
}

// tracing makes a gateway send traces to a collector that only reads them.
func tracing(b *testing.B, sample float64) func(*settings) {
	return func(s *settings) {
		server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
		b.Cleanup(server.Close)
		s.parts = func(p *gateway.Parts) {
			on := make(chan struct{})
			tracer, err := p.Telemetry.NewTracer(telemetry.TracesConfig{Endpoint: server.URL, Sample: sample}, "v", slog.New(&firstLine{Handler: slog.DiscardHandler, came: on}))
			if err != nil {
				b.Fatal(err)
			}
			runUntilEnd(b, tracer.Run)
			<-on
			p.Tracer = tracer
		}
	}
}

// runUntilEnd runs a component until the benchmark ends.
func runUntilEnd(b *testing.B, run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = run(ctx) })
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// benchmarked returns a gateway in front of a worker that only answers.
func benchmarked(b *testing.B, change func(*settings)) *fixture {
	b.Helper()
	answer := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(whole), whole)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { // this goroutine ends when the listener is closed
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { answerAll(c, answer) }) // this goroutine ends with its connection, which the gateway closes
		}
	})
	b.Cleanup(func() { // runs after the gateway's cleanup
		_ = l.Close()
		serving.Wait()
	})
	return serve(b, change, "http://"+l.Addr().String())
}

// answerAll answers every request on c. It assumes that a request is complete when the bytes of a read end with a
// closing brace.
func answerAll(c net.Conn, answer string) {
	defer func() { _ = c.Close() }()
	buf := make([]byte, 64<<10)
	for {
		n, err := c.Read(buf)
		if err != nil {
			return
		}
		if buf[n-1] != '}' {
			continue
		}
		if _, err := c.Write([]byte(answer)); err != nil {
			return
		}
	}
}
