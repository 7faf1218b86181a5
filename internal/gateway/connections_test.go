package gateway_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// More clients than may be connected keep their connections alive. Every client is still served.
func TestClientsBeyondTheLimitWait(t *testing.T) {
	const limit, clients, requests = 4, 20, 10
	var here, most atomic.Int64
	f := serve(t, func(s *settings) { s.parts = func(p *gateway.Parts) { p.Connections.Serving = limit } }, worker(t, func(w http.ResponseWriter, r *http.Request) {
		n := here.Add(1)
		defer here.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		plain(w, r)
	}))
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range requests {
				resp, text, err := f.try(context.Background(), chat)
				if err != nil { // on a busy machine a connection may be idle for a second, and is then closed
					resp, text, err = f.try(context.Background(), chat)
				}
				if err != nil || resp.StatusCode != 200 {
					t.Errorf("%v %s", err, text)
				}
			}
		})
	}
	all.Wait()
	if most.Load() > limit {
		t.Errorf("%d requests were served at once, want at most %d", most.Load(), limit)
	}
	// The clients' connections are now idle, and kept alive up to the limit. A further client is still served.
	other := &http.Client{Transport: &http.Transport{}}
	defer other.CloseIdleConnections()
	resp, err := other.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(chat))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := f.stop(); err != nil {
		t.Error(err)
	}
}

// limited serves handler behind a limit of connections, in virtual time. send sends a text on a new connection and
// returns the whole answer; an empty text leaves the connection silent.
func limited(t *testing.T, limit gateway.ConnectionLimit, handler http.HandlerFunc) (send func(text string) (answer string)) {
	memory := network.NewMemory()
	inner, err := memory.Host("10.0.0.1").Listen("tcp", "10.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute}
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	l := gateway.LimitConnections(inner, server, limit, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return func(text string) string {
		conn, err := memory.Host("10.0.0.2").Dial(t.Context(), "tcp", "10.0.0.1:80")
		if err != nil {
			t.Error(err)
			return ""
		}
		defer func() { _ = conn.Close() }()
		_, _ = io.WriteString(conn, text)
		answer, _ := io.ReadAll(conn)
		return string(answer)
	}
}

const (
	getHealth = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	getOther  = "GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n" // a request after which the connection stays open
	ok        = "HTTP/1.1 200 "
	noPlace   = "HTTP/1.1 503 "
)

// There are more clients and silent connections than the limit of connections allows. Probes must still be answered.
func TestProbesAreAnsweredBeforeClientsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		send := limited(t, gateway.ConnectionLimit{Serving: 2, Waiting: 3, Spare: 4}, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/health" {
				<-release
			}
		})
		var clients sync.WaitGroup
		var served, refused, silent atomic.Int64
		for range 50 {
			clients.Go(func() {
				switch answer := send(getOther); {
				case strings.HasPrefix(answer, ok):
					served.Add(1)
				case strings.HasPrefix(answer, noPlace):
					refused.Add(1)
				}
			})
			clients.Go(func() {
				if send("") == "" {
					silent.Add(1)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		for range 10 {
			if answer := send(getHealth); !strings.HasPrefix(answer, ok) {
				t.Fatalf("a probe got %q", answer)
			}
		}
		if n := served.Load(); n != 0 {
			t.Errorf("%d clients were served before the probes", n)
		}
		t.Logf("ten probes took %v", time.Since(began))
		testenv.Pass(10 * time.Second)
		close(release)
		clients.Wait()
		if served.Load() != 2+3 || refused.Load() != 50-2-3 || silent.Load() != 50 {
			t.Errorf("%d served, %d refused, %d silent ones closed; want 5, 45, 50", served.Load(), refused.Load(), silent.Load())
		}
	})
}

// 100 clients connect at the same time, and four requests are served at a time. The last clients are served after about
// 7 s, which is longer than waitEnough. No client is refused, because a place becomes free every 250 ms.
func TestNoClientIsRefusedWhilePlacesComeFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var here, most atomic.Int64
		send := limited(t, gateway.ConnectionLimit{Serving: 4, Waiting: 4, Spare: 4}, func(_ http.ResponseWriter, r *http.Request) {
			most.Store(max(most.Load(), here.Add(1)))
			takes(r, 250*time.Millisecond)
			here.Add(-1)
		})
		var clients sync.WaitGroup
		for range 100 {
			clients.Go(func() {
				if answer := send(getOther); !strings.HasPrefix(answer, ok) {
					t.Errorf("a client got %q", answer)
				}
			})
		}
		clients.Wait()
		if most.Load() != 4 {
			t.Errorf("%d were served at once, want 4", most.Load())
		}
	})
}

// A request over HTTP/1.1 and a stream over HTTP/2 take longer than a connection may be idle. Neither connection is
// idle, so neither may be closed.
func TestAConnectionWithARequestIsNotClosedForAWaitingClient(t *testing.T) {
	const settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	// GET /a with HPACK's static table: :method GET, :scheme http, :path literal, :authority literal.
	const head = "\x82\x86\x04\x02/a\x01\x01x"
	http2 := "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + "\x00\x00" + string(rune(len(head))) + "\x01\x05\x00\x00\x00\x01" + head
	for protocol, text := range map[string]string{"HTTP/1.1": getOther, "HTTP/2": http2} {
		t.Run(protocol, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				send := limited(t, gateway.ConnectionLimit{Serving: 1, Waiting: 1, Spare: 2}, func(w http.ResponseWriter, r *http.Request) {
					if asked.Add(1) == 1 {
						takes(r, time.Minute)
					}
					_, _ = io.WriteString(w, "whole")
				})
				var both sync.WaitGroup
				for _, text := range []string{text, getOther} {
					both.Go(func() {
						if answer := send(text); !strings.Contains(answer, "whole") {
							t.Errorf("%q", answer)
						}
					})
					synctest.Wait()
				}
				both.Wait()
			})
		})
	}
}

// One HTTP/2 connection carries many requests, and each request needs a file descriptor for the connection to its
// worker. So the limit counts requests.
func TestStreamsOfOneHTTP2ConnectionAreLimitedAsClientsAre(t *testing.T) {
	const limit = 4
	var here, most atomic.Int64
	f := serve(t, func(s *settings) {
		s.gateway.HTTP2 = true
		s.parts = func(p *gateway.Parts) { p.Connections = gateway.ConnectionLimit{Serving: limit, Waiting: 100} }
	}, worker(t, func(w http.ResponseWriter, r *http.Request) {
		n := here.Add(1)
		defer here.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		plain(w, r)
	}))
	client := clear2()
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	for range 60 {
		all.Go(func() {
			resp, err := client.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(chat))
			if err != nil {
				t.Error(err)
				return
			}
			_ = resp.Body.Close()
			if resp.StatusCode != 200 || resp.ProtoMajor != 2 {
				t.Errorf("%s %d", resp.Proto, resp.StatusCode)
			}
		})
	}
	all.Wait()
	if most.Load() > limit {
		t.Errorf("%d requests were served at once, want at most %d", most.Load(), limit)
	}
}
