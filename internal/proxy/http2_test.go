package proxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// overHTTP2 makes t's workers speak HTTP/2 in clear text.
func overHTTP2(t *testing.T) {
	plain := via
	via = &transport{name: "http", protocol: network.ProtocolHTTP2}
	t.Cleanup(func() { via = plain })
}

// serveHTTP2 makes w a worker that speaks only HTTP/2. serve gets each request with a connection of its own, and writes
// the answer in HTTP/1.1, as for other workers. An answer that breaks off becomes a stream that is reset.
func serveHTTP2(t testing.TB, l net.Listener, w *rawWorker, serve func(c net.Conn, r *http.Request, body []byte) bool) {
	s := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		w.requests.Add(1)
		near, far := net.Pipe()
		served := make(chan struct{})
		go func() { // this goroutine ends when far is closed, below
			defer close(served)
			if serve(near, r, body) {
				io.Copy(io.Discard, near) // until the answer was passed on, or the proxy left
			}
			near.Close()
		}()
		defer func() { <-served }()
		defer far.Close()
		done := make(chan struct{})
		defer close(done)
		go func() { // this goroutine ends with the handler
			select {
			case <-r.Context().Done():
				far.Close()
			case <-done:
			}
		}()
		passOn(out, bufio.NewReader(far))
	}), ConnState: func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			w.accepted.Add(1)
		}
	}}
	s.Protocols.SetUnencryptedHTTP2(true)
	s.Protocols.SetHTTP2(true)
	done := make(chan struct{})
	go func() { // this goroutine ends when the server is closed, below
		defer close(done)
		s.Serve(l)
	}()
	t.Cleanup(func() {
		s.Close()
		<-done
	})
}

// passOn reads an answer in HTTP/1.1, and writes it piece by piece.
func passOn(out http.ResponseWriter, in *bufio.Reader) {
	for {
		answer, err := http.ReadResponse(in, &http.Request{Method: http.MethodPost})
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		for name, values := range answer.Header {
			out.Header()[name] = values
		}
		if answer.Header["Content-Type"] == nil {
			out.Header()["Content-Type"] = nil
		}
		if answer.Close && answer.ContentLength > 0 {
			out.Header().Set("Connection", "close") // net/http then sends GOAWAY
		}
		out.WriteHeader(answer.StatusCode)
		if answer.StatusCode < 200 {
			continue
		}
		http.NewResponseController(out).Flush()
		b := make([]byte, 64<<10)
		for {
			n, err := answer.Body.Read(b)
			out.Write(b[:n])
			http.NewResponseController(out).Flush()
			switch {
			case err == io.EOF:
				return
			case err != nil:
				panic(http.ErrAbortHandler)
			}
		}
	}
}

// sharedAt returns the number of HTTP/2 connections to the worker at url.
func sharedAt(c *Client, url string) int {
	w, _ := c.worker(url)
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.shared)
}

func TestStreamsShareAConnection(t *testing.T) {
	overHTTP2(t)
	const n = 20
	var under sync.WaitGroup
	under.Add(n)
	w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		under.Done()
		under.Wait() // so all streams are open at the same time
		io.WriteString(c, wholeAnswer)
		return true
	})
	c := newClient(t, func(cfg *Config) { cfg.IdleTimeout = 50 * time.Millisecond })
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			rec := httptest.NewRecorder()
			if res := c.Forward(t.Context(), attempt(w.url, rec)); res.Class != Success || rec.Body.String() != wholeBody {
				t.Errorf("%v: %v", res.Class, res.Err)
			}
		})
	}
	all.Wait()
	if got := w.accepted.Load(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
	if !testenv.Poll(time.Minute, func() bool { return sharedAt(c, w.url) == 0 }) {
		t.Error("the connection is still open after its time")
	}
}

// A worker allows few streams on a connection (250 in Go's server). The streams beyond that get a connection of their
// own, and do not wait.
func TestAFullConnectionGetsASecondOne(t *testing.T) {
	const n = 5
	var under sync.WaitGroup
	under.Add(n)
	var accepted atomic.Int64
	w := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, first := io.ReadAll(r.Body); first == nil && r.Header.Get("X-First") == "" {
			under.Done()
			under.Wait()
		}
		io.WriteString(w, wholeBody)
	}))
	w.Config.Protocols = new(http.Protocols)
	w.Config.Protocols.SetUnencryptedHTTP2(true)
	w.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 2}
	w.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			accepted.Add(1)
		}
	}
	w.Start()
	defer w.Close()
	overHTTP2(t)
	via.know(t, w.URL)
	c := newClient(t, nil)
	first := attempt(w.URL, httptest.NewRecorder()) // after its answer, the worker's limit is known
	first.Header.Set("X-First", "1")
	if res := c.Forward(t.Context(), first); res.Class != Success {
		t.Fatal(res.Err)
	}
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			if res := c.Forward(t.Context(), attempt(w.URL, httptest.NewRecorder())); res.Class != Success {
				t.Errorf("%v: %v", res.Class, res.Err)
			}
		})
	}
	all.Wait()
	if got := accepted.Load(); got < 3 {
		t.Errorf("%d connections for %d streams of which 2 fit on a connection", got, n)
	}
}

// The worker announces with each answer that it closes the connection (GOAWAY).
func TestAConnectionThatGoesAwayLosesNoRequest(t *testing.T) {
	overHTTP2(t)
	w := answering(t, true, strings.Replace(wholeAnswer, "\r\n", "\r\nConnection: close\r\n", 1))
	c := newClient(t, nil)
	for i := range 100 {
		rec := httptest.NewRecorder()
		if res := c.Forward(t.Context(), attempt(w.url, rec)); res.Class != Success || rec.Body.String() != wholeBody {
			t.Fatalf("request %d: %v: %v", i, res.Class, res.Err)
		}
	}
	if w.accepted.Load() < 50 || w.requests.Load() != 100 {
		t.Errorf("%d connections, %d requests", w.accepted.Load(), w.requests.Load())
	}
}

// frame returns a frame of HTTP/2 (RFC 9113 §4.1).
func frame(kind, flags byte, stream uint32, payload string) string {
	head := make([]byte, 9) // length, kind, flags, stream
	binary.BigEndian.PutUint32(head, uint32(len(payload))<<8|uint32(kind))
	head[4] = flags
	binary.BigEndian.PutUint32(head[5:], stream)
	return string(head) + payload
}

const (
	frameData, frameHeaders, frameReset, frameSettings, frameGoAway = 0, 1, 3, 4, 7

	endStream, endHeaders = 1, 4
)

// framesWorker is a worker that answers each request, or sends the frames that answer returns for it in place of an
// answer. first says whether the request came on the first connection, and n counts the requests of a connection, from
// 1 on. framesWorker returns its URL, and the number of requests.
func framesWorker(t *testing.T, answer func(first bool, n int) string) (url string, requests *atomic.Int64) {
	l, url := via.listen(t)
	requests = new(atomic.Int64)
	var all sync.WaitGroup
	serve := func(c net.Conn, first bool) {
		defer c.Close()
		in := bufio.NewReader(c)
		if _, err := in.Discard(len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")); err != nil {
			return
		}
		io.WriteString(c, frame(frameSettings, 0, 0, ""))
		for n := 0; ; {
			head := make([]byte, 9)
			if _, err := io.ReadFull(in, head); err != nil {
				return
			}
			size := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
			if _, err := in.Discard(size); err != nil {
				return
			}
			if head[4]&endStream == 0 || head[3] > frameHeaders {
				continue
			}
			requests.Add(1)
			n++
			if frames := answer(first, n); frames != "" {
				io.WriteString(c, frames)
				continue
			}
			stream := binary.BigEndian.Uint32(head[5:])
			io.WriteString(c, frame(frameHeaders, endHeaders, stream, "\x88")+frame(frameData, endStream, stream, wholeBody)) // 0x88 is status 200 in HPACK
		}
	}
	all.Go(func() { // this goroutine ends when the listener is closed, below
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serve(c, first) }) // this goroutine ends when the client closes the connection
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return url, requests
}

func TestARequestThatAWorkerDidNotReadIsSentAgain(t *testing.T) {
	overHTTP2(t)
	for _, c := range []struct {
		name, frames string
		class        Class
		requests     int64
	}{
		{"GOAWAY", frame(frameGoAway, 0, 0, "\x00\x00\x00\x01\x00\x00\x00\x00"), Success, 3},
		{"refused", frame(frameReset, 0, 3, "\x00\x00\x00\x07"), Success, 3},
		{"an internal error", frame(frameReset, 0, 3, "\x00\x00\x00\x02"), Reset, 2},
		{"a header without status", frame(frameHeaders, endHeaders|endStream, 3, ""), Reset, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, requests := framesWorker(t, func(first bool, n int) string {
				if first && n == 2 {
					return c.frames
				}
				return ""
			})
			client := newClient(t, nil)
			if res := client.Forward(t.Context(), attempt(url, httptest.NewRecorder())); res.Class != Success {
				t.Fatal(res.Err)
			}
			res := client.Forward(t.Context(), attempt(url, httptest.NewRecorder()))
			if res.Class != c.class || res.Retryable != (c.class != Success) || requests.Load() != c.requests {
				t.Errorf("%v (%v), %d requests; want %v, %d", res.Class, res.Err, requests.Load(), c.class, c.requests)
			}
		})
	}
}

// A worker that refuses each stream read no request, and gave no answer: not even an empty one.
func TestAWorkerThatRefusesEachStreamIsNoSuccess(t *testing.T) {
	overHTTP2(t)
	url, requests := framesWorker(t, func(bool, int) string { return frame(frameReset, 0, 1, "\x00\x00\x00\x07") })
	w := httptest.NewRecorder()
	res := newClient(t, nil).Forward(t.Context(), attempt(url, w))
	if res.Class != Refused || !res.Retryable || res.FirstByte || res.Err == nil || requests.Load() != 2 {
		t.Errorf("%v (%v) after %d requests", res.Class, res.Err, requests.Load())
	}
}

func TestAWorkerWithoutHTTP2IsNamed(t *testing.T) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, wholeBody) })
	clear, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer clear.Close()
	defer secure.Close()
	overHTTP2(t)
	via.certFile, _ = testenv.Certificate(t)
	for _, url := range []string{clear.URL, secure.URL} {
		via.know(t, url)
		res := newClient(t, nil).Forward(t.Context(), attempt(url, httptest.NewRecorder()))
		if !res.Retryable || !res.Class.WorkerFault() || url == clear.URL && !strings.Contains(api.CauseOf(res.Err).Error(), "set its protocol to auto or http1") {
			t.Errorf("%s: %v: %v", url, res.Class, api.CauseOf(res.Err))
		}
	}
}

// A worker is restarted twice: with HTTP/2, without it, and with it again.
func TestTheHandshakeChoosesTheProtocolEachTime(t *testing.T) {
	plain := via
	via = &transport{name: "https"}
	defer func() { via = plain }()
	via.certFile, via.keyFile = testenv.Certificate(t)
	pair, err := tls.LoadX509KeyPair(via.certFile, via.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	via.know(t, "https://"+address)
	c := newClient(t, nil)
	for i, version := range []int{2, 1, 2} {
		protocol := make(chan int, 1)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			protocol <- r.ProtoMajor
			io.WriteString(w, wholeBody)
		}))
		if i > 0 {
			if l, err = net.Listen("tcp", address); err != nil {
				t.Fatal(err)
			}
		}
		s.Listener.Close()
		s.Listener, s.EnableHTTP2 = l, version == 2
		s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		s.StartTLS()
		for range 2 {
			if res := c.Forward(t.Context(), attempt("https://"+address, httptest.NewRecorder())); res.Class != Success {
				t.Fatalf("%v: %v", res.Class, res.Err)
			}
			if got := <-protocol; got != version {
				t.Errorf("HTTP/%d, want %d", got, version)
			}
		}
		s.Close()
	}
}

// The body's buffer is used again as soon as Forward has returned. The race detector sees it if the body is still sent.
func TestNoBodyIsReadAfterTheExchange(t *testing.T) {
	overHTTP2(t)
	w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, wholeAnswer)
		return true
	})
	c := newClient(t, nil)
	body := make([]byte, 8<<20)
	for i := range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		a := attempt(w.url, httptest.NewRecorder())
		a.Body = body
		c.Forward(ctx, a)
		cancel()
		clear(body)
	}
}

func TestManyClientsThatLeaveOverHTTP2(t *testing.T) {
	overHTTP2(t)
	TestManyClientsThatLeave(t)
}

func TestASlowClientDoesNotHoldUpOthersOverHTTP2(t *testing.T) {
	overHTTP2(t)
	TestASlowClientDoesNotHoldUpOthers(t)
}

func TestKeepDropsWorkersThatSpeakHTTP2(t *testing.T) {
	overHTTP2(t)
	w := answering(t, true, wholeAnswer)
	c := newClient(t, func(cfg *Config) { cfg.IdleTimeout = time.Hour })
	if res := c.Forward(t.Context(), attempt(w.url, httptest.NewRecorder())); res.Class != Success {
		t.Fatal(res.Err)
	}
	old, _ := c.worker(w.url)
	c.Keep(func(string) bool { return false })
	if len(old.shared) != 0 || len(c.workers) != 0 {
		t.Errorf("%d connections, %d workers", len(old.shared), len(c.workers))
	}
}
