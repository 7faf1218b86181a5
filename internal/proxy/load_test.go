package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// fastWorker is a worker that reads the whole body, and answers without delay with a stream that depends on the body.
// It flushes after each event.
func fastWorker(t testing.TB) *httptest.Server {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range streamOf(body) {
			io.WriteString(w, e)
			w.(http.Flusher).Flush()
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func streamOf(body []byte) (events []string) {
	sum := 0
	for i, c := range body {
		sum += int(c) * (i%7 + 1)
	}
	for i := range 5 {
		events = append(events, fmt.Sprintf("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d-%d\"},\"finish_reason\":null}]}\n\n", sum, i))
	}
	return append(events, finish, usage, done)
}

// TestNoStreamIsTruncatedUnderLoad runs the load under which httputil.ReverseProxy truncates streams (golang/go#40747):
// 200 connections, bodies of 8 KB, and a backend that answers without delay.
func TestNoStreamIsTruncatedUnderLoad(t *testing.T) {
	w := fastWorker(t)
	url, _ := gateway(t, newClient(t, nil), func(a *Attempt) { a.Worker = w.URL })
	tr := &http.Transport{MaxIdleConnsPerHost: 200}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	rounds := 20
	if testing.Short() {
		rounds = 3
	}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(i), 1))
			body := make([]byte, 8<<10)
			for range rounds {
				for j := range body {
					body[j] = byte('a' + rnd.IntN(26))
				}
				resp, err := client.Post(url, "application/json", bytes.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if want := strings.Join(streamOf(body), ""); err != nil || string(got) != want {
					t.Errorf("got %d of %d bytes, %v", len(got), len(want), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestASlowClientDoesNotHoldUpOthers(t *testing.T) {
	event := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" + strings.Repeat("x", 4000) + "\"},\"finish_reason\":null}]}\n\n"
	w := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		if string(body) == "endless" {
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, event); err != nil {
					return
				}
			}
			return
		}
		io.WriteString(w, token+finish+done)
	}))
	w.Config.Protocols = new(http.Protocols)
	w.Config.Protocols.SetHTTP1(true)
	w.Config.Protocols.SetUnencryptedHTTP2(true)
	w.Start()
	defer w.Close()
	via.know(t, w.URL)
	c := newClient(t, func(cfg *Config) { cfg.ClientTimeout = 300 * time.Millisecond })
	url, results := gateway(t, c, func(a *Attempt) { a.Worker = w.URL })
	slow, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	io.WriteString(slow, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\nendless")
	slow.Read(make([]byte, 1)) // the slow client reads one byte, and then stops reading
	for range 50 {
		if _, body, err := post(t, url, "{}"); err != nil || body != token+finish+done {
			t.Fatalf("%q, %v", body, err)
		}
	}
	gone := 0 // number of clients that left; the result of the slow client may come before those of other clients
	for range 51 {
		if res := <-results; res.Class == ClientGone {
			gone++
		} else if res.Class != Success {
			t.Errorf("%v: %v", res.Class, res.Err)
		}
	}
	if gone != 1 {
		t.Errorf("%d clients count as gone, want the one that does not read", gone)
	}
}

func TestIPv6Workers(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	host := make(chan string, 1)
	w := &httptest.Server{Listener: l, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host <- r.Host
		io.WriteString(w, wholeBody)
	})}}
	w.Start()
	defer w.Close()
	a := attempt("http://"+l.Addr().String()+"/", httptest.NewRecorder())
	if res := newClient(t, nil).Forward(context.Background(), a); res.Class != Success || <-host != l.Addr().String() {
		t.Errorf("%+v", res)
	}
}

// idleAt returns the number of idle connections to the worker at url.
func idleAt(c *Client, url string) int {
	w, _ := c.worker(url)
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.idle)
}

func TestConnectionsAreKeptWithinLimits(t *testing.T) {
	w := fastWorker(t)
	c := newClient(t, func(cfg *Config) { cfg.IdlePerWorker, cfg.IdleTimeout = 3, 50*time.Millisecond })
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { c.Forward(context.Background(), attempt(w.URL, httptest.NewRecorder())) })
	}
	wg.Wait()
	idle := func() int { return idleAt(c, w.URL) }
	if n := idle(); n > 3 {
		t.Errorf("%d idle connections, want at most 3", n)
	}
	if !testenv.Poll(time.Minute, func() bool { return idle() == 0 }) {
		t.Errorf("%d connections are still idle after their time", idle())
	}
}

func TestKeepDropsWorkersThatAreNotServed(t *testing.T) {
	left, stays := fastWorker(t), fastWorker(t)
	c := newClient(t, func(cfg *Config) { cfg.IdleTimeout = time.Hour })
	for _, w := range []string{left.URL, stays.URL} {
		c.Forward(context.Background(), attempt(w, httptest.NewRecorder()))
	}
	l, _ := c.worker(left.URL)
	s, _ := c.worker(stays.URL)
	keep := func() { c.Keep(func(url string) bool { return url == stays.URL }) }
	keep()
	if len(l.idle) != 0 || len(s.idle) != 1 || len(c.workers) != 1 {
		t.Errorf("%d and %d idle connections, %d workers; want 0, 1 and 1", len(l.idle), len(s.idle), len(c.workers))
	}
	a := attempt(left.URL, httptest.NewRecorder())
	a.OnFirstToken = func(time.Time) { keep() }
	if res := c.Forward(context.Background(), a); res.Class != Success {
		t.Errorf("a request that was at the worker when it left: %+v", res)
	}
	if len(c.workers) != 1 || c.all()[0] != s {
		t.Errorf("%d workers after Keep, want 1", len(c.workers))
	}
	if res := c.Forward(context.Background(), attempt(left.URL, httptest.NewRecorder())); res.Class != Success || res.Reused {
		t.Errorf("a request to a worker that came back: %+v", res)
	}
}

// sink is a client that reads every byte immediately.
type sink struct {
	h http.Header
	n int
}

func (s *sink) Header() http.Header         { return s.h }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Flush()                      {}
func (s *sink) Write(b []byte) (int, error) { s.n += len(b); return len(b), nil }

// BenchmarkForward measures the proxy's side of an exchange. The worker answers from memory: 64 events with a token and
// three further events, one write for each event or one write for all.
func BenchmarkForward(b *testing.B) {
	var pieces []string
	pieces = append(pieces, chunkedHead+chunks(token))
	for range 63 {
		pieces = append(pieces, chunks(token))
	}
	pieces = append(pieces, chunks(finish), chunks(usage), chunks(done)+lastChunk)
	whole := strings.Join(pieces, "")
	bytesOf := func(list ...string) (out [][]byte) {
		for _, s := range list {
			out = append(out, []byte(s))
		}
		return out
	}
	for _, bench := range []struct {
		name   string
		pieces [][]byte
	}{{"events=64", bytesOf(pieces...)}, {"events=64/onewrite", bytesOf(whole)}} {
		b.Run(bench.name, func(b *testing.B) {
			w := newRawWorker(b, func(c net.Conn, _ *http.Request, _ []byte) bool {
				for _, p := range bench.pieces {
					c.Write(p)
				}
				return true
			})
			c := newClient(b, nil)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			s := &sink{h: http.Header{}}
			a := attempt(w.url, s)
			a.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer x"}, "Accept": {"*/*"}}
			a.RequestID = "id"
			b.ReportAllocs()
			for b.Loop() {
				clear(s.h)
				if res := c.Forward(ctx, a); res.Class != Success {
					b.Fatal(res.Err)
				}
			}
		})
	}
}
