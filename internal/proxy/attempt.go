package proxy

import (
	"net/http"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// Attempt is one try to get a request answered by one worker. Forward only reads the exported fields. The caller may
// reuse the Attempt for the next try. It must not be copied.
type Attempt struct {
	// Worker is the worker's URL, http or https, with an optional path in front of Path.
	Worker string
	Method string // empty means POST
	Path   string // the request target with its query, e.g. /v1/chat/completions
	// Header is the client's request header. All fields are passed on except hop-by-hop fields, Host, Content-Length
	// and Accept-Encoding: a compressed answer could not be watched.
	Header http.Header
	// Set replaces header fields of the request; an empty value removes the field.
	Set []Field
	// Body is the request body; it must not change until Forward has returned.
	Body []byte
	// RequestID is sent as X-Request-Id and shown to the client; see RequestID.
	RequestID string

	// Dialect determines the words of an error event in mid-stream, and what the watcher looks for.
	Dialect api.Dialect
	// Model is the name that the answer should have. Knows reports whether another name is acceptable; it must not
	// keep the name. With an empty Model or a nil Knows any name is accepted. An answer without a name is always
	// accepted.
	Model string
	Knows func(name []byte) bool
	// Plain: the answer is no generation (models, tokenize). It is whole when it ends cleanly, and is not checked
	// further.
	Plain bool
	// Whole: the client asked for an answer in one piece. An event stream is then a useless answer.
	Whole bool
	// Writer is where the answer goes. Fields that its header has already are kept: the worker's do not replace them.
	Writer http.ResponseWriter
	// OnFirstToken, if set, is called once, when the first token passes, from Forward's goroutine.
	OnFirstToken func(time.Time)
	// OnTokens, if set, is called from Forward's goroutine as a stream passes, with the tokens of the answer so far:
	// once for each read that brought tokens, the first time after OnFirstToken.
	OnTokens func(n int, at time.Time)

	mu        sync.Mutex // guards the fields below
	waits     *conn      // the connection on which an answer is awaited; nil once the first byte came
	abandoned bool
}

// Abandon ends the attempt if it still waits for the first byte of an answer, and reports whether it did. Forward then
// returns Abandoned. It may be called from any goroutine, also after Forward has returned.
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

// Waits reports whether the attempt waits for the first byte of an answer. It may be called from any goroutine.
func (a *Attempt) Waits() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waits != nil
}

// wait notes that the attempt waits for an answer on k; nil ends the wait. It reports false when the attempt was
// abandoned.
func (a *Attempt) wait(k *conn) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waits = k
	return !a.abandoned
}

// begin resets the attempt after an earlier try that was abandoned.
func (a *Attempt) begin() {
	a.mu.Lock()
	a.waits, a.abandoned = nil, false
	a.mu.Unlock()
}

// Field is a header field.
type Field struct{ Name, Value string }

// Class says how an attempt ended.
type Class uint8

const (
	// Success: the answer was passed whole; if it was a generation, every choice had its finish_reason.
	Success Class = iota
	// Rejected: the engine answered 3xx or 4xx, or began a stream with such an error event. The fault may be the
	// request's or the worker's.
	Rejected
	// Limited: the engine answered 429.
	Limited
	// ClientGone: the client left, or stopped reading; the worker's connection was closed at once.
	ClientGone
	// Refused: the worker could not be reached or would not take the request (connect error, 502, 503, shutdown text).
	Refused
	// Reset: the connection ended before the first byte of an answer.
	Reset
	// HeaderTimeout: no answer began in time.
	HeaderTimeout
	// StreamTimeout: an answer began and then fell silent for too long.
	StreamTimeout
	// Protocol: the answer was not HTTP/1.1 as we accept it.
	Protocol
	// EngineError: the engine answered 5xx, or reported an error in its answer.
	EngineError
	// Truncated: the answer ended before its end, or without a finish_reason.
	Truncated
	// Useless: the answer came whole but is no answer of the dialect: HTML, nothing, broken JSON, a stream that
	// begins with [DONE], an answer of another model.
	Useless
	// Cut: the caller ended the attempt for a reason of its own. The reason is the context's cause; the client gets it.
	Cut
	// Abandoned: the caller ended the attempt before the first byte of an answer, by Attempt.Abandon.
	Abandoned
	// Local: this machine could not connect: it has no descriptor, port or memory left. It says nothing about the
	// worker.
	Local
	// BadAttempt: the attempt itself cannot be sent (worker URL, header field); nothing was tried.
	BadAttempt
)

// String returns the class as metrics and logs show it.
func (c Class) String() string {
	return [...]string{"success", "rejected", "limited", "client_gone", "refused", "reset", "header_timeout", "stream_timeout", "protocol",
		"engine_error", "truncated", "useless", "cut", "abandoned", "local", "bad_attempt"}[c]
}

// WorkerFault reports whether the outcome alone counts against the worker's health. For Rejected, Useless, and an
// EngineError that was held back, only a comparison with other workers shows whether the worker is at fault.
func (c Class) WorkerFault() bool { return c >= Refused && c <= Truncated }

// Result is how an attempt ended.
type Result struct {
	Class Class
	// Status is the status of the worker's answer, 0 when none came.
	Status int
	// FirstByte: something of the answer reached the client, at least its header. Then the request can neither be
	// retried nor answered with an error. While it is false, neither Writer nor its header was written.
	FirstByte bool
	// Retryable: nothing reached the client, and another worker may do better. It is also set when the request itself
	// may be at fault: another worker's answer then shows it.
	Retryable bool
	// Abort: the client holds a part of an answer and must see that it is cut. End the handler with
	// panic(http.ErrAbortHandler), after your own bookkeeping.
	Abort bool
	// Err is the error. It is an *api.Error when the client should get it. It is nil for Success, and for a Rejected
	// answer that was passed on.
	Err error
	// Answer is a worker's answer that was held back because another worker may do better; else nil. If no other
	// worker can be asked, pass it on with Answer.WriteTo.
	Answer *Answer
	// RetryAfter is the pause that the worker asked for, with Limited; 0 when it named none.
	RetryAfter time.Duration

	Usage api.Usage
	// Sent is when the request was written to the worker, FirstByteAt when the first byte of the answer came,
	// FirstTokenAt when the first token passed, and End when everything was over. A time is zero if that did not
	// happen.
	Start, Sent, FirstByteAt, FirstTokenAt, End time.Time
	// BytesUp and BytesDown are the body bytes sent to the worker and written to the client.
	BytesUp, BytesDown int64
	// Reused: the last connection was a kept-alive one. Fresh: a stale connection was replaced.
	Reused, Fresh bool
}

// Answer is an answer that was held back whole.
type Answer struct {
	Status int
	Header http.Header // without the fields that belong to the connection
	Body   []byte
}

// WriteTo passes the answer on to the client. Fields that w's header has already are kept.
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
