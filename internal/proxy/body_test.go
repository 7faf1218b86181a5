package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// bodyServer runs echoBodies until the test ends.
func bodyServer(t *testing.T, cfg BodyConfig) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(echoBodies(cfg))
	t.Cleanup(s.Close)
	return s
}

// echoBodies answers with the request's body, and with the size of the body's buffer in X-Room.
func echoBodies(cfg BodyConfig) http.HandlerFunc {
	bodies := NewBodies(cfg)
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := bodies.Read(w, r)
		if err != nil {
			api.WriteError(w, api.OpenAIChat, err)
			return
		}
		defer body.Release()
		w.Header().Set("X-Room", strconv.Itoa(cap(body.Bytes)))
		w.Write(body.Bytes)
	}
}

func TestBodiesAreReadWhole(t *testing.T) {
	s := bodyServer(t, BodyConfig{MaxBytes: 8 << 20, StallTimeout: time.Second})
	for _, size := range []int{0, 1, 4095, 4096, 4097, 100_000, trusted, trusted + 1, 2 << 20, 5 << 20, 8 << 20} {
		for _, chunked := range []bool{false, true} {
			want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			var body io.Reader = bytes.NewReader(want)
			if chunked {
				body = struct{ io.Reader }{body}
			}
			resp, err := s.Client().Post(s.URL, "application/json", body)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil || resp.StatusCode != 200 || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, chunked %v: status %d, %d bytes, %v", size, chunked, resp.StatusCode, len(got), err)
			}
			if room, _ := strconv.Atoi(resp.Header.Get("X-Room")); room > max(4*size, smallestBody) {
				t.Errorf("%d bytes took room for %d", size, room)
			}
		}
	}
}

func TestBadBodiesAreRefusedInTheDialectsShape(t *testing.T) {
	s := bodyServer(t, BodyConfig{MaxBytes: 1000, StallTimeout: 200 * time.Millisecond})
	f := func(name, request string, hold bool, status int, code string) {
		t.Helper()
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, request)
		if !hold {
			c.(*net.TCPConn).CloseWrite()
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != status || !strings.Contains(string(body), `"code":"`+code+`"`) || !resp.Close {
			t.Errorf("%s: status %d, close %v, body %s", name, resp.StatusCode, resp.Close, body)
		}
	}
	const post = "POST / HTTP/1.1\r\nHost: x\r\n"
	f("declared too large", post+"Content-Length: 1001\r\n\r\n", true, 413, "request_too_large")
	f("grown too large", post+"Transfer-Encoding: chunked\r\n\r\n800\r\n"+strings.Repeat("x", 2048)+"\r\n", true, 413, "request_too_large")
	f("stalled", post+"Content-Length: 1000\r\n\r\nxx", true, 408, "request_timeout")
	f("stalled in chunks", post+"Transfer-Encoding: chunked\r\n\r\n5\r\nhe", true, 408, "request_timeout")
	f("bad chunks", post+"Transfer-Encoding: chunked\r\n\r\nzz\r\n", true, 400, "invalid_request")
}

func TestAKeptConnectionHasNoDeadlineLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := network.NewMemory()
		l, err := memory.Host("10.0.0.1").Listen("tcp", "10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		cfg := BodyConfig{MaxBytes: 1000, StallTimeout: 200 * time.Millisecond}
		s := &http.Server{Handler: echoBodies(cfg)}
		done := make(chan struct{})
		go func() { defer close(done); _ = s.Serve(l) }()
		defer func() { _ = s.Close(); <-done }()
		c, err := memory.Host("10.0.0.2").Dial(t.Context(), "tcp", "10.0.0.1:80")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		br := bufio.NewReader(c)
		for i := range 3 {
			// The pause is longer than StallTimeout: if Read had not removed its deadline, the next request would fail.
			testenv.Pass(cfg.StallTimeout + 100*time.Millisecond)
			io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi")
			resp, err := http.ReadResponse(br, nil)
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("request %d: %v", i, err)
			}
			io.Copy(io.Discard, resp.Body)
		}
	})
}

func TestAnUntruthfulLengthTakesLittleMemory(t *testing.T) {
	b := NewBodies(DefaultBodyConfig())
	r := httptest.NewRequest("POST", "/", strings.NewReader("short"))
	r.ContentLength = 60 << 20
	body, err := b.Read(httptest.NewRecorder(), r)
	if err != nil {
		t.Fatal(err)
	}
	if cap(body.Bytes) > 2*trusted {
		t.Errorf("room for %d bytes on the word of a header", cap(body.Bytes))
	}
}

// A body arrives byte by byte, without a stall and without an end. Read must stop after Timeout, and the error must say
// why.
func TestABodyThatTricklesIsCut(t *testing.T) {
	for _, stall := range []time.Duration{0, time.Minute} {
		s := bodyServer(t, BodyConfig{MaxBytes: 1000, StallTimeout: stall, Timeout: 60 * time.Millisecond})
		c, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() { // this goroutine ends when the server closes the connection, or with the test
			defer close(stopped)
			io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900\r\n\r\n")
			for {
				if _, err := io.WriteString(c, "x"); err != nil {
					return
				}
				select {
				case <-time.After(5 * time.Millisecond):
				case <-stop:
					return
				}
			}
		}()
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusRequestTimeout || !strings.Contains(string(body), "did not arrive within 60ms") || !resp.Close {
			t.Errorf("stall timeout %v: %d, close %v, %s", stall, resp.StatusCode, resp.Close, body)
		}
		close(stop)
		c.Close()
		<-stopped
	}
}
