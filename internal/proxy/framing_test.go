package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

func TestAmbiguousAnswersAreRefused(t *testing.T) {
	f := func(name, head string) {
		t.Helper()
		rec := httptest.NewRecorder()
		w := answering(t, true, head+"\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
		res := newClient(t, nil).Forward(context.Background(), attempt(w.url, rec))
		if res.Class != Protocol || res.FirstByte || rec.Body.Len() > 0 {
			t.Errorf("%s: %v (%v), the client got %q", name, res.Class, res.Err, rec.Body)
		}
	}
	const ok = "HTTP/1.1 200 OK\r\n"
	f("length and chunks", ok+"Content-Length: 5\r\nTransfer-Encoding: chunked")
	f("chunks and length", ok+"Transfer-Encoding: chunked\r\nContent-Length: 5")
	f("two lengths", ok+"Content-Length: 5\r\nContent-Length: 6")
	f("the same length twice", ok+"Content-Length: 5\r\nContent-Length: 5")
	f("a list of lengths", ok+"Content-Length: 5, 5")
	f("a signed length", ok+"Content-Length: +5")
	f("a negative length", ok+"Content-Length: -5")
	f("a hexadecimal length", ok+"Content-Length: 0x5")
	f("an empty length", ok+"Content-Length: ")
	f("a huge length", ok+"Content-Length: 99999999999999999999")
	f("another coding", ok+"Transfer-Encoding: gzip, chunked")
	f("an unknown coding", ok+"Transfer-Encoding: xchunked")
	f("chunked twice", ok+"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked")
	f("chunks in HTTP/1.0", "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked")
	f("a space before the colon", ok+"Content-Length : 5")
	f("a space before the name", ok+" Content-Length: 5")
	f("a folded line", ok+"X: a\r\n b: c")
	f("a control character", ok+"X: a\x00b")
	f("a bare CR", ok+"X: a\rContent-Length: 5")
	f("a bare LF", ok+"X: a\nContent-Length: 5")
	f("no colon", ok+"X")
	f("no name", ok+": x")
	f("another version", "HTTP/2.0 200 OK\r\nX: y")
	f("a short status", "HTTP/1.1 20 OK\r\nX: y")
	f("a status below 100", "HTTP/1.1 099 OK\r\nX: y")
	f("protocols switched", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x")
	f("too many fields", ok+strings.Repeat("X: y\r\n", 200)+"Z: z")
	f("a huge header", ok+"X: "+strings.Repeat("y", 1<<20))
	f("a huge status line", "HTTP/1.1 200 "+strings.Repeat("y", 1<<20))
	f("interim answers without end", strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100)+ok+"X: y")
}

func TestBadChunksAreRefused(t *testing.T) {
	for name, body := range map[string]string{
		"no digits":            "\r\nhello",
		"a sign":               "+5\r\nhello\r\n",
		"a prefix":             "0x5\r\nhello\r\n",
		"a space":              "5 \r\nhello\r\n",
		"a bare LF":            "5\nhello\r\n",
		"a size too large":     "fffffffffffffffff\r\n",
		"zeros without end":    strings.Repeat("0", 2000),
		"data too long":        "5\r\nhello!\r\n",
		"no LF behind data":    "5\r\nhello\r0\r\n\r\n",
		"a control character":  "5;a=\x01\r\nhello\r\n",
		"an endless extension": "5;" + strings.Repeat("a", 2000),
		"endless trailers":     "0\r\n" + strings.Repeat("a: b\r\n", 4000),
		"a LF in trailers":     "0\r\na: b\n\r\n",
	} {
		var c chunkReader
		if _, _, err := c.decode(make([]byte, len(body)), []byte(body)); err == nil {
			t.Errorf("%s: accepted, state %d", name, c.state)
		}
	}
}

func TestBytesBehindAnAnswerEndTheConnection(t *testing.T) {
	w := answering(t, true, wholeAnswer+"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad")
	c := newClient(t, nil)
	for range 3 {
		rec := httptest.NewRecorder()
		if res := c.Forward(context.Background(), attempt(w.url, rec)); res.Class != Success || rec.Body.String() != wholeBody || res.Reused {
			t.Errorf("%v, reused %v, body %q", res.Class, res.Reused, rec.Body)
		}
	}
}

// A server may send 408 on an idle connection before it closes the connection, or may send two answers. Such bytes must
// not be taken for the answer to the next request.
func TestUnrequestedBytesAnswerNoRequest(t *testing.T) {
	idle, said := make(chan struct{}), make(chan struct{})
	w := newRawWorker(t, func(c net.Conn, _ *http.Request, body []byte) bool {
		answer := strings.Replace(wholeBody, "hello", string(body), 1)
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer)
		if string(body) == "first" {
			<-idle
			io.WriteString(c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 3\r\n\r\nbye")
			close(said)
		}
		return true
	})
	c := newClient(t, nil)
	ask := func(body string) {
		rec := httptest.NewRecorder()
		a := attempt(w.url, rec)
		a.Body = []byte(body)
		if res := c.Forward(t.Context(), a); res.Class != Success || !strings.Contains(rec.Body.String(), body) {
			t.Errorf("%s: %v, %d %q", body, res.Class, rec.Code, rec.Body)
		}
	}
	ask("first")
	close(idle)
	<-said
	ask("second")
	if n := w.requests.Load(); n != 2 {
		t.Errorf("%d requests", n)
	}
}

func TestAnswersWithoutBody(t *testing.T) {
	c := newClient(t, nil)
	f := func(answer string, class Class, reuse bool) {
		t.Helper()
		w := answering(t, true, answer)
		for i := range 2 {
			res := c.Forward(context.Background(), attempt(w.url, httptest.NewRecorder()))
			if res.Class != class || res.Reused != (reuse && i > 0) || res.Answer != nil && len(res.Answer.Body) > 0 {
				t.Errorf("%q: %+v", answer, res)
			}
		}
	}
	f("HTTP/1.1 204 No Content\r\n\r\n", Useless, false)
	f("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Useless, false)
	f("HTTP/1.1 304\r\n\r\n", Rejected, true)
	f("HTTP/1.1 304\r\nContent-Length: 100\r\n\r\n", Rejected, false) // the worker may believe that it sends a body
	f("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", Rejected, true)
}

func TestFieldsOfTheConnectionStayBehind(t *testing.T) {
	requests := make(chan *http.Request, 1)
	w := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r.Clone(context.Background())
		h := w.Header()
		h.Set("Connection", "X-Secret")
		h.Set("X-Secret", "1")
		h.Set("Keep-Alive", "timeout=5")
		h.Set("Proxy-Authenticate", "x")
		h.Set("Upgrade", "h2c")
		h.Add("X-Two", "a")
		h.Add("X-Two", "b")
		h.Set("X-Warmpath-Worker", "forged")
		h["Content-Type"] = nil
		io.WriteString(w, wholeBody)
	}))
	defer w.Close()
	rec := httptest.NewRecorder()
	rec.Header().Set("X-Warmpath-Worker", "w1")
	a := attempt(w.URL+"/base", rec)
	a.Path, a.RequestID = "/v1/x?a=b%20c", "id-1"
	a.Header = http.Header{"Connection": {"keep-alive, X-Drop"}, "X-Drop": {"1"}, "Te": {"trailers"}, "Upgrade": {"x"}, "Keep-Alive": {"1"},
		"Proxy-Connection": {"x"}, "Proxy-Authorization": {"x"}, "Trailer": {"x"}, "Transfer-Encoding": {"chunked"}, "Host": {"evil"},
		"Content-Length": {"999"}, "Expect": {"100-continue"}, "Accept-Encoding": {"gzip"}, "X-Request-Id": {"theirs"},
		"Authorization": {"Bearer a"}, "X-Keep": {"1", "2"}, "X-Data-Parallel-Rank": {"7"}, "X-Gone": {"1"}}
	a.Set = []Field{{"X-Data-Parallel-Rank", "3"}, {"x-gone", ""}, {"Content-Length", "1"}}
	res := newClient(t, nil).Forward(context.Background(), a)
	if res.Class != Success {
		t.Fatal(res.Err)
	}
	got := <-requests
	want := http.Header{"Authorization": {"Bearer a"}, "X-Keep": {"1", "2"}, "X-Data-Parallel-Rank": {"3"}, "X-Request-Id": {"id-1"}, "Content-Length": {"7"}}
	if len(got.Header) != len(want) || got.Host != strings.TrimPrefix(w.URL, "http://") || got.RequestURI != "/base/v1/x?a=b%20c" {
		t.Errorf("the worker got %v, host %s, %s", got.Header, got.Host, got.RequestURI)
	}
	for name, values := range want {
		if strings.Join(got.Header[name], "|") != strings.Join(values, "|") {
			t.Errorf("%s: %q, want %q", name, got.Header[name], values)
		}
	}
	h := rec.Result().Header
	h.Del("Date")
	if len(h["Content-Type"]) != 0 || len(h) != 5 || h.Get("X-Warmpath-Worker") != "w1" || len(h["X-Two"]) != 2 || h.Get("X-Request-Id") != "id-1" || h.Get("Content-Length") != strconv.Itoa(len(wholeBody)) {
		t.Errorf("the client got %v", h)
	}
}

func TestAttemptsThatWouldSmuggleAreNotSent(t *testing.T) {
	w := answering(t, true, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	c := newClient(t, nil)
	f := func(change func(*Attempt)) {
		t.Helper()
		a := attempt(w.url, httptest.NewRecorder())
		change(a)
		if res := c.Forward(context.Background(), a); res.Class != BadAttempt || res.Class.WorkerFault() {
			t.Errorf("%v", res.Class)
		}
	}
	f(func(a *Attempt) { a.Path = "/x HTTP/1.1\r\nX: y" })
	f(func(a *Attempt) { a.Path = "x" })
	f(func(a *Attempt) { a.Header = http.Header{"X": {"a\r\nY: b"}} })
	f(func(a *Attempt) { a.Header = http.Header{"X: y\r\nZ": {"a"}} })
	f(func(a *Attempt) { a.Set = []Field{{"X-Rank", "1\r\n\r\n"}} })
	f(func(a *Attempt) { a.RequestID = "a\nb" })
	f(func(a *Attempt) { a.Worker = "ftp://x" })
	f(func(a *Attempt) { a.Worker = "http://u:p@x" })
	f(func(a *Attempt) { a.Worker = "http://" })
	if n := w.requests.Load(); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestAFitRequestIDIsKeptAndAnotherIsReplaced(t *testing.T) {
	if id := RequestID(http.Header{"X-Request-Id": {"abc-1"}}); id != "abc-1" {
		t.Errorf("made %q, though the client's was fit", id)
	}
	for _, bad := range [][]string{nil, {""}, {"a b"}, {"a\nb"}, {"é"}, {strings.Repeat("x", 129)}, {"a", "b"}} {
		if id := RequestID(http.Header{"X-Request-Id": bad}); len(id) != 32 {
			t.Errorf("%q: %q", bad, id)
		}
	}
}

// FuzzHead checks that no header makes the parser panic, and that net/http reads an accepted header in the same way.
func FuzzHead(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"))
	f.Add([]byte("HTTP/1.0 404 Not Found\r\nContent-Length: 12\r\nConnection: close, x\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		end := findHead(b, 0)
		if end == 0 {
			return
		}
		var h answerHead
		if h.parse(b[:end], 64) != nil || h.status < 200 || h.noBody() {
			return
		}
		resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b[:end])), nil)
		if err != nil {
			t.Skip(err) // net/http is stricter about some names
		}
		if resp.StatusCode != h.status {
			t.Fatalf("status %d, net/http %d", h.status, resp.StatusCode)
		}
		chunked := len(resp.TransferEncoding) == 1
		if chunked != h.chunked || !chunked && resp.ContentLength != h.length {
			t.Fatalf("chunked %v, length %d; net/http %v, %d", h.chunked, h.length, resp.TransferEncoding, resp.ContentLength)
		}
		to := http.Header{}
		h.copyTo(to)
		for name, values := range to {
			if hopByHop(name) || len(values) > 0 && strings.ContainsAny(strings.Join(values, ""), "\r\n\x00") {
				t.Fatalf("passed on %s: %q", name, values)
			}
		}
	})
}

// FuzzChunks checks that the result does not depend on how the body is split, and that net/http decodes an accepted
// body to the same bytes.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0;x=y\r\nA: b\r\n\r\n"), 3)
	f.Add([]byte("00A\r\n0123456789\r\n1\r\nx\r\n0\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, raw []byte, size int) {
		decode := func(size int) (got []byte, used int, ok bool) {
			var c chunkReader
			for used < len(raw) && !c.done() {
				piece := bytes.Clone(raw[used:min(used+size, len(raw))])
				out, in, err := c.decode(piece, piece)
				got = append(got, piece[:out]...)
				used += in
				if err != nil {
					return got, used, false
				}
			}
			return got, used, c.done()
		}
		whole, used, ok := decode(len(raw) + 1)
		split, usedSplit, okSplit := decode(max(1, size))
		if !bytes.Equal(whole, split) || used != usedSplit || ok != okSplit {
			t.Fatalf("whole %q %d %v, split %q %d %v", whole, used, ok, split, usedSplit, okSplit)
		}
		if !ok {
			return
		}
		resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(strings.NewReader("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), bytes.NewReader(raw))), nil)
		if err != nil {
			t.Fatal(err)
		}
		if want, err := io.ReadAll(resp.Body); err == nil && !bytes.Equal(want, whole) {
			t.Fatalf("%q, net/http %q", whole, want)
		}
	})
}
