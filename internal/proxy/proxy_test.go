package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rawWorker is a worker that answers with raw bytes. It accepts connections, reads requests, and passes each request to
// serve.
type rawWorker struct {
	url      string
	accepted atomic.Int64
	requests atomic.Int64
}

// newRawWorker starts a worker. serve is called for each request of a connection. If serve returns true, the next
// request is read from the connection.
func newRawWorker(t testing.TB, serve func(c net.Conn, r *http.Request, body []byte) bool) *rawWorker {
	t.Helper()
	l, url := via.listen(t)
	w := &rawWorker{url: url}
	if via.protocol == network.ProtocolHTTP2 {
		serveHTTP2(t, l, w, serve)
		return w
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Add(1)
	go func() { // this goroutine ends when the listener is closed, below
		defer wg.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.accepted.Add(1)
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			wg.Add(1)
			go func() { // this goroutine ends when the connection is closed, below
				defer wg.Done()
				defer c.Close()
				br := bufio.NewReader(c)
				for {
					r, err := http.ReadRequest(br)
					if err != nil {
						return
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return
					}
					w.requests.Add(1)
					if !serve(c, r, body) {
						return
					}
				}
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return w
}

// resets makes Close reset a TCP connection, also below TLS.
func resets(c net.Conn) {
	if secure, is := c.(*tls.Conn); is {
		c = secure.NetConn()
	}
	if tcp, is := c.(*net.TCPConn); is {
		tcp.SetLinger(0)
	}
}

// answering returns a worker that answers every request with the same bytes. Unless keep is set, it closes the
// connection after the answer.
func answering(t testing.TB, keep bool, answer string) *rawWorker {
	return newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, answer)
		return keep
	})
}

// wholeBody is a complete answer in one piece, and wholeAnswer is the same answer with its header.
const wholeBody = `{"choices":[{"index":0,"message":{"content":"hello"},"finish_reason":"stop"}]}`

var wholeAnswer = fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(wholeBody), wholeBody)

// newClient returns a client whose idle connections are closed at the test's end.
func newClient(t testing.TB, change func(*Config)) *Client {
	t.Helper()
	cfg := DefaultConfig()
	cfg.HeaderTimeout = 10 * time.Second
	cfg.Peers = &via.peers
	if change != nil {
		change(&cfg)
	}
	c := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }() // this goroutine ends with ctx, below
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return c
}

func attempt(worker string, w http.ResponseWriter) *Attempt {
	return &Attempt{Worker: worker, Path: "/v1/chat/completions", Header: http.Header{}, Body: []byte(`{"x":1}`), Writer: w}
}

// gateway is a server that forwards each request. change completes the attempt. If the result says Abort, the server
// panics with http.ErrAbortHandler, as a handler must.
func gateway(t testing.TB, c *Client, change func(*Attempt)) (url string, results chan Result) {
	t.Helper()
	results = make(chan Result, 1024)
	bodies := NewBodies(DefaultBodyConfig())
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := bodies.Read(w, r)
		if err != nil {
			api.WriteError(w, api.OpenAIChat, err)
			return
		}
		defer body.Release()
		a := &Attempt{Path: r.URL.RequestURI(), Header: r.Header, Body: body.Bytes, Writer: w, RequestID: RequestID(r.Header)}
		change(a)
		res := c.Forward(r.Context(), a)
		select {
		case results <- res:
		default: // if the channel is full, the result is dropped: no test reads so many results
		}
		switch {
		case res.Abort:
			panic(http.ErrAbortHandler)
		case !res.FirstByte && res.Answer != nil:
			res.Answer.WriteTo(w)
		case !res.FirstByte:
			api.WriteError(w, a.Dialect, res.Err)
		}
	}))
	s.Start()
	t.Cleanup(s.Close)
	return s.URL, results
}

// post sends a request through a gateway. It returns the answer, its body, and the error with which reading ended.
func post(t testing.TB, url, body string) (*http.Response, string, error) {
	t.Helper()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return resp, string(got), err
}

const (
	token  = `data: {"choices":[{"index":0,"delta":{"content":"tok"},"finish_reason":null}]}` + "\n\n"
	finish = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usage  = `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	done   = "data: [DONE]\n\n"
	dead   = `data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}` + "\n\n"

	sseHead     = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
	chunkedHead = sseHead + "transfer-encoding: chunked\r\n\r\n"
)

// chunks frames each piece as a chunk. The chunk that ends a body is missing.
func chunks(pieces ...string) string {
	var b strings.Builder
	for _, p := range pieces {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
	}
	return b.String()
}

const lastChunk = "0\r\n\r\n"

func TestAnswerPassesUnchangedHoweverItIsSplit(t *testing.T) {
	body := token + token + finish + usage + done
	for name, answer := range map[string]string{
		"chunked":  chunkedHead + chunks(token, token+finish[:20], finish[20:]+usage, done) + lastChunk,
		"trailers": sseHead + "Transfer-Encoding: chunked\r\nTrailer: x\r\n\r\n" + chunks(body) + "0;a=b\r\nX: y\r\n\r\n",
		"length":   sseHead + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body),
		"close":    sseHead + "\r\n" + body,
		"interim":  "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + chunkedHead + chunks(body) + lastChunk,
	} {
		t.Run(name, func(t *testing.T) {
			var at atomic.Int64
			w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
				i := at.Load()
				io.WriteString(c, answer[:i])
				// Gosched gives the proxy a chance to read at this split. TestDecodingBytePerByte always reads at each
				// split.
				runtime.Gosched()
				io.WriteString(c, answer[i:])
				return name != "close"
			})
			c := newClient(t, nil)
			for i := range answer {
				at.Store(int64(i))
				rec := httptest.NewRecorder()
				res := c.Forward(context.Background(), attempt(w.url, rec))
				if res.Class != Success || rec.Body.String() != body || rec.Code != 200 {
					t.Fatalf("split at %d: %v (%v), status %d, body %q", i, res.Class, res.Err, rec.Code, rec.Body)
				}
				if res.Usage != (api.Usage{Prompt: 9, Completion: 2, Cached: 4, HasCached: true, Seen: true}) || res.FirstTokenAt.IsZero() || res.BytesDown != int64(len(body)) {
					t.Fatalf("split at %d: %+v", i, res)
				}
			}
			if name != "close" && w.accepted.Load() != 1 {
				t.Errorf("%d connections, want 1: each answer was whole", w.accepted.Load())
			}
		})
	}
}

// The pieces come from memory and not from a connection, so the body is certainly split at every byte.
func TestDecodingBytePerByte(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 20)
	raw := chunks(body[:1], body[1:17], body[17:]) + "000;x=\"y\"\r\nA: b\r\nC:\r\n\r\n"
	for size := 1; size <= len(raw); size++ {
		var c chunkReader
		var got []byte
		for b := []byte(raw); len(b) > 0; {
			piece := bytes.Clone(b[:min(size, len(b))])
			out, in, err := c.decode(piece, piece)
			if err != nil || in != len(piece) {
				t.Fatalf("pieces of %d: used %d of %d, %v", size, in, len(piece), err)
			}
			got = append(got, piece[:out]...)
			b = b[in:]
		}
		if string(got) != body || !c.done() {
			t.Fatalf("pieces of %d: %q, done %v", size, got, c.done())
		}
	}
}

func TestACutStreamNeverLooksComplete(t *testing.T) {
	head := chunkedHead + chunks(token)
	const errorEvent = `{"error":{"message":"the worker failed before the answer was complete`
	f := func(name, answer, wantBody string, wantEvent bool, class Class) {
		t.Run(name, func(t *testing.T) {
			begun := make(chan bool)
			w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
				io.WriteString(c, head)
				<-begun
				if answer == "RST" {
					resets(c)
					return false
				}
				io.WriteString(c, answer)
				return false
			})
			url, results := gateway(t, newClient(t, nil), func(a *Attempt) {
				a.Worker = w.url
				a.OnFirstToken = func(time.Time) { time.AfterFunc(time.Millisecond, func() { close(begun) }) }
			})
			_, body, err := post(t, url, "{}")
			res := <-results
			if res.Class != class || res.Retryable || !res.FirstByte {
				t.Errorf("class %v, retryable %v, first byte %v (%v)", res.Class, res.Retryable, res.FirstByte, res.Err)
			}
			event := ""
			if i := strings.Index(body, `data: {"error":{"message":"the worker`); i >= 0 {
				body, event = body[:i], body[i:]
			}
			if body != wantBody {
				t.Errorf("body %q, want %q", body, wantBody)
			}
			if wantEvent && (!strings.Contains(event, errorEvent) || strings.Contains(event, "[DONE]") || !strings.HasSuffix(event, "\n\n") || err != nil) {
				t.Errorf("event %q, error %v", event, err)
			}
			if !wantEvent && event != "" {
				t.Errorf("unwanted event %q", event)
			}
		})
	}
	f("FIN at a chunk's end", "", token, true, Truncated)
	f("FIN inside a chunk", "400\r\ndata: {\"cho", token, true, Truncated)
	f("FIN inside a chunk's size", "4", token, true, Truncated)
	f("FIN behind a chunk's data", chunks(token)[:len(chunks(token))-2], token+token, true, Truncated)
	f("FIN behind the finish", chunks(finish), token+finish, true, Truncated)
	f("RST", "RST", token, true, Truncated)
	f("clean end without a finish", lastChunk, token, true, Truncated)
	f("[DONE] without a finish", chunks(done), token, true, Truncated)
	f("[DONE] without a finish, and a clean end", chunks(done)+lastChunk, token, true, Truncated)
	f("[DONE] without a finish, in one with a token and the end", chunks(token+done)+lastChunk, token+token, true, Truncated)
	broken := Protocol
	if via.protocol == network.ProtocolHTTP2 {
		broken = Truncated // the stream is reset: HTTP/2 has no chunks
	}
	f("broken chunk", "zz\r\n", token, true, broken)
	f("the engine's own error, then [DONE]", chunks(dead, done)+lastChunk, token+dead, false, EngineError)
	f("the engine's own error and [DONE] in one", chunks(token+dead+done)+lastChunk, token+token+dead, false, EngineError)
}

func TestACutBodyIsVisiblyCut(t *testing.T) {
	begun, big := `{"choices":[{"message":{"content":"`, strings.Repeat("x", maxHeld)
	f := func(name, answer string) {
		t.Run(name, func(t *testing.T) {
			w := answering(t, false, answer)
			url, results := gateway(t, newClient(t, nil), func(a *Attempt) { a.Worker = w.url })
			_, body, err := post(t, url, "{}")
			if res := <-results; res.Class != Truncated || !res.Abort {
				t.Errorf("class %v, abort %v (%v)", res.Class, res.Abort, res.Err)
			}
			if err == nil {
				t.Errorf("the client read %d bytes to a clean end", len(body))
			}
		})
	}
	f("JSON by length", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"+begun+big)
	f("JSON by chunks", "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks(begun+big))
	f("a stream with a length", sseHead+"Content-Length: 1000\r\n\r\n"+token)
	f("inside an event larger than the buffer", chunkedHead+chunks(token, "data: "+big))
}

func TestAnAttemptIsRetryableUntilAByteReachesTheClient(t *testing.T) {
	unused := fmt.Sprintf("http://127.0.0.1:%d", testenv.FreePort(t))
	f := func(name string, class Class, answer string) {
		t.Run(name, func(t *testing.T) {
			url := unused
			if answer != "" {
				url = answering(t, false, strings.TrimPrefix(answer, "-")).url
			}
			rec := httptest.NewRecorder()
			c := newClient(t, func(cfg *Config) { cfg.RetryStatuses = []int{502, 503} })
			res := c.Forward(context.Background(), attempt(url, rec))
			if res.Class != class || !res.Retryable || res.FirstByte || res.Err == nil || !res.Class.WorkerFault() {
				t.Errorf("%+v", res)
			}
			if rec.Body.Len() > 0 || len(rec.Header()) > 0 {
				t.Errorf("the client got %v %q", rec.Header(), rec.Body)
			}
			if strings.Contains(answer, "HTTP/1.1 5") {
				out := httptest.NewRecorder()
				res.Answer.WriteTo(out)
				if out.Code/100 != 5 || out.Body.String() != answer[strings.Index(answer, "\r\n\r\n")+4:] || out.Header().Get("X-A") != "b" {
					t.Errorf("held back: %d %v %q", out.Code, out.Header(), out.Body)
				}
			}
		})
	}
	f("connection refused", Refused, "")
	f("closed at once", Reset, "-")
	f("cut inside the header", Reset, "HTTP/1.1 200 OK\r\nContent-")
	f("503", Refused, "HTTP/1.1 503 Service Unavailable\r\nX-A: b\r\nContent-Length: 4\r\n\r\nbusy")
	f("502", Refused, "HTTP/1.1 502 Bad Gateway\r\nX-A: b\r\n\r\n<html>")
	f("500 while shutting down", Refused, "HTTP/1.1 500 x\r\nX-A: b\r\nContent-Length: 66\r\n\r\n"+`{"error":{"message":"cannot schedule new futures after shutdown"}} `[:66])
	f("a stream that never began", Truncated, chunkedHead)
	f("a stream cut in its first event", Truncated, chunkedHead+"50\r\ndata: {")
	f("a stream that begins with the engine's death", Refused, chunkedHead+chunks(dead, done)+lastChunk)
	f("a JSON answer cut short", Truncated, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
	if via.protocol == network.ProtocolHTTP2 {
		return // the following answers are no answers of HTTP/2
	}
	f("a JSON answer cut short, without length", Truncated, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"choices\":[")
	f("not HTTP", Protocol, "SSH-2.0-OpenSSH_9.2\r\n\r\n")
}

func TestTheEnginesRefusalsPassByteForByte(t *testing.T) {
	for _, status := range []int{301, 400, 401, 404, 422, 429, 500, 501} {
		body := fmt.Sprintf(`{"error": {"message":"no %d"}}`, status)
		w := answering(t, true, fmt.Sprintf("HTTP/1.1 %d Whatever\r\ncontent-type: application/json\r\nx-a: b\r\nretry-after: 7\r\ncontent-length: %d\r\n\r\n%s", status, len(body), body))
		rec := httptest.NewRecorder()
		c := newClient(t, func(cfg *Config) { cfg.RetryStatuses = []int{502, 503} })
		res := c.Forward(context.Background(), attempt(w.url, rec))
		want := Rejected
		switch {
		case status >= 500:
			want = EngineError
		case status == 429:
			want = Limited
		}
		if res.Class != want || res.Retryable != (status != 500) || res.Class.WorkerFault() != (status >= 500) || res.FirstByte || len(rec.Header()) > 0 {
			t.Errorf("%d: %+v", status, res)
		}
		if wait := 7 * time.Second; status == 429 && res.RetryAfter != wait {
			t.Errorf("%d: retry after %v, want %v", status, res.RetryAfter, wait)
		}
		res.Answer.WriteTo(rec)
		if rec.Code != status || rec.Body.String() != body || rec.Header().Get("X-A") != "b" {
			t.Errorf("%d: the client gets %d %v %q", status, rec.Code, rec.Header(), rec.Body)
		}
	}
}

const jsonHead = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

// A useless answer must not reach the client: as long as no byte was sent to the client, the request can be retried at
// another worker.
func TestAUselessAnswerIsHeldBack(t *testing.T) {
	const good = `{"model":"m","choices":[{"index":0,"message":{"content":"x"},"finish_reason":"stop"}]}`
	length := func(body string) string { return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body) }
	other := strings.Replace(good, `"m"`, `"n"`, 1)
	for name, c := range map[string]struct {
		answer   string
		class    Class
		passable bool // the answer is held back, and can be forwarded if no worker has a better answer
	}{
		"HTML":                                {"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + length("<html>hello</html>"), Useless, false},
		"nothing":                             {"HTTP/1.1 200 OK\r\n" + length(""), Useless, false},
		"no content":                          {"HTTP/1.1 204 No Content\r\n\r\n", Useless, false},
		"JSON without an end":                 {jsonHead + length(good[:len(good)-1]), Useless, false},
		"JSON and more":                       {jsonHead + length(good+"x"), Useless, false},
		"other JSON":                          {jsonHead + length(`{"status":"ok"}`), Useless, false},
		"a JSON list":                         {jsonHead + length("["+good+"]"), Useless, false},
		"not finished":                        {jsonHead + length(strings.Replace(good, `"stop"`, "null", 1)), Useless, true},
		"an error in a 200":                   {jsonHead + length(`{"error":{"message":"x"}}`), EngineError, true},
		"a refusal in a 200":                  {jsonHead + length(`{"error":{"message":"x","code":400}}`), Rejected, true},
		"another model":                       {jsonHead + length(other), Useless, true},
		"[DONE] only":                         {chunkedHead + chunks(done) + lastChunk, Useless, false},
		"[DONE], and silence":                 {chunkedHead + chunks(done), Useless, false},
		"a stream of HTML":                    {chunkedHead + chunks("data: <html>\n\n") + lastChunk, Useless, false},
		"a stream of broken JSON":             {chunkedHead + chunks("data: {\"cho\n\n"), Useless, false},
		"a stream of another model":           {chunkedHead + chunks(strings.Replace(token, "{", `{"model":"n",`, 1), finish, done) + lastChunk, Useless, false},
		"a stream that begins with an error":  {chunkedHead + chunks(`data: {"error":{"message":"x"}}`+"\n\n", done) + lastChunk, EngineError, true},
		"a stream that begins with a refusal": {chunkedHead + chunks(`data: {"error":{"message":"x","code":400}}`+"\n\n", done) + lastChunk, Rejected, true},
		"the same, with a length":             {sseHead + length(`data: {"error":{"message":"x","code":400}}`+"\n\n"+done), Rejected, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := answering(t, true, c.answer)
			rec := httptest.NewRecorder()
			a := attempt(w.url, rec)
			a.Model, a.Knows = "m", func(name []byte) bool { return string(name) == "alias" }
			a.OnFirstToken = func(time.Time) { t.Error("a first token was told") }
			res := newClient(t, nil).Forward(context.Background(), a)
			if res.Class != c.class || !res.Retryable || res.FirstByte || rec.Body.Len() > 0 || len(rec.Header()) > 0 || (res.Answer != nil) != c.passable {
				t.Errorf("%v, retryable %v, answer %v; the client has %v %q (%v)", res.Class, res.Retryable, res.Answer != nil, rec.Header(), rec.Body, res.Err)
			}
			if res.Answer != nil && strings.Contains(string(res.Answer.Body), "[DONE]") {
				t.Errorf("held back: %q", res.Answer.Body)
			}
		})
	}
	for name, answer := range map[string]string{
		"as asked":           good,
		"by another name":    strings.Replace(good, `"m"`, `"alias"`, 1),
		"naming none":        strings.Replace(good, `"model":"m",`, "", 1),
		"space around":       " \r\n" + good + "\n\t ",
		"more than a buffer": strings.Replace(good, `"x"`, `"`+strings.Repeat("x", 5*bufferSize)+`"`, 1),
		"more than is held":  strings.Replace(good, `"x"`, `"`+strings.Repeat("x", 3*maxHeld)+`"`, 1),
	} {
		for framing, framed := range map[string]string{"length": jsonHead + length(answer), "chunks": jsonHead + "Transfer-Encoding: chunked\r\n\r\n" + chunks(answer) + lastChunk,
			"no type": "HTTP/1.1 200 OK\r\n" + length(answer)} {
			w := answering(t, true, framed)
			rec := httptest.NewRecorder()
			a := attempt(w.url, rec)
			a.Model, a.Knows = "m", func(name []byte) bool { return string(name) == "alias" }
			if res := newClient(t, nil).Forward(context.Background(), a); res.Class != Success || rec.Body.String() != answer || res.FirstTokenAt.IsZero() {
				t.Errorf("%s by %s: %v: %v; %d of %d bytes", name, framing, res.Class, res.Err, rec.Body.Len(), len(answer))
			}
		}
	}
}

// The worker sends without end, so the answer is never complete. The proxy must decide after maxHeld bytes.
func TestAnEndlessAnswerIsJudgedByItsBeginning(t *testing.T) {
	for name, c := range map[string]struct {
		head  string
		class Class
	}{
		"a refusal":            {"HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 99999999\r\n\r\n<html>", Rejected},
		"an error":             {"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n5f5e0ff\r\n", EngineError},
		"JSON, but no choices": {"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"", Useless},
		"HTML":                 {"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>", Useless},
	} {
		piece := []byte(strings.Repeat("x", 1024))
		w := newRawWorker(t, func(conn net.Conn, _ *http.Request, _ []byte) bool {
			_, err := io.WriteString(conn, c.head)
			for err == nil {
				_, err = conn.Write(piece)
			}
			return false
		})
		rec := httptest.NewRecorder()
		res := newClient(t, nil).Forward(context.Background(), attempt(w.url, rec))
		if res.Class != c.class || res.FirstByte || rec.Body.Len() > 0 {
			t.Errorf("%s: %v (%v); the client has %d bytes", name, res.Class, res.Err, rec.Body.Len())
		}
		if c.class == Useless {
			continue
		}
		if res.Answer == nil {
			t.Fatalf("%s: no answer for a client whose only worker this is", name)
		}
		res.Answer.WriteTo(rec)
		if rec.Code != res.Status || !strings.Contains(rec.Body.String(), `"worker_refused"`) || rec.Header().Get("Content-Length") != "" {
			t.Errorf("%s: %d %v %s", name, rec.Code, rec.Header(), rec.Body)
		}
	}
	// HTML is recognized by its first byte, so the proxy does not wait for 256 KiB of it.
	w := newRawWorker(t, func(conn net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html>")
		conn.Read(make([]byte, 1)) // returns when the proxy closes the connection
		return false
	})
	if res := newClient(t, nil).Forward(context.Background(), attempt(w.url, httptest.NewRecorder())); res.Class != Useless || !res.Retryable {
		t.Errorf("%v (%v)", res.Class, res.Err)
	}
}

// A client that asked for JSON cannot read a stream, so the stream must not reach the client.
func TestAnUnrequestedStreamIsHeldBack(t *testing.T) {
	w := answering(t, true, chunkedHead+chunks(token, finish, done)+lastChunk)
	rec := httptest.NewRecorder()
	a := attempt(w.url, rec)
	a.Whole = true
	if res := newClient(t, nil).Forward(context.Background(), a); res.Class != Useless || !res.Retryable || res.FirstByte || rec.Body.Len() > 0 {
		t.Errorf("%v, retryable %v: %v; the client has %q", res.Class, res.Retryable, res.Err, rec.Body)
	}
}

// Comments in a stream keep clients from timing out while an engine computes a long prompt. So the proxy must forward
// the comments.
func TestCommentsBeforeAStreamPass(t *testing.T) {
	w := answering(t, true, chunkedHead+chunks(": ping\n\n", token, finish, done)+lastChunk)
	rec := httptest.NewRecorder()
	if res := newClient(t, nil).Forward(context.Background(), attempt(w.url, rec)); res.Class != Success || rec.Body.String() != ": ping\n\n"+token+finish+done {
		t.Errorf("%v: %q", res.Class, rec.Body)
	}
	rec = httptest.NewRecorder()
	ill := answering(t, true, chunkedHead+chunks(": ping\n\n", done)+lastChunk)
	res := newClient(t, nil).Forward(context.Background(), attempt(ill.url, rec))
	if res.Class != Useless || res.Retryable == res.FirstByte || strings.Contains(rec.Body.String(), "[DONE]") {
		t.Errorf("%+v: %q", res, rec.Body)
	}
}

func TestStaleConnectionsLoseNoRequest(t *testing.T) {
	w := newRawWorker(t, func(c net.Conn, r *http.Request, _ []byte) bool {
		io.WriteString(c, wholeAnswer)
		return false // close the connection, although the header did not announce that
	})
	c := newClient(t, nil)
	stale := 0
	for i := range 300 {
		rec := httptest.NewRecorder()
		a := attempt(w.url, rec)
		if i%3 == 0 {
			a.Body = bytes.Repeat([]byte("x"), 1<<20)
		}
		kept := idleAt(c, w.url) > 0
		res := c.Forward(context.Background(), a)
		if res.Class != Success || rec.Body.String() != wholeBody {
			t.Fatalf("request %d: %v: %v", i, res.Class, res.Err)
		}
		if kept && !res.Reused {
			stale++
		}
	}
	if stale < 250 || w.requests.Load() != 300 {
		t.Errorf("%d stale connections, %d requests seen by the worker; want about 299 and 300", stale, w.requests.Load())
	}
}

func TestAFreshConnectionIsNotTriedTwice(t *testing.T) {
	w := answering(t, false, "")
	res := newClient(t, nil).Forward(context.Background(), attempt(w.url, httptest.NewRecorder()))
	if res.Class != Reset || w.requests.Load() != 1 {
		t.Errorf("%v, %d requests; want reset, 1", res.Class, w.requests.Load())
	}
}

// leave sends a request, reads n bytes of the answer and closes the connection.
func leave(t *testing.T, url string, n int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "POST", url, strings.NewReader("{}"))
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	io.ReadFull(resp.Body, make([]byte, n))
	cancel()
}

func TestAClientThatLeavesCancelsAtOnce(t *testing.T) {
	closed := make(chan bool, 1)
	w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, chunkedHead+chunks(token))
		c.Read(make([]byte, 1)) // returns when the proxy closes the connection
		closed <- true
		return false
	})
	url, results := gateway(t, newClient(t, nil), func(a *Attempt) { a.Worker = w.url })
	leave(t, url, len(token))
	<-closed // the worker sends nothing more, so only the client's leaving can have closed the connection
	if res := <-results; res.Class != ClientGone || res.Class.WorkerFault() {
		t.Errorf("%v: %v", res.Class, res.Err)
	}
}

// Many clients close the connection at [DONE], before the end of the framing comes. Such an answer counts as success.
func TestAClientThatLeavesAtDoneWasServed(t *testing.T) {
	whole := chunks(token, finish, usage, done)
	for name, events := range map[string]string{"served": whole, "before its end": chunks(token, finish)} {
		t.Run(name, func(t *testing.T) {
			w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
				io.WriteString(c, chunkedHead+events)
				c.Read(make([]byte, 1)) // returns when the proxy closes the connection
				return false
			})
			url, results := gateway(t, newClient(t, nil), func(a *Attempt) { a.Worker = w.url })
			want := token + finish
			if name == "served" {
				want += usage + done
			}
			leave(t, url, len(want))
			res := <-results
			if served := res.Class == Success && res.Err == nil && !res.Abort; served != (name == "served") {
				t.Errorf("%v, abort %v: %v", res.Class, res.Abort, res.Err)
			}
		})
	}
}

// After [DONE], some workers keep the connection open and do not send the end of the framing. The stream still counts
// as complete.
func TestAStreamThatFallsSilentBehindDoneIsWhole(t *testing.T) {
	events := token + finish + usage + done
	w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		io.WriteString(c, chunkedHead+chunks(events))
		c.Read(make([]byte, 1)) // returns when the proxy closes the connection
		return false
	})
	rec := httptest.NewRecorder()
	c := newClient(t, func(cfg *Config) { cfg.StreamIdleTimeout = 50 * time.Millisecond })
	res := c.Forward(context.Background(), attempt(w.url, rec))
	if res.Class != Success || res.Err != nil || res.Abort || rec.Body.String() != events {
		t.Errorf("%v, abort %v: %v; the client got %q", res.Class, res.Abort, res.Err, rec.Body)
	}
}

func TestAClientThatLeavesBeforeTheHeaderCancelsToo(t *testing.T) {
	asked, closed := make(chan bool), make(chan bool)
	w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		asked <- true
		c.Read(make([]byte, 1))
		closed <- true
		return false
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-asked; cancel() }() // this goroutine ends when the worker was asked
	res := newClient(t, nil).Forward(ctx, attempt(w.url, httptest.NewRecorder()))
	<-closed
	if res.Class != ClientGone || res.Retryable || !errors.Is(res.Err, context.Canceled) {
		t.Errorf("%+v", res)
	}
}

func TestSilentWorkersTimeOut(t *testing.T) {
	f := func(name, sent string, class Class, retryable bool) {
		t.Run(name, func(t *testing.T) {
			w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
				io.WriteString(c, sent)
				c.Read(make([]byte, 1))
				return false
			})
			c := newClient(t, func(cfg *Config) {
				cfg.StreamIdleTimeout = 50 * time.Millisecond
				if class == HeaderTimeout { // a busy machine may need longer for the header that comes
					cfg.HeaderTimeout = 50 * time.Millisecond
				}
			})
			rec := httptest.NewRecorder()
			res := c.Forward(context.Background(), attempt(w.url, rec))
			if res.Class != class || res.Retryable != retryable || api.AsError(res.Err).Status != 504 {
				t.Errorf("%+v", res)
			}
			if !retryable && !strings.Contains(rec.Body.String(), "worker_timeout") {
				t.Errorf("body %q", rec.Body)
			}
		})
	}
	f("no header", "", HeaderTimeout, true)
	f("half a header", "HTTP/1.1 200 OK\r\n", HeaderTimeout, true)
	f("no event", chunkedHead, StreamTimeout, true)
	f("in mid-stream", chunkedHead+chunks(token), StreamTimeout, false)
}

// A client may leave at any time. No goroutine may be left (TestMain checks that), and the worker's connection must be
// closed.
func TestManyClientsThatLeave(t *testing.T) {
	var open atomic.Int64
	w := newRawWorker(t, func(c net.Conn, _ *http.Request, _ []byte) bool {
		open.Add(1)
		defer open.Add(-1)
		io.WriteString(c, chunkedHead+chunks(token))
		c.Read(make([]byte, 1))
		return false
	})
	c := newClient(t, nil)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 100 {
				ctx, cancel := context.WithCancel(context.Background())
				a := attempt(w.url, httptest.NewRecorder())
				switch (i + j) % 3 {
				case 0:
					a.OnFirstToken = func(time.Time) { cancel() }
				case 1:
					time.AfterFunc(time.Duration(j)*10*time.Microsecond, cancel)
				default:
					cancel()
				}
				if res := c.Forward(ctx, a); res.Class != ClientGone {
					t.Errorf("%v: %v", res.Class, res.Err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if !testenv.Poll(time.Minute, func() bool { return open.Load() == 0 }) {
		t.Errorf("%d connections to the worker are still open", open.Load())
	}
}

func TestForwardAllocatesLittle(t *testing.T) {
	answer := []byte(chunkedHead + strings.Repeat(chunks(token), 20) + chunks(finish, usage, done) + lastChunk)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := newClient(t, nil)
	s := &sink{h: http.Header{}}
	a := attempt("http://"+l.Addr().String(), s)
	// This worker allocates nothing, so AllocsPerRun counts only Forward's allocations. It ends when newClient's
	// cleanup closes its only connection.
	go func() {
		k, err := l.Accept()
		if err != nil {
			return
		}
		defer k.Close()
		b := make([]byte, 4096)
		for {
			if n, err := k.Read(b); err != nil || n == 0 {
				return
			}
			k.Write(answer)
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	n := testing.AllocsPerRun(200, func() {
		clear(s.h)
		if res := c.Forward(ctx, a); res.Class != Success {
			t.Fatal(res.Err)
		}
	})
	// The allocations are for the header's values, the response controller, and context.AfterFunc. An event needs none.
	if n > 12 {
		t.Errorf("%v allocations for an answer of 23 events, want at most 12", n)
	}
	t.Logf("%v allocations", n)
}
