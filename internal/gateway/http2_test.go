package gateway_test

import (
	"fmt"
	"io"
	"net/http"
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

func TestHTTP2InClearTextIsOffByDefault(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	client := clear2()
	defer client.CloseIdleConnections()
	if resp, err := client.Get(f.url + "/health"); err == nil {
		_ = resp.Body.Close()
		t.Errorf("answered %s %d", resp.Proto, resp.StatusCode)
	}
}
