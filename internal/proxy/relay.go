package proxy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// maxHeld is the largest answer in one piece that is read completely before its first byte is forwarded. For a larger
// answer, the beginning is checked, and the bytes are forwarded as they come. 256 KiB hold 64,000 tokens of text, or a
// few thousand tokens with log probabilities.
const maxHeld = 256 << 10

// slack is the least free room in the buffer for which a read is useful.
const slack = 512

// unguarded is the number of bytes that are written to a client of HTTP/1.1 without a deadline. So few bytes always fit
// into the socket's buffer, and setting a deadline for every short answer would cost more than it saves. A client of
// HTTP/2 may allow fewer bytes, even none.
const unguarded = 8 << 10

// relay is the state of forwarding one answer to the client.
type relay struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	watching bool // the answer is no refusal by its status, so the watcher reads it
	opaque   bool // the answer is no refusal, and nobody reads it: its bytes are forwarded as they come
	// stream means that the answer is an event stream, which is watched and forwarded as it comes. Of another answer,
	// nothing is forwarded before it is complete or larger than maxHeld.
	stream bool
	judged bool // the beginning of the stream was checked, and is good
	cut    bool // the last forwarded bytes ended inside an event
	given  bool // the client got everything up to [DONE]

	guarded  time.Time // time at which the client's write deadline was last set
	named    bool      // OnID was called
	reported int       // number of tokens in the last call of OnTokens
}

// answer forwards an answer. Its header is x.buf[:head]. n is the number of bytes that were read so far.
func (x *exchange) answer(k *conn, head, n int) {
	x.res.Status = x.ans.status
	x.frame(k)
	x.opaque = x.ans.status < 300 && x.a.Unchecked
	x.watching = x.ans.status < 300 && !x.opaque
	x.stream = x.watching && x.ans.stream && !x.ans.encoded
	if x.stream && x.a.Whole {
		x.useless(fmt.Errorf("%s answered with an event stream although the request asked for an answer in one piece", x.a.Worker))
		return
	}
	if (x.watching || x.opaque) && x.ans.encoded {
		// The request asked for no encoding, and an encoded answer cannot be checked.
		x.useless(fmt.Errorf("%s encoded its answer although the request allowed no encoding", x.a.Worker))
		return
	}
	if x.watching {
		f := api.JSON
		if x.stream {
			f = api.EventStream
		}
		x.watch.Reset(x.a.Dialect, f)
	}
	if len(x.buf)-head < bufferSize/2 {
		x.grow()
	}
	if !x.stream && x.body.framing == byLength && x.body.length > int64(len(x.buf)-head-slack) {
		x.widen()
	}
	x.w = x.a.Writer
	x.rc = http.NewResponseController(x.w)
	if x.client.cfg.StreamIdleTimeout > 0 || k.shared != nil {
		// The header's deadline is removed, because it may be later than the body's deadline. An HTTP/2 stream has no
		// deadline that it survives.
		k.disarm()
	}
	x.pump(k, head, n-head)
	if x.watching {
		x.res.Usage = x.watch.Usage()
	}
	if x.client.cfg.ClientTimeout > 0 && !x.guarded.IsZero() {
		x.rc.SetWriteDeadline(time.Time{}) // removes the deadline; it fails only for a writer that has no deadlines
	}
}

// pump reads, decodes, checks and forwards bytes until the body ends. The body begins at x.buf[head]. n bytes of the
// body were read so far. data[:held] is decoded and not forwarded yet.
func (x *exchange) pump(k *conn, head, n int) {
	data := x.buf[head:]
	held := 0
	for {
		out, err := x.body.decode(data[held : held+n])
		if err != nil {
			x.broken(Protocol, protocolError(k.worker.url, err))
			return
		}
		send := x.inspect(data[:held+out], held)
		held += out
		if x.stream && x.watch.Failed() {
			x.engineError(data[:send])
			return
		}
		if why := x.misbegun(data[:held]); why != nil {
			x.broken(Useless, why)
			return
		}
		if x.stream || send > 0 {
			x.progress()
		}
		if x.body.over {
			x.whole(data[:held])
			return
		}
		if x.stream && x.unfinished() && x.watch.Done() {
			x.endUnfinished(data[:send])
			return
		}
		if send > 0 {
			if x.overflows(data[:held]) || !x.pass(data[:send], false) {
				return
			}
			held = copy(data, data[send:held])
		} else if len(data)-held < slack {
			x.widen()
			data = x.buf[head:]
		}
		if n, err = x.read(k, data[held:]); n == 0 && err != nil {
			x.ended(k, data[:held], err)
			return
		}
	}
}

// inspect lets the watcher read data[held:], and returns how many bytes of data can be forwarded now.
func (x *exchange) inspect(data []byte, held int) (send int) {
	fresh := data[held:]
	whole := len(fresh)
	if x.watching {
		whole = x.watch.Feed(fresh)
	}
	full := cap(data)-len(data) < slack
	switch {
	case x.opaque:
		return len(data)
	case x.startHeld() && (!full || len(x.buf) < maxHeld):
		return 0
	case !x.stream && (!full || !x.res.FirstByte && len(x.buf) < maxHeld):
		return 0
	case x.stream && whole > 0:
		x.cut = false
		return held + whole
	case x.stream && !full:
		return 0
	case x.stream:
		x.cut = true // the event is larger than the buffer, so it is forwarded in parts
	}
	return len(data)
}

// startHeld reports whether the beginning of a stream is held back: see Attempt.HoldStart.
func (x *exchange) startHeld() bool {
	return x.stream && x.a.HoldStart && !x.res.FirstByte && !x.watch.FirstToken() && x.unfinished()
}

// progress reports the id, the first token and the number of tokens of a checked answer, or that the worker lives.
func (x *exchange) progress() {
	if !x.watching {
		x.alive()
		return
	}
	if id := x.watch.ID(); len(id) > 0 && !x.named && x.a.OnID != nil {
		x.named = true
		x.a.OnID(id)
	}
	if x.res.FirstTokenAt.IsZero() && x.watch.FirstToken() {
		x.res.FirstTokenAt = time.Now()
		if x.a.OnFirstToken != nil {
			x.a.OnFirstToken(x.res.FirstTokenAt)
		}
	}
	n := x.watch.Tokens()
	if !x.stream || n <= x.reported {
		x.alive()
		return
	}
	x.reported = n
	if x.a.OnTokens != nil {
		x.a.OnTokens(n, time.Now())
	}
}

func (x *exchange) alive() {
	if x.a.OnAlive != nil {
		x.a.OnAlive(time.Now())
	}
}

// pass writes b to the client. If b is the beginning of the answer, pass writes the header first. It returns false when
// the client is gone.
func (x *exchange) pass(b []byte, last bool) bool {
	if t := x.client.cfg.ClientTimeout; t > 0 && (x.a.HTTP2 || x.res.BytesDown >= unguarded) {
		if now := time.Now(); now.Sub(x.guarded) > t/4 {
			x.guarded = now
			// Not every writer supports a deadline. For other writers, there is no limit.
			x.rc.SetWriteDeadline(now.Add(t + t/4))
		}
	}
	if !x.res.FirstByte {
		x.res.FirstByte = true
		h := x.w.Header()
		x.nameAnswer(h)
		x.ans.copyTo(h)
		x.w.WriteHeader(x.ans.status)
	}
	if x.stream && x.a.EditEvents != nil {
		b = x.a.EditEvents(b)
	}
	var err error
	if len(b) > 0 {
		_, err = x.w.Write(b)
	}
	if err == nil && !last && (x.stream || x.opaque) {
		if err = x.rc.Flush(); errors.Is(err, http.ErrNotSupported) {
			err = nil
		}
	}
	if err != nil {
		x.res.Abort = true
		x.fail(ClientGone, fmt.Errorf("write to the client: %w", err))
		return false
	}
	if x.a.HTTP2 && !x.guarded.IsZero() {
		x.rc.SetWriteDeadline(time.Time{}) // the worker may be silent for longer than the deadline
		x.guarded = time.Time{}
	}
	x.res.BytesDown += int64(len(b))
	x.given = x.streamed()
	return true
}

// streamed reports whether a stream contained everything that a client waits for: the end of each choice, and [DONE].
func (x *exchange) streamed() bool {
	return x.stream && x.watch.Done() && x.watch.Complete()
}

// nameAnswer sets the request's id in h before the worker's fields are added. So the client gets the id that is in the
// router's log, and not an id of the worker.
func (x *exchange) nameAnswer(h http.Header) {
	if id := cmp.Or(x.a.ShownID, x.a.RequestID); id != "" {
		h[headerRequestID] = []string{id}
	}
}

// whole ends an answer that is complete by its framing. rest was not forwarded yet.
func (x *exchange) whole(rest []byte) {
	if x.watching {
		x.watch.End()
	}
	if x.opaque {
		if x.pass(rest, true) {
			x.res.Class = Success
		}
		return
	}
	if !x.res.FirstByte && x.holdBack(rest) {
		return
	}
	x.progress()
	if x.stream && x.unfinished() {
		x.endUnfinished(rest)
		return
	}
	if !x.pass(rest, true) {
		return
	}
	switch {
	case x.watch.Complete():
		x.res.Class = Success
	case x.watch.Failed() || x.watch.Finished():
		x.fail(EngineError, api.WorkerBroke(fmt.Errorf("%s ended its stream without a complete answer: %s", x.a.Worker, x.watch.ErrorText())))
	default:
		x.fail(Truncated, api.WorkerBroke(fmt.Errorf("%s gave no finish_reason", x.a.Worker)))
	}
}

// unfinished reports whether the end of the answer did not come yet. An error event is an end, too.
func (x *exchange) unfinished() bool { return !x.watch.Finished() && !x.watch.Failed() }

// endUnfinished ends a stream that its worker ended although no choice is finished. The worker may have sent [DONE].
// The client gets an error event in place of it, because it would take the stream for complete.
func (x *exchange) endUnfinished(events []byte) {
	if events = beforeDone(events); x.startHeld() || len(events) == 0 || x.pass(events, false) {
		x.broken(Truncated, fmt.Errorf("%s ended its stream without a finish_reason", x.a.Worker))
	}
}

// beforeDone returns the events before [DONE].
func beforeDone(events []byte) []byte {
	at := 0
	for line := range bytes.Lines(events) {
		if payload, is := bytes.CutPrefix(line, []byte("data:")); is && string(bytes.TrimSpace(payload)) == "[DONE]" {
			return events[:at]
		}
		at += len(line)
	}
	return events
}

// engineError ends a stream after the engine's own error event. The rest of the stream is not forwarded: after the
// error event vLLM sends [DONE] and ends cleanly, so a client that ignores the error event would take the stream for
// complete.
func (x *exchange) engineError(events []byte) {
	if !x.res.FirstByte {
		x.refused(events, x.watch.ErrorCode())
		return
	}
	x.fail(EngineError, api.WorkerBroke(fmt.Errorf("%s sent an error event: %s", x.a.Worker, x.watch.ErrorText())))
	if x.pass(events, true) && x.ans.length >= 0 {
		x.res.Abort = true // the client still waits for the rest of the answer
	}
}

// ended ends an answer if its connection ended, or no byte came for too long, before the end of the framing.
func (x *exchange) ended(k *conn, rest []byte, err error) {
	switch {
	case k.aborted.Load():
		x.fail(ClientGone, err) // the caller ended the exchange
	case x.streamed():
		if x.pass(rest, true) { // only the last chunk of the framing is missing
			x.res.Class = Success
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		x.broken(StreamTimeout, protocolError(k.worker.url, err))
	case x.body.framing == byStream && err == io.EOF:
		x.whole(rest)
	case x.body.framing == byClose && err == io.EOF && (!x.watching || x.stream || x.watch.Complete()):
		x.whole(rest)
	default:
		x.broken(Truncated, protocolError(k.worker.url, err))
	}
}

// broken ends an answer that will not be complete, in a way that the client sees. A stream that has begun gets an error
// event without [DONE]. If that is not possible, the Result says Abort. If nothing was forwarded yet, another worker
// may be asked.
func (x *exchange) broken(c Class, err error) {
	var e *api.Error
	switch {
	case errors.As(err, &e):
	case c == StreamTimeout:
		e = api.WorkerTimeout(err)
	case !x.res.FirstByte:
		e = api.WorkerUseless(err)
	default:
		e = api.WorkerBroke(err)
	}
	x.fail(c, e)
	switch {
	case !x.res.FirstByte:
		x.res.Retryable = true
	case x.stream && !x.cut && x.ans.length < 0:
		if event := x.a.Dialect.AppendErrorEvent(nil, e); x.pass(event, true) {
			x.res.Abort = false
		}
	default:
		x.res.Abort = true
	}
}

// read reads more of the body. It waits at most StreamIdleTimeout plus a quarter of it.
func (x *exchange) read(k *conn, b []byte) (n int, err error) {
	t := x.client.cfg.StreamIdleTimeout
	if t > 0 {
		k.arm(time.Now().Add(t), t)
	}
	n, err = k.Read(b)
	if t == 0 && n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && !k.aborted.Load() {
		k.disarm() // the deadline for the header is still set; see arm
		return k.Read(b)
	}
	return n, err
}
