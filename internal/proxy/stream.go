package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// stream is one request on an HTTP/2 connection, in the form of a connection of its own: the exchange writes a request
// of HTTP/1.1 to it, and reads the header of an answer in HTTP/1.1 and then the body. So one loop serves both
// protocols. Closing a stream resets it if its answer is not complete, and leaves the connection open. Only Close may
// be called from any goroutine.
type stream struct {
	net.Conn // nil: the exchange uses no other method of net.Conn
	on       *shared
	w        *worker

	ctx    context.Context
	cancel context.CancelFunc
	timer  *time.Timer // ends the stream at the deadline; nil while there is no deadline
	late   atomic.Bool // the deadline has passed

	asked  bool           // RoundTrip was called, so it frees the place on the connection
	head   []byte         // the request's header, until the request was sent; then the part of the answer's header to be read
	upload upload         // the request's body
	answer *http.Response // nil before the header came
}

// newStream returns a stream on a connection on which a place is reserved.
func (w *worker) newStream(on *shared) *stream {
	s := &stream{on: on, w: w}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Write takes the request's header with the first bytes of its body, and then the rest of the body. It does not wait:
// the first Read sends the request. b must not change until the exchange ends.
func (s *stream) Write(b []byte) (int, error) {
	n := len(b)
	if s.head == nil {
		end := findHead(b, 0)
		s.head, b = b[:end], b[end:]
	}
	if len(b) > 0 { // the body comes in one call: with its header, or behind it
		s.upload.rest = b
	}
	return n, nil
}

// Read reads the answer. The first call sends the request and waits for the answer's header.
func (s *stream) Read(b []byte) (n int, err error) {
	if s.answer == nil {
		if err := s.ask(); err != nil {
			return 0, s.reason(err)
		}
	}
	if len(s.head) > 0 {
		n = copy(b, s.head)
		s.head = s.head[n:]
		return n, nil
	}
	if n, err = s.answer.Body.Read(b); err != nil && err != io.EOF {
		err = s.reason(err)
	}
	return n, err
}

// ask sends the request, and waits for the answer's header.
func (s *stream) ask() error {
	r, err := s.request()
	if err != nil {
		return err
	}
	s.asked = true
	answer, err := s.on.RoundTrip(r)
	if err != nil {
		return err
	}
	s.answer, s.head = answer, appendAnswer(nil, answer)
	return nil
}

// request returns the request that was written. Its header comes from appendHead, so it has the form that is read here.
func (s *stream) request() (*http.Request, error) {
	line, rest := cutLine(s.head)
	part := bytes.SplitN(line, []byte(" "), 3)
	u, err := s.w.At(string(part[1]))
	if err != nil {
		return nil, fmt.Errorf("write the request's path: %w", err)
	}
	r := &http.Request{Method: string(part[0]), URL: u, Host: u.Host, Header: make(http.Header), Body: http.NoBody}
	if size := len(s.upload.rest); size > 0 {
		r.Body, r.ContentLength = &s.upload, int64(size)
	}
	for {
		if line, rest = cutLine(rest); len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch field := fieldName(name); field {
		case "Host", "Content-Length": // these fields are in r already
		default:
			r.Header[field] = append(r.Header[field], string(value))
		}
	}
	if r.Header["User-Agent"] == nil {
		r.Header["User-Agent"] = nil // without this, net/http would name itself
	}
	return r.WithContext(s.ctx), nil
}

// appendAnswer appends the header of an answer in the form of HTTP/1.1. The field Transfer-Encoding has no meaning in
// HTTP/2.
func appendAnswer(dst []byte, a *http.Response) []byte {
	dst = append(dst, "HTTP/1.1 "...)
	dst = strconv.AppendInt(dst, int64(a.StatusCode), 10)
	dst = append(dst, "\r\n"...)
	for name, values := range a.Header {
		for _, v := range values {
			if name != "Transfer-Encoding" {
				dst = append(append(append(append(dst, name...), ": "...), v...), "\r\n"...)
			}
		}
	}
	return append(dst, "\r\n"...)
}

// reason returns the error of a stream in the form in which a connection of its own would have it.
func (s *stream) reason(err error) error {
	switch {
	case s.late.Load():
		return os.ErrDeadlineExceeded
	case s.ctx.Err() != nil:
		return net.ErrClosed
	}
	return err
}

// streamError has the fields of the error with which net/http reports that one stream ended. net/http converts its own
// type, which is not exported, to any type of this form.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return fmt.Sprintf("HTTP/2 stream error %d", e.Code) }

// refused reports whether err, from a stream without an answer, says that the worker did not read the request
// (REFUSED_STREAM, RFC 9113 §8.7). This happens when more streams come than the worker allows on a connection.
func refused(err error) bool {
	const refusedStream = 7
	var e streamError
	return errors.As(err, &e) && e.Code == refusedStream
}

// reset reports whether the worker, or net/http because of the worker's answer, ended one stream, and not the
// connection.
func reset(err error) bool { return errors.As(err, new(streamError)) }

// Close ends the stream. The exchange closes its stream once more at its end, so that the place on the connection
// becomes free.
func (s *stream) Close() error {
	s.cancel()
	return nil
}

// SetDeadline sets the time at which the stream ends. A zero t is no deadline. It is called by one goroutine only.
func (s *stream) SetDeadline(t time.Time) error {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	if !t.IsZero() {
		s.timer = time.AfterFunc(time.Until(t), func() {
			s.late.Store(true)
			s.cancel()
		})
	}
	return nil
}

// SetReadDeadline does the same.
func (s *stream) SetReadDeadline(t time.Time) error { return s.SetDeadline(t) }

// end frees everything that the stream uses. After that, the bytes that were written may change.
func (s *stream) end() {
	s.SetDeadline(time.Time{})
	s.cancel()
	s.upload.Close()
	if !s.asked {
		s.on.Release()
	}
	if s.answer != nil {
		s.answer.Body.Close()
	}
}

// upload is a request's body. net/http may still send it when the answer is complete or the exchange was cancelled. So
// Close waits for a Read that is under way, and later calls of Read do not touch the bytes.
type upload struct {
	mu     sync.Mutex
	rest   []byte // guarded by mu, after the request was sent
	closed bool   // guarded by mu
}

func (u *upload) Read(b []byte) (n int, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return 0, net.ErrClosed
	}
	n = copy(b, u.rest)
	if u.rest = u.rest[n:]; len(u.rest) == 0 {
		err = io.EOF
	}
	return n, err
}

func (u *upload) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rest, u.closed = nil, true
	return nil
}
