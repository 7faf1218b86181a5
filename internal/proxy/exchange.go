package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
)

const (
	// bufferSize is the size of the buffer with which one exchange reads an answer. An event has some hundred bytes, and
	// one read rarely brings more than a few events. Buffers for ten thousand streams take 160 MB.
	bufferSize = 16 << 10
	// joinBelow is the body size in bytes up to which the body is copied behind the header, so that one write sends
	// both.
	joinBelow = 4 << 10
	// maxInterim is the number of 1xx answers that are skipped before the exchange fails.
	maxInterim = 16
	// lateAnswer is how long the exchange waits for an answer if the worker closed the connection before it read the
	// whole request.
	lateAnswer = time.Second
)

// exchange is one run of Forward. Exchanges are pooled for their buffers.
type exchange struct {
	client *Client
	a      *Attempt
	res    Result

	out  []byte  // header of the request
	buf  []byte  // bytes that were read from the worker: the header, followed by the body
	wide *[]byte // the pooled buffer from roomy that buf uses; nil if buf is the exchange's own buffer
	own  []byte  // the exchange's own buffer, while buf uses wide
	ans  answerHead
	body answerBody

	watch api.Watcher
	relay
}

// roomy has buffers for answers in one piece that do not fit into the exchange's own buffer.
var roomy = sync.Pool{New: func() any { b := make([]byte, maxHeld); return &b }}

var exchanges = sync.Pool{New: func() any { return &exchange{buf: make([]byte, bufferSize)} }}

func (x *exchange) begin(c *Client, a *Attempt) {
	x.client, x.a = c, a
	x.res = Result{Start: time.Now()}
	a.begin()
	x.relay = relay{}
}

func (x *exchange) end() {
	x.client, x.a, x.res = nil, nil, Result{}
	x.relay = relay{}
	if x.wide != nil {
		roomy.Put(x.wide)
		x.buf, x.own, x.wide = x.own, nil, nil
	}
	if len(x.buf) > bufferSize {
		x.buf = make([]byte, bufferSize)
	}
	if cap(x.out) > bufferSize {
		x.out = nil
	}
	exchanges.Put(x)
}

func (x *exchange) run(ctx context.Context) {
	w, err := x.client.worker(x.a.Worker)
	if err == nil {
		x.out, err = w.appendHead(x.out[:0], x.a)
	}
	if err != nil {
		x.fail(BadAttempt, api.Internal(err))
		return
	}
	if !x.try(ctx, w, false) {
		return
	}
	// The kept-alive connection was stale, so the exchange tries once more on a new connection.
	if x.try(ctx, w, true) {
		x.res.Retryable, x.res.Untaken = true, true
		x.fail(Refused, api.WorkerUnreachable(fmt.Errorf("%s refused the stream of the request twice", w.url)))
	}
}

// try makes the exchange on one connection: a new connection if fresh is true, else a kept-alive connection if there is
// one. stale is true if the connection was a kept-alive connection that could not be used: the worker closed it before
// any byte of an answer, or bytes came on it before the request. stale is also true if the worker refused a stream.
func (x *exchange) try(ctx context.Context, w *worker, fresh bool) (stale bool) {
	if err := ctx.Err(); err != nil {
		x.gone(ctx)
		return false
	}
	var k *conn
	if !fresh {
		k = w.take(x.res.Start, x.client.cfg.IdleTimeout)
	}
	x.res.Reused = k != nil
	if k == nil {
		var err error
		if k, err = x.connect(ctx, w); err != nil {
			x.noConnection(ctx, w, err)
			return false
		}
	}
	stop := context.AfterFunc(ctx, k.abort)
	x.body = answerBody{}
	x.a.wait(k)
	stale = x.talk(k)
	abandoned := !x.a.leave()
	intact := stop() && !abandoned
	switch {
	case k.shared != nil:
		w.leave(k, stale || abandoned || x.timedOut())
	case intact && x.body.reusable() && x.res.Class <= Limited:
		k.since = time.Now()
		w.keep(k, x.client.cfg.IdlePerWorker)
	default:
		k.Close()
	}
	switch {
	case x.given && (ctx.Err() != nil || x.res.Class == ClientGone):
		x.res.Class, x.res.Err, x.res.Abort = Success, nil, false
	case ctx.Err() != nil && x.res.Class != Success:
		x.gone(ctx)
		return false
	case abandoned && !x.res.FirstByte:
		x.res.Retryable = true
		x.fail(Abandoned, api.WorkerTimeout(fmt.Errorf("%s seems to be frozen", w.url)))
		return false
	case abandoned && x.res.Class != Success:
		x.res.Abort = true
		x.fail(Abandoned, api.WorkerBroke(fmt.Errorf("%s seems to be frozen", w.url)))
		return false
	}
	return stale
}

// connect dials the worker. When this machine has no descriptor, port or memory left, connect closes all idle
// connections and dials once more.
func (x *exchange) connect(ctx context.Context, w *worker) (*conn, error) {
	k, err := w.dialOnce(ctx, &x.client.cfg)
	if err != nil && network.Local(err) {
		x.client.shed()
		k, err = w.dialOnce(ctx, &x.client.cfg)
	}
	return k, err
}

// noConnection records that no connection could be made, and the reason.
func (x *exchange) noConnection(ctx context.Context, w *worker, err error) {
	if ctx.Err() != nil {
		x.gone(ctx)
		return
	}
	x.res.Retryable = true
	err = fmt.Errorf("connect to %s: %w", w.url, err)
	if network.Local(err) {
		x.fail(Local, api.Exhausted(err))
		return
	}
	x.res.Untaken = true
	x.fail(Refused, api.WorkerUnreachable(err))
}

// talk sends the request and forwards the answer. It returns stale as try does.
func (x *exchange) talk(k *conn) (stale bool) {
	if t := x.client.cfg.HeaderTimeout; t > 0 {
		k.arm(x.res.Start.Add(t), t)
	} else if !k.limit.IsZero() {
		k.disarm()
	}
	if x.res.Reused && !k.quiet() {
		return true
	}
	unsent := x.send(k)
	if unsent != nil {
		if x.res.Reused && !errors.Is(unsent, os.ErrDeadlineExceeded) {
			return true
		}
		// The worker may have answered and closed the connection before it read the whole request.
		k.SetReadDeadline(time.Now().Add(lateAnswer))
		x.body.spoiled = true
	}
	x.res.Sent = time.Now()
	if unsent == nil && x.a.OnSent != nil {
		x.a.OnSent()
	}
	n, end, err := x.readHead(k)
	if err != nil {
		if n == 0 && (x.res.Reused && !errors.Is(err, os.ErrDeadlineExceeded) && !reset(err) || refused(err)) {
			return true
		}
		if unsent != nil {
			err = unsent
		}
		x.noAnswer(k, n, err)
		return false
	}
	x.answer(k, end, n)
	return false
}

func (x *exchange) send(k *conn) error {
	if len(x.a.Body) <= joinBelow {
		x.out = append(x.out, x.a.Body...)
		_, err := k.Write(x.out)
		x.out = x.out[:len(x.out)-len(x.a.Body)]
		return err
	}
	return k.writeBoth(x.out, x.a.Body)
}

// readHead reads until the answer's header is complete. After that the header is in x.buf[:end], and its parsed form is
// in x.ans. n is the number of bytes in x.buf.
func (x *exchange) readHead(k *conn) (n, end int, err error) {
	interim, seen := 0, 0
	for {
		if end = findHead(x.buf[:n], seen); end > 0 {
			if err := x.ans.parse(x.buf[:end], x.client.cfg.MaxHeaders); err != nil {
				return n, 0, err
			}
			if x.ans.status >= 200 {
				return n, end, nil
			}
			if interim++; interim > maxInterim || x.ans.status == http.StatusSwitchingProtocols {
				return n, 0, errSwitch
			}
			n, seen = copy(x.buf, x.buf[end:n]), 0
			continue
		}
		seen = n
		if n >= x.client.cfg.MaxHeaderBytes {
			return n, 0, errHeadTooLarge
		}
		if n == len(x.buf) {
			x.grow()
		}
		m, err := k.Read(x.buf[n:])
		if m > 0 && x.res.FirstByteAt.IsZero() {
			x.res.FirstByteAt = time.Now()
			if !x.a.wait(nil) {
				return n, 0, errAbandoned
			}
		}
		n += m
		if m == 0 && err != nil {
			return n, 0, err
		}
	}
}

// grow doubles the buffer.
func (x *exchange) grow() {
	larger := make([]byte, 2*len(x.buf))
	copy(larger, x.buf)
	x.buf = larger
}

// widen replaces the buffer by a pooled buffer of maxHeld bytes, if the answer is held back until it is complete, or
// until its first token.
func (x *exchange) widen() {
	if x.stream && !x.a.HoldStart || x.res.FirstByte || len(x.buf) >= maxHeld {
		return
	}
	x.wide = roomy.Get().(*[]byte)
	copy(*x.wide, x.buf)
	x.own, x.buf = x.buf, *x.wide
}

// noAnswer records that the exchange ended before the header was complete, and the reason.
func (x *exchange) noAnswer(k *conn, n int, err error) {
	x.res.Retryable = true
	err = protocolError(k.worker.url, network.Explained(err))
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.fail(HeaderTimeout, api.WorkerTimeout(err))
	case n == 0 || isNetError(err):
		x.fail(Reset, api.WorkerUnreachable(err))
	default:
		x.fail(Protocol, api.WorkerUseless(err))
	}
}

func isNetError(err error) bool {
	var errno *os.SyscallError
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.As(err, &errno) || errors.As(err, &op)
}

// timedOut reports whether the worker was silent for too long.
func (x *exchange) timedOut() bool {
	return x.res.Class == HeaderTimeout || x.res.Class == StreamTimeout
}

func (x *exchange) fail(c Class, err error) {
	x.res.Class, x.res.Err = c, err
}

// gone ends an exchange whose context ended: the client left, or the request's time was over, or the context's cause is
// an *api.Error, which the client gets.
func (x *exchange) gone(ctx context.Context) {
	x.res.Answer = nil
	x.res.Abort = x.res.FirstByte
	cause := context.Cause(ctx)
	var forClient *api.Error
	switch {
	case errors.As(cause, &forClient):
		x.broken(Cut, forClient)
	case !errors.Is(cause, context.DeadlineExceeded):
		x.fail(ClientGone, fmt.Errorf("forward to %s: %w", x.a.Worker, cause))
	case x.res.FirstByte:
		x.fail(StreamTimeout, api.WorkerTimeout(cause))
	default:
		x.fail(HeaderTimeout, api.WorkerTimeout(cause))
	}
	x.res.Retryable = false
}
