package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/proxy"
)

// clear2 returns a client that speaks only HTTP/2 in clear text.
func clear2() *http.Client {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: protocols}}
}

func TestClientsMaySpeakHTTP2InClearText(t *testing.T) {
	f := serve(t, func(s *settings) { s.gateway.HTTP2 = true }, worker(t, streaming))
	client := clear2()
	defer client.CloseIdleConnections()
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for range 5 {
				resp, err := client.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"m","stream":true,"messages":[]}`))
				if err != nil {
					t.Error(err)
					return
				}
				text, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if want := firstChunk + lastChunk + fmt.Sprintf(usageChunk, 0) + doneChunk; err != nil || resp.ProtoMajor != 2 || string(text) != want {
					t.Errorf("%s %d %v: %q", resp.Proto, resp.StatusCode, err, text)
				}
			}
		})
	}
	clients.Wait()
	f.idle(t)
	if resp, text := f.post(t, chatStreamed); resp.StatusCode != http.StatusOK || resp.ProtoMajor != 1 {
		t.Errorf("HTTP/1.1 beside it: %s %d %s", resp.Proto, resp.StatusCode, text)
	}
	client.CloseIdleConnections()
	if err := f.stop(); err != nil {
		t.Errorf("drain: %v", err)
	}
}

// client_timeout bounds how long a client may stop reading. A worker that is silent for longer is no fault of the
// client.
func TestASilentWorkerEndsNoStreamOfAnHTTP2Client(t *testing.T) {
	event := strings.Replace(firstChunk, "hello", strings.Repeat("a", 8<<10), 1)
	const timeout = 100 * time.Millisecond
	for _, http2 := range []bool{true, false} {
		f := serve(t, func(s *settings) {
			s.gateway.HTTP2 = true
			s.parts = func(p *gateway.Parts) {
				cfg := proxy.DefaultConfig()
				cfg.ClientTimeout = timeout
				p.Client = proxy.New(cfg)
			}
		}, worker(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for range 2 {
				for range 3 {
					_, _ = io.WriteString(w, event)
					w.(http.Flusher).Flush()
				}
				takes(r, 4*timeout)
			}
			_, _ = io.WriteString(w, lastChunk+doneChunk)
		}))
		client := f.client
		if http2 {
			client = clear2()
		}
		resp, err := client.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(chatStreamed))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || string(text) != strings.Repeat(event, 6)+lastChunk+doneChunk {
			t.Errorf("%s: %v after %d bytes", resp.Proto, err, len(text))
		}
		client.CloseIdleConnections()
		f.idle(t)
	}
}

// A client of HTTP/2 says how many bytes it takes. One that takes none leaves its worker like any client that stops
// reading.
func TestAnHTTP2ClientThatTakesNoByteLeavesItsWorker(t *testing.T) {
	left := make(chan struct{})
	f := serve(t, func(s *settings) {
		s.gateway.HTTP2 = true
		s.parts = func(p *gateway.Parts) {
			cfg := proxy.DefaultConfig()
			cfg.ClientTimeout = 50 * time.Millisecond
			p.Client = proxy.New(cfg)
		}
	}, worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, firstChunk)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(left)
	}))
	client := clear2()
	client.Transport.(*http.Transport).HTTP2 = &http.HTTP2Config{MaxReceiveBufferPerStream: 1}
	defer client.CloseIdleConnections()
	resp, err := client.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(chatStreamed))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	select {
	case <-left:
	case <-time.After(time.Minute):
		t.Error("the worker still has the request of a client that takes no byte")
	}
}

// deadlined is a writer of HTTP/2, whose client has a time for reading.
type deadlined struct {
	http.ResponseWriter
	begun, ended time.Time // the deadline at the first byte, and the last one
}

func (d *deadlined) SetWriteDeadline(at time.Time) error {
	d.ended = at
	return nil
}

func (d *deadlined) Write(b []byte) (int, error) {
	if d.begun.IsZero() {
		d.begun = d.ended
	}
	return d.ResponseWriter.Write(b)
}

// net/http writes the end of an answer after the handler, and would wait for the client for ever.
func TestAnHTTP2ClientHasATimeForTheEndOfItsAnswer(t *testing.T) {
	f := serve(t, nil)
	for _, path := range []string{"/health", "/v1/models", "/v1/chat/completions"} {
		d := &deadlined{ResponseWriter: httptest.NewRecorder()}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.ProtoMajor = 2
		f.ServeHTTP(d, r)
		if own := path != "/v1/chat/completions"; time.Until(d.ended) < time.Minute || d.begun.IsZero() == own {
			t.Errorf("%s: the client may read until %v, and what the router wrote itself until %v", path, d.ended, d.begun)
		}
	}
}

func TestHTTP2InClearTextIsOffByDefault(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	client := clear2()
	defer client.CloseIdleConnections()
	if resp, err := client.Get(f.url + "/health"); err == nil {
		_ = resp.Body.Close()
		t.Errorf("answered %s %d", resp.Proto, resp.StatusCode)
	}
}
