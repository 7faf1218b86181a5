package proxy

import (
	"net/http"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// Attempt is one try to get the answer to a request from one worker. Forward only reads the exported fields. The caller
// may reuse the Attempt for the next try. An Attempt must not be copied.
type Attempt struct {
	// Worker is the worker's URL, http or https, with an optional path in front of Path.
	Worker string
	Method string // empty is POST
	Path   string // the request target with its query, e.g. /v1/chat/completions
	// Header is the client's request header. The proxy forwards all fields except Host, Content-Length, Expect,
	// Accept-Encoding, hop-by-hop fields, and fields that the field Connection names. Accept-Encoding is left out
	// because the proxy could not check a compressed answer.
	Header http.Header
	// Set has fields that replace fields of the request's header. An empty value removes the field.
	Set []Field
	// Body is the request body; it must not change until Forward has returned.
	Body []byte
	// RequestID is sent as X-Request-Id and shown to the client; see RequestID. If ShownID is not empty, the client
	// sees ShownID instead.
	RequestID, ShownID string

	// Dialect determines the form of the errors that the proxy writes, and what the watcher looks for.
	Dialect api.Dialect
	// Model is the model name that the answer should contain. Knows reports whether another name is acceptable; it must
	// not keep the slice that it gets. If Model is empty or Knows is nil, any name is accepted. An answer without a
	// name is always accepted.
	Model string
	Knows func(name []byte) bool
	// Whole means that the client asked for an answer in one piece. An event stream is then a useless answer.
	Whole bool
	// HoldStart means that nothing of a stream is forwarded before its first token, or its end, as far as maxHeld bytes
	// suffice. If the stream breaks earlier, another worker may be asked.
	HoldStart bool
	// EditEvents, if set, returns events of a stream as they are forwarded. It may change and return its argument. An
	// event that is larger than the proxy's buffer comes in parts.
	EditEvents func(events []byte) []byte
	// Unchecked means that a successful answer may contain anything, such as sound. It is forwarded as it comes, and is
	// complete when its framing says so.
	Unchecked bool
	// Writer gets the answer. Fields that its header already has are kept: the worker's fields do not replace them.
	Writer http.ResponseWriter
	// HTTP2 means that the client speaks HTTP/2. A deadline for writing then ends the client's stream when it passes,
	// also while nothing is written.
	HTTP2 bool
	// OnSent, if set, is called from Forward's goroutine each time the whole request was written to a connection.
	OnSent func()
	// OnFirstToken, if set, is called once, from Forward's goroutine, immediately before the first token is forwarded.
	OnFirstToken func(time.Time)
	// OnTokens, if set, is called from Forward's goroutine while a stream is forwarded, with the number of tokens of
	// the answer so far. It is called once for each read that brought tokens, the first time after OnFirstToken.
	OnTokens func(n int, at time.Time)
	// OnAlive, if set, is called from Forward's goroutine for each further read of an answer that is forwarded as it
	// comes: the read brought no token, such as a comment or an empty event, but it shows that the worker lives.
	OnAlive func(at time.Time)

	// OnID, if set, is called once, from Forward's goroutine, before the id of the answer is forwarded. It must not
	// keep the slice that it gets. It is not called for answers without an id.
	OnID func(id []byte)

	mu        sync.Mutex // guards the fields below
	waits     *conn      // the connection on which an answer is awaited; nil after the first byte came
	uses      *conn      // the connection that the attempt uses; nil when it uses none
	abandoned bool
}

// Abandon ends the attempt if the attempt still waits for the first byte of an answer, and returns true in this case.
// Forward then returns a Result of class Abandoned. Abandon may be called from any goroutine, also after Forward has
// returned.
func (a *Attempt) Abandon() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.waits == nil {
		return false
	}
	a.waits.abort()
	a.waits, a.abandoned = nil, true
	return true
}

// BreakOff ends the attempt if it is under way, also if its answer has begun, and returns true in this case. Forward
// then returns a Result of class Abandoned, unless the answer was complete. BreakOff may be called from any goroutine,
// also after Forward has returned.
func (a *Attempt) BreakOff() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.uses == nil {
		return false
	}
	a.uses.abort()
	a.waits, a.abandoned = nil, true
	return true
}

// Waits reports whether the attempt waits for the first byte of an answer. It may be called from any goroutine.
func (a *Attempt) Waits() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waits != nil
}

// wait records that the attempt waits for an answer on k. A nil k ends the wait. wait returns false when the attempt
// was abandoned.
func (a *Attempt) wait(k *conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits = k
	if k != nil {
		a.uses = k
	}
	return !a.abandoned
}

// leave ends the use of the attempt's connection. It returns false when the attempt was abandoned.
func (a *Attempt) leave() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits, a.uses = nil, nil
	return !a.abandoned
}

// begin resets the attempt, because an earlier use of the same Attempt may have been abandoned.
func (a *Attempt) begin() {
	a.mu.Lock()
	a.waits, a.uses, a.abandoned = nil, nil, false
	a.mu.Unlock()
}

// Field is a header field.
type Field struct{ Name, Value string }

// Class says how an attempt ended.
type Class uint8

const (
	// Success: the whole answer was forwarded, and every choice had its finish_reason.
	Success Class = iota
	// Rejected: the engine answered 3xx or 4xx, or began its answer with an error of such a code, and neither Limited
	// nor Refused applies. The fault may be the request's or the worker's.
	Rejected
	// Limited: the engine answered with 429, or with an error of code 429.
	Limited
	// ClientGone: the client left, or stopped reading. The worker's connection was closed immediately.
	ClientGone
	// Refused: the worker could not be reached, or answered that it takes no request now (a status of
	// Config.RetryStatuses other than 500, or a text of Config.RetryTexts).
	Refused
	// Reset: the connection ended before the header of an answer was complete.
	Reset
	// HeaderTimeout: no complete header of an answer came in time, or the deadline of the context passed before a byte
	// was forwarded.
	HeaderTimeout
	// StreamTimeout: an answer began, and then no byte came for too long, or the deadline of the context passed.
	StreamTimeout
	// Protocol: the answer was not HTTP/1.1 or HTTP/1.0 in the strict form that the proxy accepts.
	Protocol
	// EngineError: the engine answered with a 5xx that is not Refused, reported an error in its answer, or ended a
	// choice with the reason abort or error.
	EngineError
	// Truncated: the answer ended too early, or without a finish_reason.
	Truncated
	// Useless: a complete answer came, but it is no answer of the dialect. Examples are HTML, an empty answer, broken
	// JSON, a stream that begins with [DONE], and an answer of another model.
	Useless
	// Cut: the caller ended the attempt for a reason of its own. The reason is the cause of the context. The client
	// gets the reason as its error.
	Cut
	// Abandoned: the caller ended the attempt before the first byte of an answer, by Attempt.Abandon, or in the middle
	// of an answer, by Attempt.BreakOff.
	Abandoned
	// Local: this machine could not connect, because it has no descriptor, port or memory left. This says nothing about
	// the worker.
	Local
	// BadAttempt: the attempt itself cannot be sent, because of its worker URL, its path or a header field. No
	// connection was tried.
	BadAttempt
)

// String returns the class as metrics and logs show it.
func (c Class) String() string {
	return [...]string{"success", "rejected", "limited", "client_gone", "refused", "reset", "header_timeout", "stream_timeout", "protocol",
		"engine_error", "truncated", "useless", "cut", "abandoned", "local", "bad_attempt"}[c]
}

// WorkerFault reports whether the outcome by itself counts against the worker's health. WorkerFault returns false for
// Rejected and Useless: for these, only a comparison with other workers shows whether the worker is at fault.
func (c Class) WorkerFault() bool { return c >= Refused && c <= Truncated }

// Result says how an attempt ended.
type Result struct {
	Class Class
	// Status is the status of the worker's answer, 0 when none came.
	Status int
	// FirstByte means that a part of the answer reached the client, at least its header. After that, the request can
	// neither be retried nor answered with an error. While FirstByte is false, neither Writer nor its header was
	// written.
	FirstByte bool
	// Retryable means that nothing reached the client, and that another worker may do better. Retryable is also true
	// when the request itself may be at fault: then another worker's answer shows whether the request or the worker is.
	Retryable bool
	// Untaken means that the worker did not take the request: it could not be reached, it answered 503, or its answer
	// has a text of Config.RetryTexts. A 502 or 504 does not say so: a proxy in front of an engine gives these
	// statuses, too, when the engine died of the request.
	Untaken bool
	// Abort means that the client has a part of an answer, and must see that the answer is incomplete. The handler must
	// end with panic(http.ErrAbortHandler), after its own bookkeeping.
	Abort bool
	// Err is the error of the attempt. It is an *api.Error if the client should get it. It is nil for Success, Rejected
	// and Limited.
	Err error
	// Answer is a worker's answer that was held back because another worker may do better; nil if no answer was held
	// back. If no other worker can be asked, forward it with Answer.WriteTo.
	Answer *Answer
	// RetryAfter is the pause that the worker asked for in a Limited answer; 0 when it named none.
	RetryAfter time.Duration

	Usage api.Usage
	// Start is when the attempt began. Sent is when the request was written to the worker. FirstByteAt is when the
	// first byte of the answer came. FirstTokenAt is when the first token was about to be forwarded. A time is zero if
	// the event did not happen.
	Start, Sent, FirstByteAt, FirstTokenAt time.Time
	// BytesDown is the number of body bytes written to the client.
	BytesDown int64
	// Reused means that the attempt's last connection was a kept-alive connection. If a kept-alive connection is stale,
	// the attempt uses a second, new connection, and Reused is false.
	Reused bool
}

// Answer is an answer that was held back. Body is the worker's body, with two exceptions. For a stream, Body is the
// beginning of the stream, up to an error event. For a refusal that is too long to be kept, Body is an error of the
// router.
type Answer struct {
	Status int
	Header http.Header // header without the fields that belong to the connection
	Body   []byte
}

// WriteTo forwards the answer to the client. Fields that w's header already has are kept.
func (a *Answer) WriteTo(w http.ResponseWriter) {
	h := w.Header()
	for name, values := range a.Header {
		if _, has := h[name]; !has {
			h[name] = values
		}
	}
	w.WriteHeader(a.Status)
	w.Write(a.Body) // an error means that the client is gone
}
