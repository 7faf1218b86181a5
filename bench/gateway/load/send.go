package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// timeout bounds the time of one request.
const timeout = 20 * time.Second

// result is the outcome of one request.
type result struct {
	first, total time.Duration // times until the first byte of the stream, and until its end
	err          string        // "": the stream ended with [DONE]
}

// sender sends one request after another to an address, over one connection. It does not use net/http for sending,
// because it shares the processors with the router that it measures, and must need little time. It is not safe for
// concurrent use.
type sender struct {
	address string
	first   *sender // sends the prefill leg of each request to another address; nil: requests have one leg
	conn    net.Conn
	in      *bufio.Reader
	buffer  [32 << 10]byte
}

func (s *sender) close() {
	if s.first != nil {
		s.first.close()
	}
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// send posts a body and reads the stream of the answer. The times in the result count from due, the time at which the
// request should start.
func (s *sender) send(body []byte, due time.Time) (r result) {
	if s.first != nil {
		if body, r.err = s.prefill(body, due); r.err != "" {
			r.total = time.Since(due)
			return r
		}
	}
	return s.post(body, due, s.stream)
}

// answered reads the body of an answer and calls first at its first byte. It returns a description of the error, or "".
type answered func(body io.Reader, first func()) string

// post posts a body, and lets read take the answer.
func (s *sender) post(body []byte, due time.Time, read answered) (r result) {
	reusable := false
	defer func() {
		r.total = time.Since(due)
		if !reusable {
			s.close()
		}
	}()
	if s.conn == nil {
		conn, err := net.DialTimeout("tcp", s.address, 5*time.Second)
		if err != nil {
			r.err = "dial: " + reason(err)
			return r
		}
		s.conn, s.in = conn, bufio.NewReaderSize(conn, 16<<10)
	}
	_ = s.conn.SetDeadline(time.Now().Add(timeout)) // ignore an error: if the connection is closed, the write below fails
	head := make([]byte, 0, 512)
	head = append(head, "POST /v1/chat/completions HTTP/1.1\r\nHost: "...)
	head = append(head, s.address...)
	head = append(head, "\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\nAuthorization: Bearer sk-x\r\nContent-Length: "...)
	head = strconv.AppendInt(head, int64(len(body)), 10)
	head = append(head, "\r\n\r\n"...)
	buffers := net.Buffers{head, body}
	if _, err := buffers.WriteTo(s.conn); err != nil {
		r.err = "write: " + reason(err)
		return r
	}
	resp, err := http.ReadResponse(s.in, &http.Request{Method: http.MethodPost})
	if err != nil {
		r.err = "read the header: " + reason(err)
		return r
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 160))
		_, err := io.Copy(io.Discard, resp.Body)
		r.err = fmt.Sprintf("status %d: %s", resp.StatusCode, strings.ReplaceAll(string(text), "\n", " "))
		reusable = err == nil && !resp.Close
		return r
	}
	r.err = read(resp.Body, func() { r.first = time.Since(due) })
	reusable = r.err == "" && !resp.Close
	return r
}

// prefill sends the prefill leg of a request over NIXL, and returns the body of the decode leg: what a router does for
// its clients.
func (s *sender) prefill(body []byte, due time.Time) (decode []byte, failed string) {
	var answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	leg := slices.Concat([]byte(`{"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false},"max_tokens":1,"stream":false,`), cut(body))
	r := s.first.post(leg, due, func(in io.Reader, _ func()) string {
		data, err := io.ReadAll(in)
		if err == nil {
			err = json.Unmarshal(data, &answer)
		}
		if err != nil {
			return "read the prefill leg: " + reason(err)
		}
		return ""
	})
	return slices.Concat([]byte(`{"kv_transfer_params":`), answer.Params, []byte(","), body[1:]), r.err
}

// cut returns the members of a body of makeBodies that a prefill leg shares with it, without the opening brace.
func cut(body []byte) []byte {
	for _, member := range []string{`"stream":true,`, `"max_tokens":64,`, `"stream_options":{"include_usage":true},`} {
		body = bytes.Replace(body, []byte(member), nil, 1)
	}
	return body[1:]
}

// stream reads a stream of events to its end, and calls first at its first byte. It returns a description of the
// stream's error, or "" for a good stream.
func (s *sender) stream(body io.Reader, first func()) string {
	var tail []byte // last bytes of the stream, which must contain [DONE]
	for {
		n, err := body.Read(s.buffer[:])
		if n > 0 && tail == nil {
			first()
		}
		if bytes.Contains(s.buffer[:n], []byte(`data: {"error`)) {
			return "an error event in the stream"
		}
		tail = append(tail, s.buffer[max(0, n-32):n]...)
		tail = tail[max(0, len(tail)-32):]
		switch {
		case err == io.EOF && !bytes.Contains(tail, []byte("[DONE]")):
			return fmt.Sprintf("the stream ended without [DONE]: %q", tail)
		case err == io.EOF:
			return ""
		case err != nil:
			return "read the stream: " + reason(err)
		}
	}
}

// reason returns the last part of an error's text. This part has no address, so that equal errors of different
// connections count together.
func reason(err error) string {
	text := err.Error()
	if i := strings.LastIndex(text, ": "); i >= 0 {
		return text[i+2:]
	}
	return text
}
