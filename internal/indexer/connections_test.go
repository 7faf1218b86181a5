package indexer

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// A connection over gRPC beyond the bound is closed at once. When another one has ended, there is room again.
func TestConnectionsOverGRPCAreBounded(t *testing.T) {
	log := new(testenv.Buffer)
	w := serve(t, Config{}, func(p *Parts) {
		p.Connections.GRPC = 2
		p.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	w.worker("http://a", nil)
	first := w.dial()
	score := func() error {
		return first.Invoke(t.Context(), rpcName+"Score", &question{tokens: []block.Token{1}}, new(answer))
	}
	if err := score(); err != nil {
		t.Fatal(err)
	}
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", w.rpc)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		return conn
	}
	// served reports whether the service keeps a connection: then it sends its settings.
	served := func(conn net.Conn) bool {
		_, _ = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		n, _ := conn.Read(make([]byte, 1))
		return n > 0
	}
	second := dial()
	if !served(second) {
		t.Error("the second connection is refused")
	}
	if served(dial()) {
		t.Error("the third connection is served")
	}
	if served(dial()) {
		t.Error("the fourth connection is served")
	}
	if n := strings.Count(log.String(), "ulimit -n"); n != 1 {
		t.Errorf("%d warnings of two refused connections:\n%s", n, log)
	}
	if err := score(); err != nil {
		t.Errorf("the first connection: %v", err)
	}
	_ = first.Close()
	testenv.Until(t, "there is room again", func() bool { return served(dial()) })
}

// The bound of connections over HTTP is the process's. What is refused gets an answer.
func TestConnectionsOverHTTPAreBounded(t *testing.T) {
	log := new(testenv.Buffer)
	w := serve(t, Config{}, func(p *Parts) {
		p.Log = slog.New(slog.NewTextHandler(log, nil))
		p.Connections.HTTP = func(l net.Listener, server *http.Server, refuse http.HandlerFunc) net.Listener {
			next := server.Handler
			server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/workers" {
					refuse(w, r)
					return
				}
				next.ServeHTTP(w, r)
			})
			return l
		}
	})
	if status, text := w.ask("GET", "/workers", ""); status != http.StatusServiceUnavailable || !strings.Contains(text, "connections") || !strings.Contains(log.String(), "listener=HTTP") {
		t.Errorf("%d %s\n%s", status, text, log)
	}
	if status, text := w.ask("GET", "/dump", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
}
