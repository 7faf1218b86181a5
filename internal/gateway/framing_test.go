package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A request has both a Content-Length and chunks. A proxy in front may use the Content-Length, and take the bytes after
// the chunks for a part of this request. The worker must get one request with one framing, and the client's connection
// must be closed.
func TestALengthBesideChunksSmugglesNothing(t *testing.T) {
	type received struct {
		length   int64
		encoding []string
		body     string
	}
	requests := make(chan received, 8)
	f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- received{r.ContentLength, r.TransferEncoding, string(body)}
		plain(w, r)
	}))
	chunks := fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(chat), chat)
	second := fmt.Sprintf("POST /v1/chat/completions HTTP/1.1\r\nHost: evil\r\nContent-Length: %d\r\n\r\n%s", len(chat), chat)
	for name, framing := range map[string]string{
		"a length before chunks": fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n", len(chunks)+len(second)),
		"a length behind chunks": fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d\r\n", len(chunks)+len(second)),
		"chunks alone":           "Transfer-Encoding: chunked\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			if _, err := io.WriteString(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"+framing+"\r\n"+chunks+second); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != http.StatusOK || string(text) != whole || !resp.Close {
				t.Errorf("%d, close %v, %v: %s", resp.StatusCode, resp.Close, err, text)
			}
			if rest, _ := io.ReadAll(r); len(rest) > 0 {
				t.Errorf("the connection went on: %s", rest)
			}
			got := <-requests
			if got.length != int64(len(chat)) || len(got.encoding) > 0 || got.body != chat {
				t.Errorf("the worker got %d bytes, %v: %s", got.length, got.encoding, got.body)
			}
			select {
			case more := <-requests:
				t.Errorf("the worker got a second request: %+v", more)
			default:
			}
		})
	}
	if resp, _ := f.post(t, chat); resp.Close {
		t.Error("a connection ends after a body with a length")
	}
}
